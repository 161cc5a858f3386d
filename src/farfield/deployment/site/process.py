"""The process that has a site's rows: `python -m farfield.deployment.site.process STATE_FOLDER`, started by the client.

It reads the site file and the approval itself, tells when it is ready, and then works for the SuperNode beside it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

#: In the state folder: what `farfield client` tells its processes.
SETTINGS, RUNTIME = "site-process.json", "runtime.json"


def main(folder: Path, extend: Callable[[ClientApp], ClientApp] = lambda app: app) -> None:
    """Work until the client ends it. `extend` adds to the site's app; a benchmark does that."""
    settings = json.loads((folder / SETTINGS).read_text())
    import torch

    torch.set_num_threads(1)  # before any fork, so that no thread of torch's is lost in one
    from flwr.supercore.superexec import run_superexec as superexec

    from farfield.deployment.activity import Activity
    from farfield.deployment.flower.fork_executor import ForkExecutor
    from farfield.deployment.manifest.manifest import load_approval
    from farfield.deployment.site.app import make_app
    from farfield.deployment.site.site import open_deployed

    site = open_deployed(Path(settings["site"]), load_approval(folder))
    executor = ForkExecutor(extend(make_app(site, folder)))
    if not callable(getattr(superexec, "get_executor", None)):  # else Flower's own would run what the server sent
        raise RuntimeError("this version of Flower has no 'get_executor' to replace")
    superexec.get_executor = lambda *_, **__: executor  # type: ignore[attr-defined]
    Activity(folder).add("ready", f"{site.data.n} rows of '{site.name}' are read")
    superexec.run_superexec(
        runtime_api_address=_runtime(folder),
        insecure=True,  # the SuperNode on this machine, by loopback; the secret keeps other users out
        superexec_auth_secret=Path(settings["secret"]).read_bytes(),
        parent_pid=os.getppid(),
    )


def _runtime(folder: Path) -> str:
    """Where the SuperNode beside this process listens, once it does."""
    path = folder / RUNTIME
    while not path.exists():
        time.sleep(0.05)
    return str(json.loads(path.read_text())["address"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
