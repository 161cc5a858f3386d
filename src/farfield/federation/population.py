"""The clients that take part, and their data. A held-out domain is not in here, so nothing that trains can reach it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from farfield.federation.client import Client, Rows
from farfield.reproducibility.devices import CPU
from farfield.tasks.clients.partition import Clients, Shard
from farfield.tasks.task import Domain

#: Up to so many clients have their row numbers kept at hand: silos are met again every round, thousands of phones not.
SHARDS_KEPT = 128


class Population:
    """The source domains and how their rows are shared among clients. Clients are made when they are needed.

    `device` is where the clients compute.
    """

    def __init__(
        self, domains: Sequence[Domain], clients: Clients, augment: str = "none", device: torch.device = CPU
    ) -> None:
        self._domains = {d.name: d for d in domains}
        self._clients = clients
        self._shards = cache(self._shard) if len(clients) <= SHARDS_KEPT else self._shard
        self._augment = augment
        self.device = device

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self._domains)

    def domain_of(self, client: int) -> str:
        return self._clients.domain_of(client)

    def name_of(self, client: int) -> str:
        """Return a client's name, for a reader: its domain, with its number where a domain has several clients."""
        domain = self.domain_of(client)
        return domain if len(self) == len(self._domains) else f"{domain}, client {client}"

    def with_validation_rows(self) -> list[int]:
        """The clients that have validation rows; with many clients some have none."""
        return self._clients.validation_sizes.nonzero().squeeze(1).tolist()

    def _shard(self, number: int) -> tuple[Shard, Rows, Rows]:
        shard = self._clients[number]
        training, validation = (Rows(self._domains, rows, self.device) for rows in (shard.train, shard.validation))
        return shard, training, validation

    def client(self, number: int, *, seed: int, round: int, phase: str, state: dict[str, Tensor]) -> Client:
        shard, training, validation = self._shards(number)
        return Client(
            id=shard.client,
            name=shard.name,
            domain=shard.domain,
            training=training,
            validation=validation,
            seed=seed,
            round=round,
            phase=phase,
            state=state,
            augment=self._augment,
        )
