"""FedIIR's Algorithm 2: how many clients each domain gets when there are more clients than domains."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor


def order_of_clients(sizes: Sequence[float], clients: int) -> list[int]:
    """The domain of each client, in the paper's order: one client for every domain, then one at a time to the domain
    with the most examples per client (ties to the lowest index)."""
    if not sizes or min(sizes) <= 0:
        raise ValueError(f"every domain needs examples, got sizes {list(sizes)}")
    if clients < len(sizes):
        raise ValueError(f"{clients} clients cannot cover {len(sizes)} domains: each client holds one domain only")
    order = list(range(len(sizes)))
    counts = [1] * len(sizes)
    while len(order) < clients:
        domain = max(range(len(sizes)), key=lambda m: sizes[m] / counts[m])
        counts[domain] += 1
        order.append(domain)
    return order


def split_domains(sizes: Sequence[float], clients: int) -> list[int]:
    """Clients per domain, for domains with `sizes` examples."""
    order = order_of_clients(sizes, clients)
    return [order.count(domain) for domain in range(len(sizes))]


def share_rows(rows: int, clients: int, nominal: float | None = None) -> list[int]:
    """How many of a domain's `rows` each of its clients gets: equal whole shares, the remainder to the last client.

    A share is floor(nominal / clients), and `nominal` is `rows` unless given. The published code takes 0.9 ·
    (domain size) before rounding as the nominal size, which can be less than the rows that its hold-out leaves.
    """
    base = floor((rows if nominal is None else nominal) / clients) if clients > 0 else 0
    if base < 1 or base * clients > rows:
        raise ValueError(f"cannot share {rows} rows among {clients} clients in parts of {base}")
    return [base] * (clients - 1) + [rows - base * (clients - 1)]
