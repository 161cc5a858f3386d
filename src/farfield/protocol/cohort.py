"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from farfield.reproducibility.randomness import generator


def cohort(seed: int, round: int, clients: int, size: int | None, removed: Collection[int] = ()) -> list[int]:
    """`size` clients drawn without replacement, in order; all of them when `size` is None.

    Clients that were removed from the run are never drawn; those that are left fill the cohort as far as they can.
    """
    if size is None or size == clients:
        return [client for client in range(clients) if client not in removed]
    if not 1 <= size <= clients:
        raise ValueError(f"a cohort of {size} cannot be drawn from {clients} clients")
    order = torch.randperm(clients, generator=generator(seed, round, "cohort")).tolist()
    return sorted([client for client in order if client not in removed][:size])


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
