"""Can this site reach its server: the name, the port, TLS, the server behind it, and its clock."""

from __future__ import annotations

import email.utils
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from farfield.deployment.doctor.certificates import certificate_days, verification_problem
from farfield.deployment.doctor.check import Check, failed, ok, warning
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.flower.gate import READY

#: Seconds for a connection and for an answer.
PATIENCE = 10.0
#: Flower lets a site in whose clock is at most 5 s ahead of the server's and at most 305 s behind it.
MOST_AHEAD, MOST_BEHIND = 5.0, 305.0
#: Of these limits, the share from which on there is a warning.
WARNING_SHARE = 0.4


@dataclass(frozen=True)
class Answer:
    """What a server has answered: its status, and its time less this machine's, in seconds, if it tells."""

    status: int
    offset: float | None


def check_network(federation: FederationFile, authority: Path | None) -> Iterator[Check]:
    """Check everything between a site and its server. Stops at the first failure, which the rest depends on."""
    host, port = federation.host, federation.port
    try:
        addresses = sorted({str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except OSError as error:
        yield failed(
            "name",
            f"'{host}' cannot be resolved ({error.strerror or error}); is 'server' in the federation file right?",
        )
        return
    shown = "is an address" if _is_address(host) else f"is {', '.join(addresses)}"
    yield ok("name", f"{host} {shown}")
    started = time.monotonic()
    try:
        plain = socket.create_connection((host, port), timeout=PATIENCE)
    except OSError as error:
        yield failed(
            "connection",
            f"no server answers at {federation.server} ({error.strerror or error}); is it running, and do firewalls "
            f"let this machine out to port {port}?",
        )
        return
    with plain:
        yield ok("connection", f"{federation.server} answers after {1000 * (time.monotonic() - started):.0f} ms")
        if authority is None:
            yield warning("TLS", "not used (--insecure); only for a server on this machine")
            yield from _check_answer(federation, _ask(plain, federation))
            return
        yield from _check_secured(federation, authority, plain)


def _check_secured(federation: FederationFile, authority: Path, plain: socket.socket) -> Iterator[Check]:
    try:
        context = ssl.create_default_context(cafile=str(authority))
        secured = context.wrap_socket(plain, server_hostname=federation.host)
    except ssl.SSLCertVerificationError as error:
        yield failed("certificate", verification_problem(error, federation.host, authority))
        return
    except ssl.SSLError as error:
        yield failed("TLS", f"what answers at {federation.server} does not speak TLS ({error.reason})")
        return
    except OSError as error:
        yield failed("TLS", f"the connection to {federation.server} was lost ({error.strerror or error}); try again")
        return
    with secured:
        yield ok("TLS", f"{secured.version()}, {secured.cipher()[0]}")  # type: ignore[index]
        days = certificate_days(secured.getpeercert(binary_form=True))
        yield _lasting(days, f"the server's certificate for '{federation.host}' is signed by '{authority}'")
        yield from _check_answer(federation, _ask(secured, federation))


def _lasting(days: float, what: str) -> Check:
    text = f"{what}, and is valid for {days:.0f} more days"
    if days < 14:
        return warning("certificate", f"{text}; ask the server's operator for a new one in time")
    return ok("certificate", text)


def _ask(connection: socket.socket, federation: FederationFile) -> Answer | None:
    """Ask whether the server is ready, and read the time in its answer."""
    request = f"GET {READY} HTTP/1.1\r\nHost: {federation.server}\r\nConnection: close\r\n\r\n"
    try:
        connection.settimeout(PATIENCE)
        connection.sendall(request.encode())
        received = b""
        while b"\r\n\r\n" not in received and len(received) < 10_000:
            part = connection.recv(2000)
            if not part:
                break
            received += part
    except OSError:
        return None
    lines = received.decode("latin1").split("\r\n")
    parts = lines[0].split()
    if len(parts) < 2 or not parts[0].startswith("HTTP/") or not parts[1].isdigit():
        return None
    dates = [line.partition(":")[2].strip() for line in lines[1:] if line.lower().startswith("date:")]
    try:
        offset = email.utils.parsedate_to_datetime(dates[0]).timestamp() - time.time() if dates else None
    except ValueError:
        offset = None
    return Answer(int(parts[1]), offset)


def _check_answer(federation: FederationFile, answer: Answer | None) -> Iterator[Check]:
    if answer is None or answer.status not in (200, 503):
        yield failed("server", f"what answers at {federation.server} is no farfield server; is the port right?")
        return
    if answer.status == 503:
        yield warning("server", "it is starting and lets no site in yet; start the site with --wait 300")
    else:
        yield ok("server", "it is a farfield server, and lets sites in")
    yield check_clock(answer.offset)


def check_clock(offset: float | None) -> Check:
    """Check the server's clock less this machine's, in seconds, as its answer tells it to the second."""
    if offset is None:
        return warning("clock", "the server does not tell its time; set this machine's clock by NTP")
    # The time of an answer is cut to a whole second: half a second later is the best guess.
    ahead = -(offset + 0.5)
    direction = "ahead of" if ahead > 0 else "behind"
    text = f"this machine's clock is {abs(ahead):.1f} s {direction} the server's"
    way_out = "; set both clocks by NTP (timedatectl set-ntp true)"
    if ahead > MOST_AHEAD or -ahead > MOST_BEHIND:
        limits = f"over the {MOST_AHEAD:g} s ahead or {MOST_BEHIND:g} s behind at which a site is let in"
        return failed("clock", f"{text}, {limits}{way_out}")
    if ahead > WARNING_SHARE * MOST_AHEAD or -ahead > WARNING_SHARE * MOST_BEHIND:
        return warning("clock", f"{text}; a site over {MOST_AHEAD:g} s ahead is not let in{way_out}")
    return ok("clock", text)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
