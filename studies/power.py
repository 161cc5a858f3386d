"""How often is a true gain of 2 points found?

    python -m studies.power [--short]

Benches are simulated: five methods against a baseline, of which one gains 2 points on average over domains. `domains`
is how much a method's gain varies from domain to domain, `seeds` how much a score varies from seed to seed, both as
standard deviations in points. Verdicts are those of a bench, Holm-corrected over the five methods.
"""

from __future__ import annotations

import argparse

import numpy as np

from farfield.protocol.power import detectable, power
from farfield.protocol.statistics import compare

METHODS = 5
GAIN = 0.02


def found(domains: int, seeds: int, domain_std: float, seed_std: float, draws: int, seed: int = 0) -> float:
    """Return the share of simulated benches in which the method that gains is called better."""
    rng = np.random.default_rng(seed)
    hits = 0
    keys = [(str(d), s) for d in range(domains) for s in range(seeds)]
    for _ in range(draws):
        level = rng.normal(0.7, 0.1, domains)
        score = level[:, None] + rng.normal(0, seed_std, (METHODS + 1, domains, seeds))
        score[1:] += rng.normal(0, domain_std, (METHODS, domains, 1))
        score[1] += GAIN
        values = [dict(zip(keys, of.reshape(-1).tolist(), strict=True)) for of in score]
        methods = {str(i): values[i] for i in range(1, METHODS + 1)}
        hits += compare(methods, values[0])["1"].verdict == "better"
    return hits / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer draws: under a minute")
    draws = 150 if parser.parse_args().short else 2000
    print(f"share of benches that find a true gain of {100 * GAIN:.0f} points; {METHODS} methods, Holm-corrected")
    print("one alone: the share by the noncentral t, for one method at 5 %; detectable: with 80 % power, at 1 %\n")
    print("domains seeds  varies by domain  by seed    found  one alone  detectable")
    for domains, seeds in ((4, 3), (6, 3), (6, 10), (20, 3)):
        for domain_std, seed_std in ((0.01, 0.02), (0.02, 0.04), (0.04, 0.04)):
            share = found(domains, seeds, domain_std, seed_std, draws)
            std = float(np.sqrt(domain_std**2 + 2 * seed_std**2 / seeds))
            alone, least = power(GAIN, std, domains, 0.05), detectable(std, domains, 0.05 / METHODS)
            print(
                f"{domains:7} {seeds:5} {100 * domain_std:15.0f}   {100 * seed_std:6.0f}   {100 * share:6.1f} % "
                f"{100 * alone:8.1f} % {100 * least:9.1f}"
            )


if __name__ == "__main__":
    main()
