"""The audit log of a server or a site: what was sent and received, in a chain of hashes that shows a later change."""
