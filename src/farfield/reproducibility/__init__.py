"""The same seed gives the same bits: where random numbers come from, and how many threads compute."""
