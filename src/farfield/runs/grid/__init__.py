"""Sweeps over settings: one bench per point of a grid, and one page for all of them."""
