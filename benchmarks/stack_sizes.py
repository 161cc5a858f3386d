"""From how many clients and up to which model a stack is faster: the figures behind `--engine auto`.

    python -m benchmarks.stack_sizes

A FedAvg round on `batched` and one on `local` take turns, on one thread; the ratio is of their processor time.
"""

from __future__ import annotations

import time

import torch

from benchmarks.interleaved import Spread
from farfield.algorithms import build
from farfield.federation.engines.batched.engine import BatchedFederation
from farfield.federation.engines.local import LocalFederation
from farfield.federation.population import Population
from farfield.models import ModelSpec, build_model
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Domain

#: Inputs, hidden widths and outputs.
MODELS = (
    (13, (), 1),
    (64, (64,), 10),
    (1280, (), 7),
    (784, (256,), 10),
    (1280, (256,), 7),
    (1024, (1024,), 10),
)
CLIENTS, ROWS, BATCH, TURNS = (1, 2, 5, 30), 300, 32, 4


def ratio(inputs: int, hidden: tuple[int, ...], outputs: int, clients: int) -> tuple[int, Spread]:
    """Return the number of parameters, and the time on `batched` as a multiple of that on `local`."""
    draw = torch.Generator().manual_seed(0)
    shape = {"featurizer": "mlp", "hidden": hidden} if hidden else {"featurizer": "identity"}
    spec = ModelSpec(input_shape=(inputs,), outputs=outputs, **shape)
    domains = [
        Domain(
            f"d{number}",
            torch.rand((ROWS, inputs), generator=draw),
            torch.randint(max(2, outputs), (ROWS,), generator=draw),
        )
        for number in range(clients)
    ]
    people = make_clients(
        domains, partition=Partition(kind="domain"), clients=None, validation=0.1, seed=0, kind="classification"
    )
    algorithm, model = build("fedavg", {"batch_size": BATCH}), build_model(spec, seed=0)
    engines = [
        kind(algorithm, model, Population(domains, people), seed=0) for kind in (BatchedFederation, LocalFederation)
    ]
    states = [algorithm.start(model.state()) for _ in engines]
    ratios = []
    for number in range(1, TURNS + 2):
        spent = []
        for which, fed in enumerate(engines):
            fed.begin(number, range(clients))
            started = time.process_time()
            states[which] = algorithm.round(fed, states[which])
            spent.append(time.process_time() - started)
        ratios.append(spent[0] / spent[1])
    return model.layout.parameters, Spread.of(ratios[1:])


def main() -> None:
    torch.set_num_threads(1)
    print("| model | parameters | " + " | ".join(f"{n} clients" for n in CLIENTS) + " |")
    for inputs, hidden, outputs in MODELS:
        found = [ratio(inputs, hidden, outputs, clients) for clients in CLIENTS]
        name = "-".join(map(str, (inputs, *hidden, outputs)))
        print(f"| {name} | {found[0][0]:,} | " + " | ".join(f"{spread.median:.2f}" for _, spread in found) + " |")


if __name__ == "__main__":
    main()
