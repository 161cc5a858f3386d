"""The ServerApp of a deployment: Flower starts it for a run, with the output folder in its configuration."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from farfield.deployment.flower import request_headers
    from farfield.deployment.flower.poll_intervals import shorten_object_polling
    from farfield.deployment.server.bounded_grid import BoundedGrid
    from farfield.deployment.server.run import serve

    shorten_object_polling()
    assert request_headers.installed is not None, "farfield.deployment.flower.serverapp starts this process"
    serve(BoundedGrid(grid, request_headers.installed), Path(str(context.run_config["out"])))
