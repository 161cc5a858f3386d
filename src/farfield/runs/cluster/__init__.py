"""Runs on the nodes of a Ray cluster: sent there as tasks, and brought back into the folder of the sweep."""
