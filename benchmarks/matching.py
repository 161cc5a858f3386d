"""How long FedOMG's exact solver takes for 100 clients, once the Gram matrix is there.

    python benchmarks/matching.py

Random updates, with nothing in common and with a common part, six seeds each; the slowest is printed, and the
goal is 20 ms. Each answer is checked: the worst inner product must be the dual objective to 1e-8.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from farfield.math import gradient_matching as matching

CLIENTS, SEEDS, GOAL = 100, 6, 20.0
SIZES, KAPPAS, COMMON = (20, 50, 90, 200, 1000, 10000), (0.1, 0.25, 0.5, 0.75, 0.9, 0.99), (0.0, 0.3)


def slowest(size: int, kappa: float) -> float:
    """Milliseconds in the solver, of the slowest problem of this size."""
    spent: list[float] = []
    solve = matching.minimise_on_simplex

    def timed(*given: Any) -> torch.Tensor:
        started = time.perf_counter()
        solved = solve(*given)
        spent[-1] += 1e3 * (time.perf_counter() - started)
        return solved

    matching.minimise_on_simplex = timed
    try:
        for common in COMMON:
            for seed in range(SEEDS):
                draw = torch.Generator().manual_seed(seed)
                updates = torch.randn(CLIENTS, size, generator=draw) + common * torch.randn(size, generator=draw)
                spent.append(0.0)
                found = matching.matching_direction(updates, kappa=kappa)
                if abs(found.worst - found.objective) > 1e-8 * abs(found.objective):
                    raise SystemExit(f"{size} parameters, kappa {kappa}, seed {seed}: the answer is not certified")
    finally:
        matching.minimise_on_simplex = solve
    return max(spent)


def main() -> None:
    torch.set_num_threads(1)
    slowest(SIZES[-2], KAPPAS[0])  # loads code
    print("parameters  " + "".join(f"  kappa {kappa:4.2f}" for kappa in KAPPAS) + "   (slowest, ms)")
    for size in SIZES:
        times = [slowest(size, kappa) for kappa in KAPPAS]
        verdict = "goal met" if max(times) < GOAL else f"goal missed: under {GOAL:g} ms"
        print(f"{size:10d}  " + "".join(f"{ms:12.1f}" for ms in times) + f"   {verdict}")


if __name__ == "__main__":
    main()
