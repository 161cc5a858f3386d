"""What a secure sum costs beside a plain one: bytes and seconds for one phase, by the number of sites.

    python benchmarks/secure_sums.py [--parameters 100000] [--sites 4,20,100] [--leave 0.1]

One update of so many float32 parameters per site. The server's and the sites' own code runs in one process and on one
thread: cryptography, quantisation, packing of keys and shares and the site's record as JSON are in the figures; the
network, Flower and local training are not. The plain phase is float32 updates and their weighted mean. Each sum is
compared with the plain one: it must agree to the stated step. `--leave` is the share of sites that leave after they
have sent shares, which is when the sum is dearest for the server.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from farfield.federation.engines.flower.masked_sums import MASK, SUM, MaskedSum, NodeSums, Stage
from farfield.federation.engines.flower.packing import PackedGroups, pack_groups
from farfield.federation.execution import Outcome
from farfield.federation.phase import Sends
from farfield.federation.secure_sums.summing_step import SecureSum, weight_name
from farfield.math import weighted_mean
from farfield.models import ModelSpec, build_model

ROWS = 100.0


class Memory(dict[str, str]):
    """A site's disk, as text."""

    def load(self, run: str) -> dict[str, Any]:
        return dict(json.loads(self.get(run, "{}")))

    def save(self, run: str, record: Mapping[str, Any]) -> None:
        self[run] = json.dumps(record)


class Sites:
    """Sites in this process that answer the exchanges of a sum; the seconds of each are counted."""

    def __init__(self, updates: torch.Tensor, summing: SecureSum, sends: Mapping[str, Sends], leaving: int) -> None:
        self.updates, self.summing, self.sends = updates, summing, sends
        self.names = {number: f"site-{number:03d}" for number in range(len(updates))}
        self.stores = [Memory() for _ in updates]
        self.layout = build_model(ModelSpec(featurizer="mlp", input_shape=(4,), outputs=2), 0).layout
        self.leaving = set(range(leaving))
        self.seconds = 0.0
        self.masked_bytes = 0

    def ask(self, phase: str, broadcast: PackedGroups, clients: Sequence[int], stage: Stage) -> Iterator[Outcome]:
        header = {"round": 1, "phase": phase, "assignment": "a", SUM: stage.header}
        for number in clients:
            if stage.name == MASK and number in self.leaving:
                yield Outcome(number, "", problem="it has left")
                continue
            started = time.perf_counter()
            node = NodeSums(self.stores[number], self.names[number], "run", least=self.summing.least)
            values = node.before_phase(header, {"model": {}, "shared": {}, SUM: stage.own.get(number, {})})
            if values is None:
                fixed = self.summing.fixed_point
                integers = {
                    "update": fixed.integers("update", self.updates[number], ROWS),
                    weight_name("update"): fixed.integers("weight", ROWS),
                }
                values = node.masked(header, integers, self.sends, self.layout)
                self.masked_bytes += 8 * (len(self.updates[number]) + 1)
            self.seconds += time.perf_counter() - started
            problem = stage.fault(values)
            if problem:
                raise SystemExit(problem)
            yield Outcome(number, "", values=values)


def measure(sites: int, parameters: int, leave: float) -> str:
    generator = torch.Generator().manual_seed(sites)
    updates = 0.01 * torch.randn(sites, parameters, generator=generator)
    summing = SecureSum("samples")
    sends = summing.declare({"update": Sends(parameters, "the update", in_sum="weighting")})
    leaving = math.ceil(leave * sites)
    nodes = Sites(updates, summing, sends, leaving)
    started = time.perf_counter()
    masked = MaskedSum(nodes.ask, summing, sends, nodes.layout, "train")
    outcomes = [o for o in masked.outcomes(pack_groups({}), nodes.names) if o.problem is None]
    sums = summing.sums(masked.totals(sorted(outcomes, key=lambda o: o.client)))
    server = time.perf_counter() - started - nodes.seconds
    mean = sums["update"].total / sums[weight_name("update")].total
    kept = updates[leaving:]
    started = time.perf_counter()
    plain = weighted_mean(kept, torch.full((len(kept),), ROWS))
    plain_server = time.perf_counter() - started
    apart = float((mean - kept.double().mean(0)).abs().max())
    if apart > summing.fixed_point.step / 2 / ROWS + 1e-15 or len(plain) != parameters:
        raise SystemExit(f"the sum differs from the plain one by {apart:g}")
    up = (masked.traffic.bytes_up["train"] + nodes.masked_bytes) / sites
    down = masked.traffic.bytes_down["train"] / sites
    return (
        f"{sites:5d} {leaving:6d} {up:12,.0f} {up / (4 * parameters):7.2f} {down:12,.0f} {down / (4 * parameters):7.2f}"
        f" {nodes.seconds / sites:9.3f} {server:9.3f} {plain_server:9.3f} {apart:10.1e}"
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--parameters", type=int, default=100_000)
    options.add_argument("--sites", default="4,20,100")
    options.add_argument("--leave", type=float, default=0.1)
    given = options.parse_args()
    torch.set_num_threads(1)
    measure(3, 1000, 0.0)  # loads code; the first row below is not slower for it
    print(
        f"one sum of {given.parameters:,} parameters; bytes are per site, a plain update up is {4 * given.parameters:,}"
    )
    print("sites  leave     bytes up  ÷plain  extra down  ÷model  s a site  s server  s plain   difference")
    for sites in map(int, given.sites.split(",")):
        for leave in dict.fromkeys((0.0, given.leave)):
            print(measure(sites, given.parameters, leave), flush=True)


if __name__ == "__main__":
    main()
