"""Another user of the server's or the site's machine cannot act as the server, nor read what is not theirs."""

from __future__ import annotations

import http.client
import json
import os
import pickle
import shutil
import socket
import sqlite3
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.processes import find_process
from tests.deployment.network import Deployment, deployment

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user"),
    pytest.mark.timeout(900),
]

NOBODY = 65534
#: Answers that mean no: forbidden, unknown, not allowed, too large, malformed.
REFUSED = {400, 401, 403, 404, 405, 413}


def as_nobody(work: Callable[[], Any]) -> Any:
    """Run something in a fork of this process as another user, and return what it returns."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            result = pickle.dumps((True, work()))
        except BaseException as error:
            result = pickle.dumps((False, repr(error)))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(result)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        good, value = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    assert good, value
    return value


@pytest.fixture(scope="module")
def net() -> Iterator[Deployment]:
    """A server that waits for its second site, with the first one connected, in a folder that everybody can enter."""
    folder = Path(tempfile.mkdtemp(prefix="ff-attack-"))
    folder.chmod(0o755)
    before = os.umask(0o022)
    try:
        with deployment(folder / "net", sites=("amber", "birch")) as made:
            made.server()
            made.client("amber")
            made.until("amber joins", lambda: any(row["kind"] == "joined" for row in made.activity("server")))
            yield made
    finally:
        os.umask(before)
        shutil.rmtree(folder)


def state_folder(net: Deployment) -> Path:
    return net.folder / "amber" / ".farfield" / "toy-amber"


def tokens(net: Deployment) -> set[str]:
    """All tokens in the server's database, read as root."""
    found: set[str] = set()
    with sqlite3.connect(f"file:{net.out / 'flower' / 'superlink.db'}?mode=ro", uri=True) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            for column in (column for column in columns if "token" in column):
                values = database.execute(f'SELECT "{column}" FROM "{table}"').fetchall()
                found |= {value for (value,) in values if isinstance(value, str) and len(value) >= 32}
    return found


def call(
    net: Deployment, path: str, headers: dict[str, str], port: int | None = None, method: str = "POST"
) -> tuple[int, bytes]:
    """Send an empty protobuf request, which is a whole one for most of Flower's methods, and return the answer."""
    context = ssl.create_default_context(cafile=net.certs / "ca.crt")
    made: Any = http.client.HTTPSConnection("127.0.0.1", net.port, timeout=30, context=context)
    if port is not None:
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        made.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
        for name, value in {"content-type": "application/protobuf", "content-length": "0", **headers}.items():
            made.putheader(name, value)
        made.endheaders()
        answer = made.getresponse()
        return answer.status, answer.read()
    finally:
        made.close()


def test_nothing_of_the_server_or_the_site_can_be_read(net: Deployment) -> None:
    private = [net.out / "flower", net.out / "run", state_folder(net)]
    keys = [*net.certs.glob("*.key"), *net.folder.glob("*/*.key")]
    inside = [path for folder in private for path in folder.rglob("*")]
    assert {"superlink.db", "secret", "superlink.log", "activity.jsonl"} <= {path.name for path in inside}
    assert keys

    def opened() -> list[str]:
        found = []
        for path in (*private, *inside, *keys):
            try:
                if path.is_dir():
                    os.listdir(path)
                elif path.exists():
                    path.open("rb").close()
                else:
                    continue
                found.append(str(path))
            except PermissionError:
                continue
        return found

    assert as_nobody(opened) == []
    wide = [str(path) for path in (*private, *inside, *keys) if path.lstat().st_mode & 0o077 and not path.is_symlink()]
    assert wide == [], "even if the folder around them were opened"


def test_no_secret_is_on_a_command_line_or_in_a_readable_environment(net: Deployment) -> None:
    secrets = tokens(net) | {(net.out / "flower" / "secret").read_text()}
    secrets |= {(state_folder(net) / "secret").read_bytes().hex()}
    assert len(secrets) >= 3, "the ServerApp has a token"

    def look() -> tuple[int, list[str]]:
        seen, found = 0, []
        for process in Path("/proc").glob("[0-9]*"):
            for file in ("cmdline", "environ"):
                try:
                    text = (process / file).read_bytes().decode(errors="replace")
                except OSError:
                    continue
                seen += file == "cmdline" and str(net.folder) in text
                found += [f"{process}/{file}" for secret in secrets if secret in text]
        return seen, found

    seen, found = as_nobody(look)
    assert seen >= 4, "the server's and the site's processes are there to be looked at"
    assert found == []


