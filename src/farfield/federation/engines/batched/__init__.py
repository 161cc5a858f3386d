"""The batched engine: the clients of one run, or of many runs, trained as one computation on stacked parameters."""
