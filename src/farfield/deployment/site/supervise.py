"""`farfield client`: start a site's SuperNode and the process that holds its rows, and watch both to the end."""

from __future__ import annotations

import math
import os
import secrets
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.credentials.verify import check_authority, check_private_key
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.flower.gate import READY
from farfield.deployment.flower.private_files import for_this_user_only, make_private
from farfield.deployment.flower.processes import (
    Process,
    ProcessError,
    environment,
    exclusive,
    is_loopback,
    own_port,
    wait_for_answer,
)
from farfield.deployment.flower.supernode import MOST_VARIABLE, SOCKET_VARIABLE
from farfield.deployment.site import worker_process as site_process
from farfield.errors import UserError
from farfield.records.atomic import write_json

#: Seconds in which the site's process must have read its rows.
READ_SECONDS = 600.0
#: Seconds for the last reply to go out before the processes are ended.
LAST_REPLY_SECONDS = 2.0
#: Seconds for which Flower may still count a lost node as connected.
STILL_CONNECTED = 75.0
#: Seconds before a SuperNode is started again; they double at a site that stays, up to the longest.
PAUSE_SECONDS, LONGEST_PAUSE = 5.0, 60.0
#: Parts of Flower's messages about a key that is not registered.
_UNKNOWN_KEY = ("unauthenticated", "permission", "not registered", "public key", "failed to activate")
#: What a SuperNode prints when it ends by itself: Flower lets it do so if the server stops recognising its key.
_ENDED = "supernode terminated gracefully"
#: The command that reads a site's rows and works on them; the state folder is added to it.
WORKER = (sys.executable, "-m", "farfield.deployment.site.worker_process")
#: Called with each row of the activity log, for the operator.
Show = Callable[[dict[str, Any]], None]


class ClientError(UserError):
    """A site that cannot join, in one sentence for its operator."""


@dataclass(frozen=True)
class Credentials:
    """The authority that a site trusts, and its own private key; both None for an open server on loopback."""

    authority: Path | None
    key: Path | None

    @property
    def insecure(self) -> bool:
        return self.authority is None


def check_credentials(federation: FederationFile, credentials: Credentials) -> None:
    """Refuse credentials that cannot work or are not safe, before anything is started."""
    if credentials.insecure:
        if not is_loopback(federation.host):
            raise ClientError(
                f"--insecure is for a server on this machine alone, and '{federation.server}' is not; ask its operator "
                "for ca.crt and give it with --ca"
            )
        return
    if credentials.key is None:
        raise ClientError("a site needs its private key to be let in; make one with 'farfield certs node', give --key")
    for path, what in ((credentials.authority, "--ca"), (credentials.key, "--key")):
        if path is None or not path.is_file():
            raise ClientError(f"there is no file '{path}' for {what}")
    assert credentials.authority is not None
    check_authority(credentials.authority)
    check_private_key(credentials.key)


def check_server(
    federation: FederationFile, credentials: Credentials, seconds: float, *, show: Show = lambda _: None
) -> None:
    """Check that the server answers and is trusted. Waits up to `seconds` for one that does not answer yet."""
    until, told = time.monotonic() + seconds, False
    while True:
        try:
            with socket.create_connection((federation.host, federation.port), timeout=5.0) as plain:
                if credentials.authority is None:
                    _need_ready(plain, federation)
                    return
                context = ssl.create_default_context(cafile=str(credentials.authority))
                with context.wrap_socket(plain, server_hostname=federation.host) as secured:
                    _need_ready(secured, federation)
                return
        except ssl.SSLCertVerificationError as error:
            raise ClientError(
                f"the server at {federation.server} is not trusted: {error.verify_message}; it must have a certificate "
                f"for '{federation.host}' that is signed by '{credentials.authority}'"
            ) from None
        except OSError as error:
            # A router that forwards a port to a server that is away accepts a connection and ends it at once.
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                raise ClientError(f"what answers at {federation.server} does not speak TLS ({error.reason})") from None
            if time.monotonic() >= until:
                raise ClientError(
                    f"no server answers at {federation.server} ({error.strerror or error}); is it running, and is "
                    "'server' in the federation file its address? With --wait SECONDS a site waits for it"
                ) from None
            if not told:
                told = True
                why = error.strerror or error
                show({"kind": "waiting", "text": f"no server answers at {federation.server} yet ({why}); waiting"})
            time.sleep(0.5)


def _need_ready(connection: socket.socket, federation: FederationFile) -> None:
    """Raise ConnectionError while the server registers keys: it would not let in a site that connects now."""
    connection.sendall(f"GET {READY} HTTP/1.1\r\nHost: {federation.server}\r\nConnection: close\r\n\r\n".encode())
    answer = connection.recv(1000).decode(errors="replace").split("\r\n")[0]
    if " 503" in answer:
        raise ConnectionError("it is still starting")
    if " 200" not in answer:
        raise ClientError(f"what answers at {federation.server} is no farfield server")


