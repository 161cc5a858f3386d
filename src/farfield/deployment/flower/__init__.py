"""Flower's processes as Farfield starts them, and the private parts of Flower that are replaced."""
