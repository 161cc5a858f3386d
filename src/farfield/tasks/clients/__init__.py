"""How the rows of domains are dealt out to clients."""
