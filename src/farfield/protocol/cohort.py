"""Who takes part in a round."""

from __future__ import annotations

import torch

from farfield.models.randomness import generator


def cohort(seed: int, round: int, clients: int, size: int | None) -> list[int]:
    """`size` clients drawn without replacement, in order; all of them when `size` is None."""
    if size is None or size == clients:
        return list(range(clients))
    drawn = torch.randperm(clients, generator=generator(seed, round, "cohort"))[:size]
    return sorted(drawn.tolist())


def validation_clients(seed: int, domains: list[str], limit: int) -> list[int]:
    """The clients whose validation rows are measured: all, or a fixed sample of `limit` that covers every domain."""
    clients = len(domains)
    if clients <= limit:
        return list(range(clients))
    order = torch.randperm(clients, generator=generator(seed, "validation")).tolist()
    first_of_domain = {domains[c]: c for c in reversed(order)}
    chosen = dict.fromkeys([*first_of_domain.values(), *order])
    return sorted(list(chosen)[: max(limit, len(first_of_domain))])
