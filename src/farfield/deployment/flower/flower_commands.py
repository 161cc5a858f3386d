"""Flower's commands of a server, started as Farfield needs them.

    python -P flower_commands.py SECRET_FILE link …      # options as flower-superlink, behind the gate
    python -P flower_commands.py SECRET_FILE exec …      # options as flower-superexec
    python -P flower_commands.py SECRET_FILE flwr        # one command per line of input: a JSON list of options of flwr

It runs as a file and imports only its neighbours, not farfield: importing farfield would import torch, which takes
seconds and memory in each of the processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

if __name__ == "__main__":
    # The neighbours as a package of their own.
    _neighbours = ModuleType("farfield_flower")
    _neighbours.__path__ = [str(Path(__file__).parent)]
    sys.modules["farfield_flower"] = _neighbours
    __package__ = "farfield_flower"

from .gate import Gate, ready_file, refused_file
from .hurried_protocol import MOST_CONNECTIONS, ask_for_open_files, hurried_protocol
from .listening import listen_as_told
from .private_parts import find, replace
from .request_headers import OwnRequests
from .superlink import write_less_to_disk

#: The module that runs the ServerApp.
SERVERAPP = "farfield.deployment.flower.serverapp"
#: Begins the line after the output of a command, which has the command's code.
END_OF_OUTPUT = "\0"


class ServerAppExecutor:
    """Starts the ServerApp with its token in a pipe: every user of the machine can read a command line."""

    def __init__(self, secret_file: Path) -> None:
        self._secret_file = secret_file
        self._accepted = find("flwr.supercore.superexec.executor.types:LaunchResult.accepted")
        self._server_app = find("flwr.supercore.constant:TaskType").SERVER_APP
        self._running: list[subprocess.Popen[bytes]] = []

    def get_eligible_capacity(self, supported_task_types: set[Any], **_: Any) -> tuple[set[Any], set[str]]:
        """Return the kinds of tasks that can be started: a ServerApp, and none of Flower's others."""
        return supported_task_types & {self._server_app}, set()

    def wait_for_capacity(self, *_: Any, **__: Any) -> None:
        """Return at once."""

    def launch(self, spec: Any) -> Any:
        command = [sys.executable, "-P", "-m", SERVERAPP, str(self._secret_file)]
        command += ["--runtime-api-address", spec.runtime_api_address]
        if spec.insecure:
            command += ["--insecure"]
        elif spec.root_certificates_path is not None:
            command += ["--root-certificates", spec.root_certificates_path]
        if spec.parent_pid is not None:
            command += ["--parent-pid", str(spec.parent_pid)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(f"{spec.token}\n".encode())
        self._running.append(process)
        return self._accepted()

    def reconcile(self) -> None:
        """Collect a ServerApp that has ended: until then its process would count as alive."""
        self._running = [process for process in self._running if process.poll() is None]

    def close(self) -> None:
        """Do nothing: the ServerApp is in the group of processes that ends with this one."""


def serve(secret_file: Path) -> None:
    """Run a SuperLink behind the gate."""
    from starlette.middleware import Middleware

    gate = Middleware(
        Gate, secret=secret_file.read_text(), ready=ready_file(secret_file), refused=refused_file(secret_file)
    )
    replace("flwr.superlink.extensions:get_middleware", lambda: (gate,))
    listen_as_told()
    run = find("flwr.superlink.cli.flower_superlink:uvicorn.run")

    def limited(**given: Any) -> None:
        # An address in a header would be believed if it came through a proxy on this machine.
        # A line per request would let a stranger fill the disk. Who is not let in is on the operator's console.
        given |= {"proxy_headers": False, "access_log": False}
        limits = {"http": hurried_protocol(), "limit_concurrency": MOST_CONNECTIONS}
        # A websocket would leave the limits of its connection behind, and nothing here speaks it.
        run(**given, **limits, ws="none")

    replace("flwr.superlink.cli.flower_superlink:uvicorn.run", limited)
    write_less_to_disk()
    ask_for_open_files()
    find("flwr.superlink.cli:flower_superlink")()


def execute(secret_file: Path) -> None:
    """Run a SuperExec that starts the ServerApp."""
    OwnRequests(secret_file.read_text()).install()
    executor = ServerAppExecutor(secret_file)
    replace("flwr.supercore.superexec.run_superexec:get_executor", lambda *_, **__: executor)
    find("flwr.supercore.cli.flower_superexec:flower_superexec")()


def commands(secret_file: Path) -> None:
    """Run Flower's command for each line of input, with the secret in every request."""
    OwnRequests(secret_file.read_text()).install()
    flwr = find("flwr.cli.app:app")
    for line in sys.stdin:
        sys.argv = ["flwr", *json.loads(line)]
        try:
            flwr()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
        print(f"{END_OF_OUTPUT}{code}", flush=True)


def main() -> None:
    _, file, which, *arguments = sys.argv
    sys.argv = [which, *arguments]
    {"link": serve, "exec": execute, "flwr": commands}[which](Path(file))


if __name__ == "__main__":
    main()
