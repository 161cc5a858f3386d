"""Farfield across machines: what a site is, and what it says and does in a federation."""
