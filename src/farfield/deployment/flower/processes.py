"""Start Flower's processes with their output in files, and end them with everything that they have started."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from farfield.deployment.flower.private_files import UMASK, for_this_user_only
from farfield.errors import UserError
from farfield.records import RecordsError
from farfield.records.run import sole_writer

#: Seconds that a process may take to end by itself.
END_SECONDS = 10.0
END_WITH_PARENT = Path(__file__).with_name("end_with_parent.py")
#: The groups of processes that run, by the number of their first process.
_RUNNING: set[int] = set()


class ProcessError(UserError):
    """A process that did not start, or has ended."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of Flower's processes: no telemetry, and the commands of this Python installation."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "PYTHONUNBUFFERED": "1",
        # One thread gives the same bits on every machine, and leaves the other cores to the site.
        "OMP_NUM_THREADS": "1",
    }
    # Whoever trusts a proxy's word on who is asking would take any request for one of this machine.
    around = {name: value for name, value in os.environ.items() if name != "FORWARDED_ALLOW_IPS"}
    return {**around, **quiet, "PATH": path, "FLWR_HOME": str(home), **more}


class Process:
    """A process in its own group: what it starts ends with it, and the whole group ends if this process is killed."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str], files: Sequence[int] = ()
    ) -> None:
        """Start a command. `files` are open files that it is handed, by their numbers."""
        self.name, self.log = name, log
        with for_this_user_only(), open(log, "ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(END_WITH_PARENT), str(os.getpid()), *command],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=dict(env),
                start_new_session=True,
                umask=UMASK,
                pass_fds=tuple(files),
            )
        _RUNNING.add(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raise ProcessError if it has ended."""
        if self.code is not None:
            raise ProcessError(
                f"{self.name} has ended with code {self.code}; the end of '{self.log}': {self.log_tail()}"
            )

    def log_tail(self, lines: int = 6) -> str:
        """Return the last lines of its output, in one line."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        printed = [line.strip() for line in text.splitlines() if line.strip()]
        return " / ".join(printed[-lines:])[-100 * lines :] or "with nothing"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ask it to end, then kill it and everything that it has started."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()
        _RUNNING.discard(self._process.pid)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def kill_all() -> None:
    """Kill all processes that were started here and still run, without waiting for them."""
    for group in list(_RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def free_port() -> int:
    """Return a port on loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def own_port() -> socket.socket:
    """Return a socket that listens at a free port on loopback.

    A process that is handed this socket has the port for certain. A port that is only named can be taken by another
    user of the machine before the process listens there, and whoever connects would talk to that user.
    """
    listener = socket.socket()
    try:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def need_free_address(host: str, port: int) -> None:
    """Refuse an address that is in use, or that is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ProcessError(
                f"cannot listen at {host}:{port} ({error.strerror}); end what runs there, change 'server' in the "
                "federation file, or, where that address only leads to this machine, listen at another with --bind"
            ) from None


def wait_for_port(host: str, port: int, process: Process, seconds: float = 60.0) -> None:
    """Wait until the process answers at a port. Raises ProcessError if it ends, or does not answer in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        process.check()
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            return
        time.sleep(0.1)
    raise ProcessError(f"{process.name} does not answer at {host}:{port} after {seconds:g} s; see '{process.log}'")


def wait_for_answer(port: int, process: Process, seconds: float = 60.0) -> None:
    """Wait until the process answers a request at its port on loopback, which it was handed and which is open before.

    Raises ProcessError if it ends, or does not answer in time.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        process.check()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as asking:
            asking.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            if asking.recv(1):
                return
        time.sleep(0.1)
    raise ProcessError(f"{process.name} does not answer at port {port} after {seconds:g} s; see '{process.log}'")


@contextlib.contextmanager
def exclusive(folder: Path, problem: str) -> Iterator[None]:
    """Lock a folder for this command. Raises ProcessError with the sentence `problem` if another command has it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(sole_writer(folder, patience=0.0))
        except RecordsError:
            raise ProcessError(problem) from None
        yield
