"""The example's hospitals and their server in this process, with the sites' real apps and the server's real run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.manifest.manifest import make_manifest, own_spec
from farfield.deployment.server.output_folder import FLOWER
from farfield.deployment.server.run import ServerSettings, _serve
from farfield.deployment.site.client_app import make_app
from farfield.deployment.site.data import open_site
from farfield.deployment.site.deployed_site import DeployedSite
from farfield.deployment.site.site_file import read_site
from studies.reconstruction import TRAINING, write_hospitals
from tests.deployment.sites_in_process import Sites


class Hospitals(Sites):
    """A Grid whose nodes are the three training hospitals of the example, with made-up or the published rows."""

    def __init__(self, folder: Path, algorithm: str, rounds: int, made_up: bool = True, **settings: Any) -> None:
        write_hospitals(folder, made_up)
        content = {"path": folder / "heart.toml", "name": "heart", "server": "127.0.0.1:9443", "sites": len(TRAINING)}
        content |= {"algorithm": algorithm, "rounds": rounds, "deadline": 30.0, "set": settings}
        super().__init__(folder, FederationFile.model_validate(content), TRAINING)

    def start(self, node: int, name: str, **_: Any) -> None:
        """Start a hospital's app, with what its state folder holds."""
        data = open_site(read_site(self.folder / name))
        spec = own_spec(self.federation, data.schema)
        limits = data.site.limits
        manifest = make_manifest(self.federation, schema=data.schema, spec=spec, role=data.site.role, limits=limits)
        self.apps[node] = make_app(DeployedSite(data, manifest), self.folder / name)
        self.here.add(node)

    def run(self, out: str = "model", run: str = "run") -> dict[str, Any]:
        """Make the whole run, or the rest of it, as the ServerApp does; return its result."""
        place = self.folder / out
        for part in (place / FLOWER, place / "run"):
            part.mkdir(parents=True, exist_ok=True)
        settings = ServerSettings(federation=self.federation, run=run, wait=1.0, start="s", pid=os.getpid())
        return _serve(self, place, settings, ActivityLog(place / FLOWER))  # type: ignore[arg-type]

    def refusals(self) -> list[str]:
        """Return what the hospitals have refused, as their operators read it."""
        found = []
        for name in TRAINING:
            path = self.folder / name / "activity.jsonl"
            rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            found += [str(row["text"]) for row in rows if row["kind"] == "refused"]
        return found
