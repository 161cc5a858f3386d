"""Exact functions that are tested and public, and that no method or command calls yet.

`masks` waits for the masked means of FedGMA, AND- and SAND-mask,
`domain_objectives` and `gradient_variance` for the methods that see pooled data (IRM, Fishr, GroupDRO), and
`linear_sem`, the known answers of the task of that name, for a command that compares results with them. A function
moves out of this folder with its first caller.
"""