def server_tricks(net: Deployment) -> list[tuple[str, dict[str, str]]]:
    """Requests to the server's port, all with the ServerApp's token, as if it had been stolen nevertheless."""
    stolen = {"flwr-task-token": min(tokens(net))}
    secret = {"x-farfield-secret": "0" * 64}
    forged = {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "forwarded": "for=127.0.0.1;by=127.0.0.1"}
    methods = ("acquire-task", "get-nodes", "pull-messages", "push-messages", "pull-task-input", "push-task-output")
    tricks: list[tuple[str, dict[str, str]]] = [(f"/v1/runtime/{name}", stolen) for name in methods]
    tricks += [("/v1/runtime/get-nodes", {**stolen, **more}) for more in (secret, forged, {"host": "localhost"}, {})]
    tricks += [(f"/v1/runtime/{name}", {}) for name in methods]
    for path in (
        "//v1/runtime/get-nodes",
        "/v1//runtime/get-nodes",
        "/v1/fleet/../runtime/get-nodes",
        "/v1/fleet/%2e%2e/runtime/get-nodes",
        "/V1/runtime/get-nodes",
        "/v1/runtime/get-nodes/",
        "/v1/runtime/get-nodes?x=/v1/fleet/",
        f"https://127.0.0.1:{net.port}/v1/runtime/get-nodes",
        "/docs",
        "/openapi.json",
        "/v1/responses",
    ):
        tricks.append((path, stolen))
    for name in ("list-nodes", "register-node", "start-run", "list-runs", "stop-run", "get-login-details"):
        tricks += [(f"/v1/control/{name}", more) for more in ({}, secret, {"authorization": "Bearer x"}, stolen)]
    return tricks


def test_the_servers_port_answers_nobody_else(net: Deployment) -> None:
    own = {"x-farfield-secret": (net.out / "flower" / "secret").read_text()}
    (token,) = tokens(net)
    status, nodes = call(net, "/v1/runtime/get-nodes", {**own, "flwr-task-token": token})
    assert status == 200, nodes
    assert nodes, "the server itself is told its nodes; the requests below are whole ones"
    for path, headers in server_tricks(net):
        for method in ("POST", "GET"):
            status, answer = as_nobody(lambda: call(net, path, headers, method=method))  # noqa: B023
            assert status in REFUSED, (method, path, headers, status, answer)
            assert nodes not in answer


def test_the_sites_port_on_loopback_answers_nobody_else(net: Deployment) -> None:
    address = json.loads((state_folder(net) / "runtime.json").read_text())["address"]
    port = int(address.rpartition(":")[2])
    for path in ("/v1/runtime/acquire-task", "/v1/runtime/pull-task-input", "/v1/runtime/push-messages", "/docs", "/"):
        for headers in ({}, {"x-farfield-secret": "0" * 64}, {"flwr-task-token": "0" * 64}):
            for method in ("POST", "GET"):
                status, answer = as_nobody(lambda: call(net, path, headers, port, method))  # noqa: B023
                assert status in REFUSED, (method, path, headers, status, answer)


def test_the_processes_can_not_be_stopped_or_looked_into(net: Deployment) -> None:
    server = find_process("farfield", "server", str(net.file))

    def disturb() -> list[str]:
        done = []
        for name, act in (
            ("signal", lambda: os.kill(server, 15)),
            ("memory", lambda: open(f"/proc/{server}/mem", "rb").close()),
            ("files", lambda: os.listdir(f"/proc/{server}/fd")),
        ):
            try:
                act()
                done.append(name)
            except PermissionError:
                continue
        return done

    assert as_nobody(disturb) == []


def test_nobody_takes_the_port_of_a_site_before_the_site_does(net: Deployment) -> None:
    """The port is on a command line before Flower listens there; whoever sits at it would be shown the secret."""

    def take() -> str:
        until = time.monotonic() + 240
        while time.monotonic() < until:
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = entry.read_bytes().decode(errors="replace").split("\0")
                except OSError:
                    continue
                if "farfield.deployment.flower.supernode" in words and f"{net.folder}/birch/" in " ".join(words):
                    with socket.socket() as listener:
                        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        try:
                            listener.bind(("127.0.0.1", int(words[words.index("--port") + 1])))
                            listener.listen()
                        except OSError as error:
                            return str(error.strerror)
                        while True:
                            heard = listener.accept()[0].recv(4000)
                            if heard:
                                return heard.decode(errors="replace")
            time.sleep(0.01)
        return "there is no such process"

    client = net.client("birch")
    try:
        assert as_nobody(take) == "Address already in use"
        net.until("birch joins", lambda: sum(row["kind"] == "joined" for row in net.activity("server")) == 2)
    finally:
        net.kill(client)
