"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from farfield.reproducibility.randomness import generator


def cohort(seed: int, round: int, clients: int, size: int | None) -> list[int]:
    """`size` clients drawn without replacement, in order; all of them when `size` is None."""
    if size is None or size == clients:
        return list(range(clients))
    if not 1 <= size <= clients:
        raise ValueError(f"a cohort of {size} cannot be drawn from {clients} clients")
    drawn = torch.randperm(clients, generator=generator(seed, round, "cohort"))[:size]
    return sorted(drawn.tolist())


def validation_clients(seed: int, domain_of: Mapping[int, str], limit: int) -> list[int]:
    """Of these clients, the ones whose validation rows are measured: all, or a sample that covers every domain."""
    clients = sorted(domain_of)
    if len(clients) <= limit:
        return clients
    shuffled = torch.randperm(len(clients), generator=generator(seed, "validation")).tolist()
    order = [clients[i] for i in shuffled]
    first_of_domain = {domain_of[c]: c for c in reversed(order)}
    chosen = dict.fromkeys([*first_of_domain.values(), *order])
    return sorted(list(chosen)[: max(limit, len(first_of_domain))])
