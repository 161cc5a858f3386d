"""What both deployments of the benchmark train: rows, model, settings; and the certificates and keys of a network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomli_w

from farfield.deployment.credentials.create import make_authority, make_node_key, make_server_certificate
from farfield.deployment.flower.processes import free_port
from farfield.models import ModelSpec, build_model
from farfield.tasks.clients.validation import split_domain
from farfield.tasks.user_data.arrays import array_domain

SITES = ("amber", "birch", "cedar")
#: All rows of a site are one mini-batch, so that both apps do the same whatever the order in which they draw.
ROWS, BATCH, EPOCHS, LR, GAMMA, UPSILON, VALIDATION = 64, 64, 2, 0.05, 0.5, 0.5, 0.1
#: 99,126 parameters, 2,570 of them in the head.
SPEC = ModelSpec(featurizer="mlp", input_shape=(1, 8, 8), outputs=10, hidden=(300, 256))


@dataclass(frozen=True)
class Network:
    """A folder with certificates, keys and an address."""

    folder: Path
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def certs(self) -> Path:
        return self.folder / "certs"

    def site(self, name: str) -> Path:
        return self.folder / name

    def key(self, name: str) -> Path:
        return self.site(name) / f"{name}.key"

    def public(self, name: str) -> Path:
        return self.site(name) / f"{name}.pub"


def make_network(folder: Path) -> Network:
    network = Network(folder, free_port())
    network.certs.mkdir(parents=True)
    make_authority(network.certs, 2)
    make_server_certificate(network.certs, ["127.0.0.1"], 2)
    for name in SITES:
        network.site(name).mkdir()
        make_node_key(network.site(name), name)
    return network


def rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten classes that lie a little differently at each site."""
    generator = np.random.default_rng(number)
    y = np.arange(ROWS) % SPEC.outputs
    centres = np.random.default_rng(99).normal(size=(SPEC.outputs, *SPEC.input_shape)) + 0.3 * number
    return (centres[y] + generator.normal(size=(ROWS, *SPEC.input_shape))).astype(np.float32), y.astype(np.int64)


def training_rows(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Those of a site's rows that farfield trains on."""
    x, y = rows(number)
    training, _ = split_domain(array_domain(SITES[number], x, y), VALIDATION, 0, "classification")
    return x[training.numpy()], y[training.numpy()]


def initial() -> np.ndarray:
    return build_model(SPEC, 0).state().parameters.numpy()


def make_farfield(folder: Path, rounds: int) -> Network:
    """A federation file, site files and rows, as operators would write them."""
    network = make_network(folder)
    layout = build_model(SPEC, 0).layout
    head = layout.head.stop - layout.head.start
    (folder / "sizes.json").write_text(json.dumps({"parameters": layout.parameters, "head": head}))
    settings = {"lr": LR, "batch_size": BATCH, "local_epochs": EPOCHS, "gamma": GAMMA, "upsilon": UPSILON}
    settings |= {"model": {"featurizer": SPEC.featurizer, "hidden": list(SPEC.hidden)}}
    federation = {
        "name": "benchmark",
        "server": network.address,
        "algorithm": "fediir",
        "rounds": rounds,
        "sites": len(SITES),
        "quorum": 1.0,
        "evaluate_every": rounds,
        "set": settings,
    }
    (folder / "federation.toml").write_text(tomli_w.dumps(federation))
    for number, name in enumerate(SITES):
        x, y = rows(number)
        np.savez(network.site(name) / "rows.npz", x=x, y=y)
        site = {"name": name, "data": "rows.npz", "validation": VALIDATION}
        (network.site(name) / "site.toml").write_text(tomli_w.dumps(site))
    return network


def make_untuned(folder: Path) -> Network:
    network = make_network(folder)
    np.save(folder / "initial.npy", initial())
    for number, name in enumerate(SITES):
        x, y = training_rows(number)
        np.savez(network.site(name) / "rows.npz", x=x, y=y)
    return network
