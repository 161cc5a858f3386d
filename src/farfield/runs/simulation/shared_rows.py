"""Rows in shared files that any process can map, without copying them.

A simulation's nodes are processes of their own. What a run trains on is put here once, whatever kind of task it came
from, and each node opens the files that its run names: nothing is read, decoded or prepared twice, and nothing pickled.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield.federation.population import Population
from farfield.runs.run_data import RunData
from farfield.tasks.clients.partition import Clients, Partition
from farfield.tasks.clients.row_shares import RowsByClient
from farfield.tasks.task import Domain

_DTYPES = {str(d): d for d in (torch.float32, torch.float64, torch.uint8, torch.int64)}


class SharedRows:
    """A folder that tensors are put into. One that stays for the whole sweep is written once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lasting: dict[int, tuple[Tensor, dict[str, Any]]] = {}
        self._written = 0

    def put_run(self, name: str, data: RunData, augment: str) -> dict[str, Any]:
        """Put a run's rows and who has which here; what describes them is plain data."""
        own = self._folder / name
        own.mkdir()
        lasting = data.fitted is None  # else the rows were prepared for this run alone
        clients = data.clients
        return {
            "folder": str(self._folder),
            "domains": [
                {
                    "name": domain.name,
                    "x": self._keep(domain.x) if lasting else self._put(domain.x, own),
                    "y": self._put(domain.y, own) if data.schema.renumbered or not lasting else self._keep(domain.y),
                }
                for domain in data.sources
            ],
            "partition": str(clients.partition),
            "clients_per_domain": clients.clients_per_domain,
            "dealt": [[self._put(part.rows, own), self._put(part.offsets, own)] for part in clients.dealt],
            "augment": augment,
        }

    def drop_run(self, name: str) -> None:
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def _keep(self, tensor: Tensor) -> dict[str, Any]:
        if id(tensor) not in self._lasting:
            self._lasting[id(tensor)] = (tensor, self._put(tensor, self._folder))
        return self._lasting[id(tensor)][1]

    def _put(self, tensor: Tensor, folder: Path) -> dict[str, Any]:
        self._written += 1
        path = folder / f"{self._written}.raw"
        if str(tensor.dtype) not in _DTYPES:
            raise ValueError(f"rows of {tensor.dtype} cannot be shared; give {', '.join(_DTYPES)}")
        tensor.contiguous().numpy().tofile(path)
        return {
            "file": str(path.relative_to(self._folder)),
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
        }


def take(folder: Path, described: Mapping[str, Any]) -> Tensor:
    """A tensor from its file, mapped."""
    shape, dtype = tuple(described["shape"]), _DTYPES[described["dtype"]]
    size = torch.Size(shape).numel()
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_file(str(folder / described["file"]), shared=False, size=size, dtype=dtype).view(shape)


def take_population(described: Mapping[str, Any]) -> Population:
    """The clients of a run as `put_run` described them."""
    folder = Path(described["folder"])
    domains = [Domain(d["name"], take(folder, d["x"]), take(folder, d["y"])) for d in described["domains"]]
    train, validation = (
        RowsByClient(take(folder, rows), take(folder, offsets)) for rows, offsets in described["dealt"]
    )
    clients = Clients(
        Partition.parse(described["partition"]), domains, described["clients_per_domain"], train, validation
    )
    return Population(domains, clients, augment=described["augment"])
