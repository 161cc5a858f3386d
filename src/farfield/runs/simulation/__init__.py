"""Runs on Flower's simulation: the engine, what a node does, and the rows that all nodes map."""
