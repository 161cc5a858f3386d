"""The data folder: what is in it, and how data sets get there."""