def join(
    federation: FederationFile,
    site: Path,
    folder: Path,
    credentials: Credentials,
    *,
    show: Show = lambda _: None,
    stay: bool = False,
    worker: Sequence[str] = WORKER,
) -> None:
    """Take part until the run is finished; with `stay`, in the next runs too. Waits for a server that was killed.

    Raises ClientError if the site is turned away.
    """
    make_private(folder)  # its records quote the site's data where something went wrong
    problem = f"another 'farfield client' is running with the state in '{folder}'; end it first"
    with for_this_user_only(), exclusive(folder, problem):
        home = folder / "home"
        home.mkdir(exist_ok=True)
        secret = folder / "secret"
        secret.unlink(missing_ok=True)
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        runtime = folder / site_process.RUNTIME
        runtime.unlink(missing_ok=True)
        key = None if credentials.key is None else str(credentials.key.resolve())
        write_json(folder / site_process.SETTINGS, {"site": str(site.resolve()), "secret": str(secret), "key": key})
        activity = ActivityLog(folder)
        activity.skip_existing()
        env = environment(home)
        with Process("the site's process", [*worker, str(folder)], folder / "site.log", env) as rows, own_port() as at:
            _until_ready(rows, activity, show)
            port = int(at.getsockname()[1])
            command = _supernode(federation, credentials, port, secret)
            limited = {**env, MOST_VARIABLE: str(_most_bytes(folder)), SOCKET_VARIABLE: str(at.fileno())}
            with _SuperNode(command, folder / "node.log", limited, [at.fileno()], stay) as node:
                wait_for_answer(port, node)
                write_json(runtime, {"address": f"127.0.0.1:{port}"})
                _watch(federation, node, rows, activity, show, stay)


def _most_bytes(folder: Path) -> int:
    """Return the most bytes of one message of the server, by what was approved."""
    from farfield.deployment.manifest.approval import load_approval
    from farfield.deployment.site.sizes import most_wire_bytes

    approved = load_approval(folder)
    return most_wire_bytes(approved, approved.limits)


class _SuperNode(Process):
    """A SuperNode. After a power cut Flower counts the lost one as connected for a minute and lets no second one in."""

    def __init__(
        self, command: Sequence[str], log: Path, env: Mapping[str, str], files: Sequence[int], stay: bool = False
    ) -> None:
        self._again = command, log, env, files
        self._until = time.monotonic() + (math.inf if stay else STILL_CONNECTED)
        self._stay, self._pause = stay, PAUSE_SECONDS
        super().__init__("Flower's SuperNode", command, log, env, files)

    def restart_if_turned_away(self) -> bool:
        """Start it once more if it was turned away for that reason, and return whether it was.

        A site that stays starts it again for every reason and without end, at growing intervals.
        """
        turned_away = "failed to activate" in self.log_tail(20).lower()
        if time.monotonic() > self._until or not (turned_away or self._stay):
            return False
        self.end()
        time.sleep(self._pause)
        if self._stay:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        super().__init__("Flower's SuperNode", *self._again)
        return True


def _supernode(federation: FederationFile, credentials: Credentials, runtime: int, secret: Path) -> list[str]:
    command = [sys.executable, "-m", "farfield.deployment.flower.supernode", str(secret)]
    command += ["--superlink", federation.server]
    command += ["--isolation", "process", "--host", "127.0.0.1", "--port", str(runtime)]
    command += ["--superexec-auth-secret-file", str(secret)]
    if credentials.authority is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(credentials.authority.resolve())]
    assert credentials.key is not None
    return [*command, "--auth-supernode-private-key", str(credentials.key.resolve())]


def _until_ready(worker: Process, activity: ActivityLog, show: Show) -> None:
    until = time.monotonic() + READ_SECONDS
    while time.monotonic() < until:
        worker.check()
        for row in activity.new_rows():
            show(row)
            if row["kind"] == "ready":
                return
        time.sleep(0.05)
    raise ProcessError(f"the site's process has not read its rows after {READ_SECONDS:g} s; see '{worker.log}'")


def _watch(
    federation: FederationFile, node: _SuperNode, worker: Process, activity: ActivityLog, show: Show, stay: bool
) -> None:
    while True:
        for row in activity.new_rows():
            if row["kind"] in ("turned-away", "failed") and not (stay and row["kind"] == "failed"):
                time.sleep(LAST_REPLY_SECONDS)
                raise ClientError(str(row["text"]))
            show(row)
            if row["kind"] == "finished" and not stay:
                time.sleep(LAST_REPLY_SECONDS)
                return
        worker.check()
        if node.code is not None:
            if not node.restart_if_turned_away():
                raise ClientError(_why_left(federation, node))
            show(
                {
                    "kind": "waiting",
                    "text": "the server does not let this site in yet, because it does not know its key or still takes "
                    "it for connected; trying again",
                }
            )
        time.sleep(0.2)


def _why_left(federation: FederationFile, node: Process) -> str:
    printed = node.log_tail(14)
    if _ENDED in printed.lower():
        return (
            f"the server at {federation.server} does not let this site in any more: its key was removed or replaced "
            "there, or this machine's clock has become wrong; ask its operator"
        )
    if any(sign in printed.lower() for sign in _UNKNOWN_KEY):
        return (
            f"the server at {federation.server} does not know this site's key, another client is connected with it, or "
            "this machine's clock is wrong; send the server's operator the .pub file, to be given with --key"
        )
    return f"Flower's SuperNode has ended with code {node.code}; the end of '{node.log}': {printed}"
