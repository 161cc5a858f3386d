"""A ServerApp that is farfield's own, with an empty round before each of its rounds.

Both go over the same SuperLink, SuperNodes and site processes within the same seconds, so that whatever else the
machine does slows both. A round's time runs from one beginning to the next: exchanges, server step, records,
checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from empty import empty_round, exchanges
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from farfield.deployment.flower.poll_intervals import shorten_object_polling
from farfield.deployment.server import run as server_run
from farfield.deployment.server.bounded_grid import bounded
from farfield.deployment.server.engine import SitesFederation
from farfield.federation.execution import Outcome
from farfield.models import ModelState

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    out, ours = Path(str(context.run_config["out"])), bounded(grid)
    told = json.loads((out / "flower" / "benchmark.json").read_text())

    class InTurns(SitesFederation):
        """The deployed sites, with a watch."""

        begun: float | None = None
        client_seconds = waiting_seconds = 0.0

        def begin(self, round: int, cohort: Sequence[int]) -> None:
            now = time.perf_counter()
            if self.begun is not None:
                sites = (self.traffic.client_seconds - self.client_seconds) / len(self._nodes)
                waited = self.traffic.waiting_seconds - self.waiting_seconds
                _note(out, {"ours": now - self.begun, "sites": sites, "waiting": waited})
                self.client_seconds, self.waiting_seconds = self.traffic.client_seconds, self.traffic.waiting_seconds
            layout = self.layout
            pair = exchanges(layout.parameters, layout.head.stop - layout.head.start)
            ours.expect(max(exchange.up for exchange in pair), 0)
            _note(out, {"floor": empty_round(ours, [node.id for node in self._nodes], pair)})
            self.begun = time.perf_counter()
            super().begin(round, cohort)

        def _outcomes(
            self, phase: str, model: ModelState, shared: dict[str, Any], clients: Sequence[int]
        ) -> Iterator[Outcome]:
            if self._round == told["rounds_to_compare"] + 1 and phase == "head_gradient":
                np.save(out / "flower" / "compared.npy", model.parameters.numpy())
            return super()._outcomes(phase, model, shared, clients)

    shorten_object_polling()
    server_run.SitesFederation = InTurns
    server_run.serve(ours, out)


def _note(out: Path, row: dict[str, float]) -> None:
    with open(out / "flower" / "timings.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
