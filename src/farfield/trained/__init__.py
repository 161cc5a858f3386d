"""A model folder: train it, load it, predict and evaluate with it."""
