"""What is too large is not taken into memory: not from strangers, and not from a site whose reply was declared small.

FARFIELD_ATTACK_MB makes the messages larger than the 200 megabytes of the suite.
"""

from __future__ import annotations

import base64
import datetime
import http.client
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.oversized_site import BYTES
from tests.attacks.processes import find_process, memory
from tests.deployment import network
from tests.deployment.network import Deployment, deployment

pytest.importorskip("flwr")
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SIZE = int(os.environ.get("FARFIELD_ATTACK_MB", "200")) * 1_000_000
#: Megabytes by which a process may have grown at any time; it holds buffers, and it works for others meanwhile.
GROWTH = 120.0
PIECE = b"\0" * 65536


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A server that waits for a site that never comes."""
    with deployment(tmp_path_factory.mktemp("attack") / "net", sites=("amber", "birch")) as made:
        made.server()
        made.until("the server starts", lambda: any(row["kind"] == "started" for row in made.activity("server")))
        yield made


def superlink(net: Deployment) -> int:
    return find_process("--database", str(net.out), " link ")


def signed(key: Path | None) -> dict[str, str]:
    """The headers by which a node shows that it has a key; with None, a key that nobody knows."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message

    private: Any = generate_key_pairs()[0] if key is None else load_ssh_private_key(key.read_bytes(), None)
    stamp = datetime.datetime.now(datetime.UTC).isoformat()
    return {
        "flwr-public-key": base64.b64encode(public_key_to_bytes(private.public_key())).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": base64.b64encode(sign_message(private, stamp.encode())).decode(),
    }


def post(net: Deployment, path: str, headers: dict[str, str], chunked: bool) -> tuple[int | None, int]:
    """Send zeros until the server has enough, and return its answer (None if it only hung up) and what it took."""
    context = ssl.create_default_context(cafile=net.certs / "ca.crt")
    connection = http.client.HTTPSConnection("127.0.0.1", net.port, timeout=60, context=context)
    connection.putrequest("POST", path)
    length = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(SIZE)}
    for name, value in {"content-type": "application/protobuf", **length, **headers}.items():
        connection.putheader(name, value)
    sent = 0
    try:
        connection.endheaders()
        while sent < SIZE:
            connection.send(b"%x\r\n%s\r\n" % (len(PIECE), PIECE) if chunked else PIECE)
            sent += len(PIECE)
    except OSError:
        pass
    try:
        return connection.getresponse().status, sent
    except (OSError, http.client.HTTPException):
        return None, sent
    finally:
        connection.close()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("who", ["stranger", "unknown key", "known key", "bad signature"])
@pytest.mark.parametrize(
    "path", ["/v1/fleet/push-object", "/v1/fleet/push-messages", "/v1/control/start-run", "/v1/runtime/push-object"]
)
def test_a_large_request_is_cut_before_it_is_in_memory(net: Deployment, path: str, who: str, chunked: bool) -> None:
    pid = superlink(net)
    key = net.folder / "birch" / "birch.key"
    headers = {
        "stranger": {},
        "unknown key": signed(None),
        "known key": signed(key),
        "bad signature": {**signed(key), "flwr-signature": signed(None)["flwr-signature"]},
    }[who]
    before = memory(pid)
    status, sent = post(net, path, headers, chunked)
    after = memory(pid)
    print(f"{path} {who} chunked={chunked}: {sent / 1e6:.1f} MB taken, SuperLink {before} -> {after} MB")
    assert status in (403, 413, None)
    assert sent < SIZE, "the server took all of it"
    assert after[1] - before[1] < GROWTH


def test_headers_without_end_are_cut(net: Deployment) -> None:
    pid = superlink(net)
    before = memory(pid)
    context = ssl.create_default_context(cafile=net.certs / "ca.crt")
    with (
        socket.create_connection(("127.0.0.1", net.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nx-long: ")
        sent = 0
        with pytest.raises(OSError):  # noqa: PT012
            while sent < SIZE:
                connection.sendall(PIECE.replace(b"\0", b"a"))
                sent += len(PIECE)
            raise AssertionError("the server read all of it")
    assert memory(pid)[1] - before[1] < GROWTH


def test_strangers_leave_no_lines_in_the_servers_log(net: Deployment) -> None:
    """Else they could fill the disk, with a hundred bytes per request."""
    log = net.out / "flower" / "superlink.log"
    context = ssl.create_default_context(cafile=net.certs / "ca.crt")
    before = log.stat().st_size
    for number in range(60):
        connection = http.client.HTTPSConnection("127.0.0.1", net.port, timeout=60, context=context)
        path = ("/v1/fleet/activate-node", "/v1/control/start-run", "/nothing")[number % 3]
        headers = {"content-type": "application/protobuf", **signed(None)}
        connection.request("POST", f"{path}?{'x' * 1000}", b"", headers)
        assert connection.getresponse().status >= 400
        connection.close()
        with socket.create_connection(("127.0.0.1", net.port), timeout=60) as plain:
            plain.sendall(b"no TLS\r\n\r\n")
            plain.recv(100)
    assert log.stat().st_size - before < 2000, log.read_text()[-3000:]


def test_a_reply_that_is_larger_than_declared_is_refused_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SIZE / 1e6  # the site itself takes its time to make so much
    monkeypatch.setattr(network, "PATIENCE", network.PATIENCE + slow)
    with deployment(tmp_path / "net", sites=("amber", "birch"), rounds=2, quorum=0.5, deadline=120 + slow) as net:
        server = net.server()
        amber = net.client("amber")
        home, script = net.folder / "birch", Path(__file__).with_name("oversized_site.py")
        with open(net.folder / "birch.log", "ab") as log:
            options = ["--ca", str(net.certs / "ca.crt"), "--key", str(home / "birch.key"), "--accept", "--wait", "120"]
            birch = subprocess.Popen(
                [sys.executable, str(script), "client", str(net.file), str(home), *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=net.folder,
                env={**os.environ, BYTES: str(SIZE)},
            )
        try:
            net.until("training", lambda: any(row["kind"] == "training" for row in net.activity("server")))
            app = next(row["pid"] for row in net.activity("server") if row["kind"] == "started")
            link = superlink(net)
            before = memory(link), memory(app)
            peaks = list(before)

            def done() -> bool:
                for place, pid in enumerate((link, app)):
                    if Path(f"/proc/{pid}/status").exists() and "VmHWM" in Path(f"/proc/{pid}/status").read_text():
                        peaks[place] = memory(pid)
                return server.poll() is not None

            net.until("the run ends", done)
            net.wait(server)
            net.wait(amber)
        finally:
            birch.terminate()
            birch.wait(60)
    print(f"SuperLink (now, most) {before[0]} -> {peaks[0]} MB, ServerApp {before[1]} -> {peaks[1]} MB")
    dropped = [row for row in net.events() if row["kind"] == "reply-dropped"]
    assert {row["round"] for row in dropped if row["phase"] == "train"} == {1, 2}, dropped
    assert all(row["client"] == 1 for row in dropped), "only the site that sends too much"
    assert all("its reply was refused: it has more than" in row["message"] for row in dropped), dropped
    assert peaks[0][1] - before[0][1] < GROWTH
    assert peaks[1][1] - before[1][1] < GROWTH
