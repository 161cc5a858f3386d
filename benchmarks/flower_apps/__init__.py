"""The apps and deployments of `benchmarks/flower.py`."""
