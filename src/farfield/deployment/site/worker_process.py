"""The process that holds a site's rows: `python -m farfield.deployment.site.worker_process STATE_FOLDER`.

`farfield client` starts it. It reads the site file and the approval itself, reports when it is ready, and then runs the
messages that the SuperNode on this machine receives.
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

#: Files in the state folder: the settings of this process, and the address of the SuperNode.
SETTINGS, RUNTIME = "site-process.json", "runtime.json"


def main(folder: Path, extend: Callable[[ClientApp], ClientApp] = lambda app: app) -> None:
    """Run messages until `farfield client` ends this process. `extend` adds to the site's app, for a benchmark."""
    settings = json.loads((folder / SETTINGS).read_text())
    import torch

    torch.set_num_threads(1)  # before any fork: a fork would lose torch's other threads
    from farfield.deployment.activity_log import ActivityLog
    from farfield.deployment.flower.fork_executor import ForkExecutor
    from farfield.deployment.flower.own_user_only import secret_in
    from farfield.deployment.flower.private_parts import find, replace
    from farfield.deployment.flower.request_headers import OwnRequests
    from farfield.deployment.manifest.approval import load_approval
    from farfield.deployment.site.client_app import make_app
    from farfield.deployment.site.deployed_site import open_deployed_site
    from farfield.deployment.site.peer_keys import load_identity

    site = open_deployed_site(Path(settings["site"]), load_approval(folder))
    key = settings.get("key")
    identity = load_identity(site.data.site, Path(key) if key else None)
    executor = ForkExecutor(extend(make_app(site, folder, identity)))
    # If there were no such name, Flower's own executor would run what the server sent.
    replace("flwr.supercore.superexec.run_superexec:get_executor", lambda *_, **__: executor)
    OwnRequests(secret_in(Path(settings["secret"]))).install()
    ActivityLog(folder).add("ready", f"{site.data.n} rows of '{site.name}' are read")
    find("flwr.supercore.superexec.run_superexec:run_superexec")(
        runtime_api_address=_supernode_address(folder),
        insecure=True,  # the SuperNode on this machine, by loopback; the secret keeps other users out
        superexec_auth_secret=Path(settings["secret"]).read_bytes(),
        parent_pid=os.getppid(),
    )


def _supernode_address(folder: Path) -> str:
    """Wait until the SuperNode on this machine listens, and return its address."""
    path = folder / RUNTIME
    while not path.exists():
        time.sleep(0.05)
    return str(json.loads(path.read_text())["address"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
