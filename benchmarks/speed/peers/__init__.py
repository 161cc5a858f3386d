"""What runs in the peers' environments: torch, numpy and the peer, and nothing of Farfield."""
