"""How often do the prediction interval, and the interval of the mean, cover a new site?

    FARFIELD_DATA=… python -m studies.new_site_coverage [--short]

Simulation: sites whose true share is normal on the logit scale, each measured on its rows. Real data: D sites and one
more are drawn from a table; the D are held out one by one, which gives the estimate; the one more is then measured with
a model that was trained on all D. The linear models stand for what any method would be: what is tested is the interval.
"""

from __future__ import annotations

import argparse

import numpy as np

from farfield.protocol.new_site import NewSiteEstimate, new_site_estimate
from studies.tables import Table, tables


def simulated(sites: int, spread: float, rows: int, draws: int, seed: int = 0) -> tuple[float, float]:
    """Return how often each interval covers the measured share of a new site."""
    rng = np.random.default_rng(seed)
    covered = covered_by_mean = 0
    for _ in range(draws):
        truth = 1 / (1 + np.exp(-rng.normal(1.0, spread, sites + 1)))
        shares = rng.binomial(rows, truth) / rows
        names = [str(i) for i in range(sites)]
        values = dict(zip(names, shares[:-1].tolist(), strict=True))
        got = new_site_estimate(values, dict.fromkeys(names, rows), "accuracy")
        assert isinstance(got, NewSiteEstimate)
        covered += got.low <= shares[-1] <= got.high
        covered_by_mean += got.mean_low <= shares[-1] <= got.mean_high
    return covered / draws, covered_by_mean / draws


def measured(table: Table, sites: int, draws: int, seed: int = 0) -> dict[str, tuple[float, float, int]]:
    """Return by metric how often each interval covers a site that played no part, and in how many draws it could."""
    rng = np.random.default_rng(seed)
    counts = {metric: [0, 0, 0] for metric in table.metrics}
    for _ in range(draws):
        *known, new = rng.choice(table.sites, sites + 1, replace=False).tolist()
        held_out = {site: table.measure([other for other in known if other != site], site) for site in known}
        rows = {site: int((table.site == site).sum()) for site in known}
        truth = table.measure(known, new)
        for metric, count in counts.items():
            values = {site: found[metric] for site, found in held_out.items() if metric in found}
            got = new_site_estimate(values, rows, metric)
            if isinstance(got, NewSiteEstimate) and metric in truth:
                count[0] += got.low <= truth[metric] <= got.high
                count[1] += got.mean_low <= truth[metric] <= got.mean_high
                count[2] += 1
    return {metric: (new / max(n, 1), mean / max(n, 1), n) for metric, (new, mean, n) in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer draws: under a minute")
    short = parser.parse_args().short
    print("share of new sites inside the interval made for 95 %")
    print(f"{'simulation':28} {'sites':>5} {'rows':>5} {'prediction':>11} {'of the mean':>12}")
    for spread in (0.2, 0.6):
        for sites, rows in ((4, 100), (6, 100), (12, 100), (6, 1000)):
            new, mean = simulated(sites, spread, rows, 500 if short else 4000)
            label = f"spread {spread} on the logit scale"
            print(f"{label:28} {sites:5} {rows:5} {100 * new:9.1f} % {100 * mean:10.1f} %")
    print(f"\n{'real data':20} {'metric':10} {'sites':>5} {'draws':>6} {'prediction':>11} {'of the mean':>12}")
    for table in tables():
        for sites in (4, 6):
            for metric, (new, mean, made) in measured(table, sites, 30 if short else 300).items():
                print(f"{table.name:20} {metric:10} {sites:5} {made:6} {100 * new:9.1f} % {100 * mean:10.1f} %")


if __name__ == "__main__":
    main()
