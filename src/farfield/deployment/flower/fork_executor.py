"""Run a site's messages in forks of a warm process, where Flower would start a new Python for each message.

Flower's SuperExec asks the SuperNode for work and hands it to an executor; ours forks. Everything heavy (torch, the
methods, the site's rows) is in memory before the first message, so that a message costs milliseconds and not seconds.
The fork runs Flower's own client process, with one change: the app is the site's, not the one that came with the run.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from flwr.app import Error
from flwr.clientapp import ClientApp
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

from farfield.deployment.flower.poll_intervals import LONGEST_HERE, shorten_object_polling
from farfield.deployment.flower.private_parts import find, replace

_CLIENTAPP = "flwr.supernode.runtime.run_clientapp"


class ForkExecutor:
    """The executor that SuperExec calls: its capacity, the launch of a message, and the end."""

    def __init__(self, app: ClientApp) -> None:
        # Before any fork, so that none has to import it. The app that the server sent is neither unpacked nor imported:
        # if a later Flower did not have these names, replacing them would do nothing, and the server's code would run.
        replace(f"{_CLIENTAPP}:install_from_fab", lambda *_, **__: None)
        replace(f"{_CLIENTAPP}:get_load_client_app_fn", lambda *_, **__: lambda *_, **__: app)
        # Flower sends the text of an exception to the server; it may quote a cell or a path. The code alone goes.
        replace(f"{_CLIENTAPP}:Error", lambda code, reason=None: Error(code=code, reason=""))
        self._run_clientapp = find(f"{_CLIENTAPP}:run_clientapp")
        shorten_object_polling(LONGEST_HERE)
        gc.freeze()  # a fork that collects garbage would copy all of the memory that it shares
        self._children: set[int] = set()

    def get_eligible_capacity(self, supported_task_types: set[Any], **_: Any) -> tuple[set[Any], set[str]]:
        return supported_task_types, set()

    def wait_for_capacity(self, *_: Any, **__: Any) -> None:
        """Return at once: a fork is always possible."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            self._children.clear()  # Flower's exit handlers, inherited, close this executor: it has no children here
            os._exit(_run(lambda: self._client(spec)))
        self._children.add(child)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Collect the forks that have ended."""
        for child in list(self._children):
            if os.waitpid(child, os.WNOHANG)[0]:
                self._children.discard(child)

    def close(self) -> None:
        for child in list(self._children):
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
        self._children.clear()

    def _client(self, spec: ExecutionSpec) -> None:
        self._run_clientapp(
            runtime_api_address=spec.runtime_api_address,
            token=spec.token,
            insecure=spec.insecure,
            certificates=None,
            parent_pid=spec.parent_pid,
            runtime_dependency_install=False,
        )


def _run(work: Callable[[], None]) -> int:
    """Run the fork's work and return its exit code. Flower ends it by SystemExit, and nothing may run after that."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        work()
        return 0
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
