"""FedOMG's server at 100 clients and 11 million parameters: inner products and solution against a plain mean."""

from __future__ import annotations

import torch

from benchmarks.interleaved import interleaved
from benchmarks.speed.case import Case, Check, Figure, Options, Outcome, Skipped
from farfield.math import matching_direction, weighted_mean

CLIENTS, PARAMETERS = 100, 11_000_000


def run(options: Options) -> Outcome:
    size = 100_000 if options.short else PARAMETERS
    _check_memory(3 * 4 * CLIENTS * size)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    updates = torch.empty(CLIENTS, size).normal_(generator=generator)
    updates += 0.3 * torch.randn(size, generator=generator)
    weights = torch.ones(CLIENTS)
    timings = interleaved(
        {
            "matching": lambda _: lambda: matching_direction(updates, weights),
            "our mean": lambda _: lambda: weighted_mean(updates, weights),
            "plain mean": lambda _: lambda: updates.mean(dim=0),
        },
        options.turns(5),
        warm_up=1,
    )
    found = matching_direction(updates, weights)
    certified = abs(found.worst - found.objective) <= 1e-8 * abs(found.objective)
    figures = (
        # The goal is against torch's mean: our own is slower, because its bits do not depend on threads.
        Figure.of("matching / updates.mean(0)", timings.ratio("matching", "plain mean"), 3.0),
        Figure.of("matching / FedAvg's mean", timings.ratio("matching", "our mean")),
        Figure.of("FedAvg's mean / updates.mean(0)", timings.ratio("our mean", "plain mean")),
    )
    return Outcome(figures, (Check("the direction is certified to 1e-8", certified),), timings.medians())


def _check_memory(bytes_needed: int) -> None:
    """Skip the case where the memory that is free does not suffice."""
    try:
        with open("/proc/meminfo") as file:
            free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return
    if free < bytes_needed:
        raise Skipped(f"{bytes_needed / 1e9:.0f} GB of free memory are needed, and there are {free / 1e9:.0f}")


CASE = Case("fedomg-matching", "FedOMG: 100 clients × 11 M parameters, one thread", run)
