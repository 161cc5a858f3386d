"""The ServerApp of a deployment: Flower starts it for a run, with the output folder in its configuration."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from farfield.deployment.flower.poll_intervals import shorten_object_polling
    from farfield.deployment.server.bounded_grid import bounded
    from farfield.deployment.server.run import serve

    shorten_object_polling()
    serve(bounded(grid), Path(str(context.run_config["out"])))
