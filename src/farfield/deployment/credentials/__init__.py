"""Certificates and keys: create them for a new federation, and verify them before anything starts."""
