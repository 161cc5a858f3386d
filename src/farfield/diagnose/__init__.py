"""Look at the data before training: what was read, and how the domains differ."""
