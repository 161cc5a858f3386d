"""Let the SuperLink listen at another address than the one that its own processes use (`gate` starts it).

Sites connect to a public name, and the certificate is for that name. Behind NAT the public name is no address of this
machine, so the server listens elsewhere (`farfield server --bind`), and its own processes connect by loopback. They
connect to the name `localhost`, for which no authority signs a certificate; a client that asks for that name is
answered with a certificate that this start of the server has made for itself. Like `gate`, this module does not import
farfield.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import socket
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

#: The environment variable with the address, and the certificate for `localhost` if there is one, as JSON.
VARIABLE = "FARFIELD_LISTEN"
#: The name by which the server's own processes connect.
LOCAL_NAME = "localhost"
BACKLOG = 2048


def listen_as_told() -> None:
    """Let Flower's SuperLink listen where `VARIABLE` says. Without the variable it listens as Flower does."""
    # By its full name: the package has a function of the same name, which hides the module.
    module: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    if not callable(getattr(getattr(module, "uvicorn", None), "run", None)):  # else it would listen elsewhere
        raise RuntimeError("this version of Flower has no 'uvicorn.run' to replace")
    module.uvicorn = SimpleNamespace(run=where_told(module.uvicorn.run))


def where_told(run: Callable[..., None]) -> Callable[..., None]:
    """Return a function like `uvicorn.run` that listens where `VARIABLE` says; without the variable, `run` itself."""
    if VARIABLE not in os.environ:
        return run
    told = json.loads(os.environ[VARIABLE])

    @functools.wraps(run)  # with its signature, for whoever checks that and wraps this
    def run_there(app: Any, **given: Any) -> None:
        import uvicorn

        given |= {"host": told["host"], "port": told["port"], "proxy_headers": False}
        config = uvicorn.Config(app, **given)
        config.load()
        if told.get("certificate"):
            assert config.ssl is not None
            answer_local_name(config.ssl, told["certificate"], told["key"])
        uvicorn.Server(config).run(sockets=open_sockets(told["host"], told["port"]))

    return run_there


def answer_local_name(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Let a TLS server answer with another certificate when it is asked for `localhost`."""
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate, key)

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name == LOCAL_NAME:
            connection.context = own

    context.sni_callback = choose


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets at an address, and at loopback where the address does not include it."""
    sockets = [open_socket(host, port)]
    if not includes_loopback(host):
        sockets.append(open_socket("127.0.0.1", port))
    return sockets


def includes_loopback(host: str) -> bool:
    """Return whether who listens at this address is reached at 127.0.0.1, too."""
    return host in ("0.0.0.0", "::", "127.0.0.1")


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; at '::' it is for IPv4 as well."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
