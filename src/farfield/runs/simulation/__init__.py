"""Runs on Flower's simulation: one engine for a sweep, its nodes, and rows in shared files."""
