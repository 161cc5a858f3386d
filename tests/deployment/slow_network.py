"""A server and its sites in network namespaces of their own, with a slow link to each site."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Where the server is for its sites; no link has this address, so that the server must listen at all of its own.
SERVER = "10.78.0.1"
LINK = Path(__file__).with_name("slow_link.py")


@dataclass(frozen=True)
class SlowNetwork:
    """The namespaces, by who is in it ("server", or a site's name), and how the links are slowed."""

    namespaces: dict[str, str]
    by: str

    def prefix(self, who: str) -> list[str]:
        """Return the beginning of a command that runs in somebody's namespace."""
        return ["ip", "netns", "exec", self.namespaces[who]]


def why_not() -> str | None:
    """Return why there can be no such network here; None if there can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "needs ip and tc"
    name = f"ff{os.getpid()}x"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    if not made:
        return "network namespaces are not permitted here"
    return None if has_netem() or Path("/dev/net/tun").exists() else "needs netem or tun devices"


def has_netem() -> bool:
    """Return whether the kernel can slow a link by itself."""
    name = f"ff{os.getpid()}n"
    subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    try:
        command = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def slow_network(sites: Sequence[str], *, milliseconds: int, bits_per_second: int) -> Iterator[SlowNetwork]:
    """Make the network. Each link has delay and rate in both directions, so a round trip takes twice the delay."""
    everyone = ["server", *sites]
    names = {who: f"ff{os.getpid()}-{number}" for number, who in enumerate(everyone)}
    netem, links = has_netem(), list[subprocess.Popen[bytes]]()
    try:
        for name in names.values():
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", names["server"], "addr", "add", f"{SERVER}/32", "dev", "lo")
        for number, site in enumerate(sites):
            device = f"site{number}"
            if netem:
                _veth(names["server"], names[site], device, milliseconds, bits_per_second)
            else:
                links.append(_tun(names["server"], names[site], device, milliseconds, bits_per_second))
            for name, address, peer in (
                (names["server"], f"10.77.{number}.1", f"10.77.{number}.2"),
                (names[site], f"10.77.{number}.2", f"10.77.{number}.1"),
            ):
                _ip("-n", name, "addr", "add", address, "peer", peer, "dev", device)
                _ip("-n", name, "link", "set", device, "up")
            _ip("-n", names[site], "route", "add", f"{SERVER}/32", "dev", device)
        yield SlowNetwork(names, "netem" if netem else "a link in user space, because this kernel has no netem")
    finally:
        for link in links:
            link.kill()
            link.wait()
        for name in names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _veth(server: str, site: str, device: str, milliseconds: int, rate: int) -> None:
    _ip("link", "add", device, "netns", server, "type", "veth", "peer", "name", device, "netns", site)
    for name in (server, site):
        slow = ["netem", "delay", f"{milliseconds}ms", "rate", f"{rate}bit"]
        command = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, "root", *slow]
        subprocess.run(command, check=True, capture_output=True)


def _tun(server: str, site: str, device: str, milliseconds: int, rate: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(LINK), server, site, device, str(milliseconds), str(rate)]
    link = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert link.stdout is not None
    assert link.stdout.readline() == b"ready\n"
    return link


def round_trip(network: SlowNetwork, site: str) -> float:
    """Return the seconds that a connection from a site to the server's address takes: one round trip."""
    listen = "import socket; s = socket.create_server(('0.0.0.0', 9)); print(1, flush=True); s.accept()"
    call = (
        "import socket, time; t = time.monotonic(); "
        f"socket.create_connection(('{SERVER}', 9)); print(time.monotonic() - t)"
    )
    listener = subprocess.Popen([*network.prefix("server"), sys.executable, "-c", listen], stdout=subprocess.PIPE)
    try:
        assert listener.stdout is not None
        listener.stdout.readline()
        done = subprocess.run([*network.prefix(site), sys.executable, "-c", call], capture_output=True, check=True)
        return float(done.stdout)
    finally:
        listener.kill()
        listener.wait()


def throughput(network: SlowNetwork, site: str, size: int = 500_000) -> float:
    """Return the bits per second at which a site's bytes arrive at the server, after the connection has begun."""
    listen = (
        "import socket, time\n"
        "s = socket.create_server(('0.0.0.0', 9)); print(1, flush=True)\n"
        "c, _ = s.accept(); got = len(c.recv(1 << 16)); t = time.monotonic(); n = 0\n"
        "while (part := c.recv(1 << 16)): n += len(part)\n"
        "print(8 * n / (time.monotonic() - t))\n"
    )
    call = f"import socket; c = socket.create_connection(('{SERVER}', 9)); c.sendall(bytes({size}))"
    command = [*network.prefix("server"), sys.executable, "-c", listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        listener.stdout.readline()
        subprocess.run([*network.prefix(site), sys.executable, "-c", call], check=True)
        return float(listener.stdout.readline())
