"""Differential privacy: what is clipped and noised at a client, and what that costs in ε.

noise            where random numbers that must stay secret come from
row_gradients    the sum of the rows' gradients, each cut to a length
record_level     local training in which each row is protected (DP-SGD)
client_level     replies in which a client's whole contribution is protected
release          what leaves a client, as the accountant counts it
accountant       from releases to ε, and from ε to a noise multiplier
ledger           the releases of a run, on disk
statement        what is protected and what is not, in words
"""
