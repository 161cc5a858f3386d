"""Exact functions that are tested and public, and that no method or command calls yet.

`shift` waits for the diagnostics of a data set, `masks` for the masked means of FedGMA, AND- and SAND-mask, and
`group_dro` for GroupDRO. A function moves out of this folder with its first caller.
"""
