"""Sites and their server without processes: the sites' apps answer in this process."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.manifest.manifest import make_manifest, own_spec
from farfield.deployment.server.ask_sites import Network
from farfield.deployment.server.joining import JoinedSites, wait_for_sites
from farfield.deployment.site.client_app import make_app
from farfield.deployment.site.data import open_site
from farfield.deployment.site.deployed_site import DeployedSite
from farfield.deployment.site.site_file import read_site

NAMES = ("amber", "birch", "cedar")


class Sites:
    """A Grid whose nodes are site apps in this process. `here` are the nodes that are connected."""

    def __init__(self, folder: Path, federation: FederationFile, names: Iterable[str] = NAMES) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.folder, self.federation = folder, federation
        self.apps: dict[int, Any] = {}
        self.here: set[int] = set()
        self.silent: set[int] = set()
        self._ready: list[Message] = []
        for number, name in enumerate(names, 1):
            self.start(number, name)

    def start(self, node: int, name: str, *, columns: int = 4, folder: str | None = None, **site: Any) -> None:
        home = self.folder / (folder or name)
        home.mkdir(exist_ok=True)
        rows = np.random.default_rng(node)
        np.savez(home / "rows.npz", x=rows.normal(size=(30, columns)), y=np.arange(30) % 3)
        self.start_with_rows(node, name, home, **site)

    def start_with_rows(self, node: int, name: str, home: Path, **site: Any) -> None:
        """Start the site whose rows are in its folder as `rows.npz`."""
        (home / "site.toml").write_text(tomli_w.dumps({"name": name, "data": "rows.npz", **site}))
        data = open_site(read_site(home))
        spec = own_spec(self.federation, data.schema)
        manifest = make_manifest(
            self.federation, schema=data.schema, spec=spec, role=data.site.role, limits=data.site.limits
        )
        self.apps[node] = make_app(DeployedSite(data, manifest), home)
        self.here.add(node)

    def notices(self, name: str) -> list[str]:
        path = self.folder / name / "activity.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [row["text"] for row in rows if row["kind"] in ("turned-away", "finished", "failed")]

    # What a server sees of Flower's Grid.

    def get_node_ids(self) -> Iterable[int]:
        return list(self.here)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            ids.append(message.metadata.message_id)
            node = message.metadata.dst_node_id
            if node in self.here and node not in self.silent:
                self._ready.append(self.apps[node](message, context()))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready, self._ready = self._ready, []
        return ready


def context() -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


def together(sites: Sites, seconds: float = 0.0, names: dict[int, str] | None = None) -> tuple[JoinedSites, list[str]]:
    reported: list[str] = []
    known = names or {}
    made = wait_for_sites(
        Network(sites),  # type: ignore[arg-type]
        sites.federation,
        seconds,
        lambda kind, text: reported.append(text),
        lambda: known,
    )
    return made, reported


def ask(sites: Sites, node: int, question: str, given: dict[str, Any]) -> tuple[Any, str]:
    (answer,) = Network(sites).ask([node], question, given).values()  # type: ignore[arg-type]
    return answer.value, answer.problem
