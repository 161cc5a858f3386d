"""The wire manifest: everything that may leave a site, as its operator approves it."""
