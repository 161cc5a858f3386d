"""How a round's overhead over the bare loop grows with the model: from ten thousand to ten million parameters."""

from __future__ import annotations

import torch

from benchmarks.interleaved import Spread, interleaved
from benchmarks.speed.case import Case, Figure, Options, Outcome
from benchmarks.speed.rounds import LOCAL, WARM_UP, Rounds, bare_turns, engine, population_of, workload_of
from farfield.models import ModelSpec

CLIENTS, ROWS, BATCH, LR = 5, 320, 32, 0.05
#: Width of the two hidden layers, and turns: a large model's round takes seconds.
WIDTHS = {"10 k": (70, 40), "100 k": (280, 40), "1 M": (960, 20), "10 M": (3120, 8)}


def run(options: Options) -> Outcome:
    torch.set_num_threads(1)
    figures, seconds, overheads, sizes = [], {}, {}, {}
    for name, (width, turns) in WIDTHS.items():
        if options.short and name == "10 M":
            continue
        turns = options.turns(turns)
        rounds = _rounds(width)
        population = population_of(rounds)
        workload = workload_of(rounds, population, WARM_UP + turns)
        sizes[name] = len(workload.initial)
        with engine(LOCAL, rounds, population) as ours:
            timings = interleaved({"ours": ours.turn, "bare loop": bare_turns(workload, 1)}, turns, WARM_UP)
        pairs = list(zip(timings.seconds["ours"], timings.seconds["bare loop"], strict=True))
        share = Spread.of([100 * (own - bare) / bare for own, bare in pairs])
        figures.append(Figure.of(f"{name} parameters: overhead", share, 3.0 if name == "10 M" else None, unit="%"))
        overheads[name] = Spread.of([own - bare for own, bare in pairs]).median
        seconds |= {f"{name}: {who}": value for who, value in timings.medians().items()}
        seconds[f"{name}: overhead"] = overheads[name]
    first, last = next(iter(overheads)), [*overheads][-1]
    notes = ()
    if overheads[first] > 0:
        growth = (overheads[last] / overheads[first]) / (sizes[last] / sizes[first])
        figures.append(Figure(f"overhead {last} / {first}, per ratio of parameters", growth, growth, growth, 1.0))
    else:
        notes = (f"a round with {first} parameters takes no longer than the bare loop, so there is no growth to state",)
    return Outcome(tuple(figures), (), seconds, notes)


def _rounds(width: int) -> Rounds:
    generator = torch.Generator().manual_seed(0)
    return Rounds(
        network=f"mlp-64-{width}-{width}-10",
        spec=ModelSpec(featurizer="mlp", input_shape=(1, 8, 8), outputs=10, hidden=(width, width)),
        x=torch.rand((CLIENTS, ROWS, 1, 8, 8), generator=generator),
        y=torch.randint(10, (CLIENTS, ROWS), generator=generator),
        batch=BATCH,
        lr=LR,
        engines=(LOCAL,),
        goals={},
    )


CASE = Case("model-size", "10 k → 10 M parameters, 5 clients × 10 steps of 32 rows", run)
