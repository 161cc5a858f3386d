"""Running as a service, with real processes: other addresses, restarts, signals."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from farfield.deployment.credentials.create import make_server_certificate
from tests.deployment.network import SITES, Deployment, children_of, deployment, free_port, trained_here

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@contextlib.contextmanager
def forwarded(public: tuple[str, int], to: tuple[str, int]) -> Iterator[None]:
    """A port that leads to another one, as a router does it for the network behind it."""
    listener = socket.create_server(public)

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                outside, _ = listener.accept()
                try:
                    inside = socket.create_connection(to)
                except OSError:
                    outside.close()
                    continue
                for pair in ((outside, inside), (inside, outside)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_server_listens_elsewhere_than_sites_connect(tmp_path: Path) -> None:
    """Sites know 127.0.0.9 and one port; the server listens at all addresses, at another port."""
    public, inside = free_port(), free_port()
    with (
        deployment(tmp_path / "net", server=f"127.0.0.9:{public}") as net,
        forwarded(("127.0.0.9", public), ("127.0.0.1", inside)),
    ):
        make_server_certificate(net.certs, ["127.0.0.9"], 2, force=True)
        result = net.run("--bind", f"0.0.0.0:{inside}")
    assert result["model_sha256"] == trained_here(tmp_path / "local", "fedavg", 2)


@pytest.mark.parametrize("bind", [None, "[::]"])
def test_a_federation_over_ipv6(tmp_path: Path, bind: str | None) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    port = free_port()
    with deployment(tmp_path / "net", server=f"[::1]:{port}") as net:
        make_server_certificate(net.certs, ["::1"], 2, force=True)
        result = net.run(*([] if bind is None else ["--bind", f"{bind}:{port}"]))
    assert result["model_sha256"] == trained_here(tmp_path / "local", "fedavg", 2)


def rounds_made(net: Deployment) -> int:
    return max((row["round"] for row in net.activity("server") if row["kind"] == "round"), default=0)


def doctor(net: Deployment) -> None:
    """What the doctor says of a site and of the server while both run: nothing fails, and the clocks are compared."""
    site = [str(net.folder / "amber"), "--ca", str(net.certs / "ca.crt"), "--key", str(net.folder / "amber/amber.key")]
    server = ["--certs", str(net.certs), "--key", str(net.keys), "--out", str(net.out)]
    for options in (site, server):
        command = [sys.executable, "-m", "farfield", "doctor", str(net.file), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        if options is site:
            assert "ok      server: it is a farfield server, and lets sites in" in done.stdout
            assert "ok      clock: this machine's clock is" in done.stdout
            assert "ok      approval: what leaves this site was approved" in done.stdout


def test_one_command_starts_and_goes_on_and_says_that_all_is_done(tmp_path: Path) -> None:
    with deployment(tmp_path / "net", algorithm="scaffold", rounds=12) as net:
        server = net.server("--start-or-resume")
        clients = [net.client(name) for name in SITES]
        net.until("two rounds", lambda: rounds_made(net) >= 2)
        server.send_signal(signal.SIGTERM)
        net.wait(server, code=0)
        assert "stopped; the same command goes on" in net.said("server")
        assert not [command for command in children_of(net.out) if "server" in command], "its processes have ended"
        again = net.server("--start-or-resume")
        for process in (again, *clients):
            net.wait(process)
        assert ", going on after round " in net.said("server")
        said = net.said("server").count("sha256 of the last round's model")
        with socket.create_server(("127.0.0.1", net.port)):  # a finished run needs no port
            net.wait(net.server("--start-or-resume"))
        assert net.said("server").count("sha256 of the last round's model") == said + 1
    assert net.result()["model_sha256"] == trained_here(tmp_path / "local", "scaffold", 12)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_site_and_a_server_end_by_signals_with_all_their_processes(tmp_path: Path, number: int, code: int) -> None:
    with deployment(tmp_path / "net", rounds=500) as net:
        server = net.server()
        clients = [net.client(name) for name in SITES]
        net.until("a round", lambda: rounds_made(net) >= 1)
        if number == signal.SIGTERM:
            doctor(net)
        clients[0].send_signal(number)
        net.wait(clients[0], code=code)
        assert "this site has left; the same command joins again" in net.said("amber")
        assert not children_of(net.folder / "amber")
        server.send_signal(number)
        net.wait(server, code=code)
        assert "stopped; the same command with --resume goes on" in net.said("server")
        assert not [command for command in children_of(net.out) if "farfield" in command or "flwr" in command]
        assert (net.out / "run" / "config.toml").exists()
        assert list((net.out / "run").glob("checkpoint-*.safetensors"))


def test_a_site_that_stays_waits_for_its_server_and_for_its_key_to_be_known(tmp_path: Path) -> None:
    with deployment(tmp_path / "net", sites=("amber",), rounds=1) as net:
        public = net.keys / "amber.pub"
        known = public.read_bytes()
        client = net.client("amber", "--stay", "--wait", "0")
        net.until("a word", lambda: "no server answers" in net.said("amber"))
        # The server knows another key under this name first.
        from farfield.deployment.credentials.create import make_node_key

        other = make_node_key(tmp_path / "other", "amber")
        public.write_bytes(other.public.read_bytes())
        server = net.server()
        net.until("a word", lambda: "does not let this site in yet" in net.said("amber"))
        server.send_signal(signal.SIGTERM)
        net.wait(server)
        public.write_bytes(known)
        net.wait(net.server())
        net.until("the end of the run", lambda: any(r["kind"] == "finished" for r in net.activity("amber")))
        assert client.poll() is None, "it stays for the next run"
        client.send_signal(signal.SIGTERM)
        net.wait(client)
