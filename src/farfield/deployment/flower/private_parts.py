"""Every private part of Flower that Farfield replaces or calls, with a check that it is as expected.

A later version of Flower may rename or change any of them without notice. A replacement that silently does nothing
would be worse than an error: the gate would not be asked, or a site would run the server's code. So each use goes
through `find` or `replace`, which raise FlowerChanged with one sentence.

This module imports neither farfield nor Flower at the top: the SuperLink's process uses it too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any


class FlowerChanged(RuntimeError):
    """A private part of Flower is missing or has another signature."""


@dataclass(frozen=True)
class PrivatePart:
    """A name in Flower (or in a package under it) that is no public API."""

    #: Module and attribute, as in "flwr.superlink.extensions:get_middleware" or "module:Class.method".
    path: str
    #: The file of Farfield that uses it, under src/farfield unless it begins with "tests" or "benchmarks".
    used_in: str
    #: What Farfield does with it ("called", "replaced", "wrapped", …), a colon, and why.
    why: str
    #: Parameters that it must have; None if it is not called, or if only its existence matters.
    parameters: tuple[str, ...] | None = None
    #: Parameters that must have a default, because it is changed.
    defaults: tuple[str, ...] = ()
    #: Attributes that it must have.
    attributes: tuple[str, ...] = ()

    @property
    def is_called(self) -> bool:
        """Whether Farfield calls it, so that it may need no parameter that Farfield does not give."""
        return self.why.startswith("called")


_EXECUTOR = "flwr.supercore.superexec.executor.types"
_CLIENTAPP = "flwr.supernode.runtime.run_clientapp"
_OBJECTS = "flwr.supercore.inflatable.inflatable_utils"
_PULL = ("initial_backoff", "backoff_cap", "max_tries_per_object")
_GATE, _UPLOADS = "deployment/flower/gate.py", "deployment/flower/uploads.py"
_COMMANDS, _FORK = "deployment/flower/flower_commands.py", "deployment/flower/fork_executor.py"

PRIVATE_PARTS: tuple[PrivatePart, ...] = (
    PrivatePart(
        "flwr.superlink.extensions:get_middleware",
        _COMMANDS,
        "replaced: puts the gate in front of the SuperLink, outermost",
        (),
    ),
    PrivatePart(
        "flwr.superlink.cli.flower_superlink:uvicorn.run",
        f"{_COMMANDS}, deployment/flower/listening.py",
        "replaced: a limit on connections, in all and by address, and on the length of headers and the time that they "
        "take; with `--bind` it listens elsewhere than its own processes connect",
        ("app", "http", "ws", "limit_concurrency", "proxy_headers", "access_log"),
    ),
    PrivatePart("flwr.superlink.cli:flower_superlink", _COMMANDS, "called: Flower's command, in our process", ()),
    PrivatePart(
        "uvicorn.protocols.http.auto:AutoHTTPProtocol",
        "deployment/flower/hurried_protocol.py",
        "extended: closes a connection whose headers are too long or do not arrive",
        attributes=("connection_made", "connection_lost", "data_received", "on_response_complete"),
    ),
    PrivatePart(
        "flwr.superlink.config_loader:ObjectStoreFactory",
        "deployment/flower/superlink.py",
        "replaced: the content of messages stays in memory; in the database it costs hundreds of statements per "
        "message",
        attributes=("store",),
    ),
    PrivatePart(
        "flwr.supercore.corestate.sql_corestate:SqlCoreState._cleanup_expired_task_tokens",
        "deployment/flower/superlink.py",
        "replaced: searches for tasks without heartbeats once a second instead of at every request",
        ("self",),
    ),
    PrivatePart(
        "flwr.supercore.object_store:ObjectStore",
        _UPLOADS,
        "called: the gate measures a reply in it before the ServerApp reads it, and removes replies that nobody reads",
        attributes=("get", "delete", "get_object_tree", "__contains__"),
    ),
    PrivatePart(
        "flwr.server.superlink.linkstate:LinkStateFactory",
        _GATE,
        "called: the gate's way to the registered keys and to the content of messages (`app.state.linkstate_factory`)",
        attributes=("state",),
    ),
    PrivatePart(
        "flwr.server.superlink.linkstate:LinkState.get_node_id_by_public_key",
        _GATE,
        "called: which node a request is from, before its body is read",
        ("self", "public_key"),
    ),
    PrivatePart(
        "flwr.supercore.primitives.asymmetric:verify_signature",
        "deployment/flower/node_signatures.py",
        "called: checks the signature of a request before its body is read",
        ("public_key", "message", "signature"),
    ),
    PrivatePart(
        "flwr.supercore.primitives.asymmetric:bytes_to_public_key",
        "deployment/flower/node_signatures.py",
        "called: reads the public key of a request",
        ("public_key_bytes",),
    ),
    PrivatePart(
        "flwr.supercore.constant:FLEET_HTTP_PUBLIC_KEY_HEADER",
        "deployment/flower/node_signatures.py",
        "read: the header with a node's public key",
    ),
    PrivatePart(
        "flwr.supercore.constant:FLEET_HTTP_SIGNATURE_HEADER",
        "deployment/flower/node_signatures.py",
        "read: the header with the signature",
    ),
    PrivatePart(
        "flwr.common.constant:TIMESTAMP_HEADER",
        "deployment/flower/node_signatures.py",
        "read: the header with what is signed",
    ),
    PrivatePart(
        "flwr.proto.fleet_pb2:PushMessagesRequest",
        _GATE,
        "parsed: which reply a site announces, and of how many objects",
        attributes=("messages_list", "message_object_trees"),
    ),
    PrivatePart(
        "flwr.proto.fleet_pb2:PushMessagesResponse",
        _GATE,
        "parsed: whether Flower accepts the reply",
        attributes=("objects_to_push",),
    ),
    PrivatePart(
        "flwr.proto.message_pb2:PushObjectResponse",
        _GATE,
        "parsed: whether Flower kept an object",
        attributes=("stored",),
    ),
    PrivatePart(
        "flwr.proto.runtime_pb2:PushAppMessagesRequest",
        _GATE,
        "parsed: which messages the ServerApp sends, and to whom",
        attributes=("messages_list",),
    ),
    PrivatePart(
        "flwr.proto.runtime_pb2:PullAppMessagesRequest",
        _GATE,
        "changed: the ServerApp is handed complete replies of the declared size only",
        attributes=("message_ids",),
    ),
    PrivatePart(
        "flwr.supercore.protobuf.client:ProtobufClient.__init__",
        "deployment/flower/request_headers.py, deployment/flower/bounded_responses.py",
        "wrapped: adds the gate's secret to the requests of this user's own processes, and bounds what a SuperNode "
        "reads",
        ("self", "base_url", "interceptors"),
    ),
    PrivatePart("flwr.cli.app:app", _COMMANDS, "called: the `flwr` command, in our process"),
    PrivatePart(
        "flwr.supercore.superexec.run_superexec:get_executor",
        "deployment/flower/flower_commands.py, deployment/site/worker_process.py",
        "replaced: by executors that put no token on a command line; at a site, one that forks a warm process",
        ("executor_type",),
    ),
    PrivatePart(
        "flwr.supercore.cli.flower_superexec:flower_superexec",
        _COMMANDS,
        "called: Flower's command, in our process",
        (),
    ),
    PrivatePart(
        "flwr.supercore.superexec.run_superexec:run_superexec",
        "deployment/site/worker_process.py",
        "called: the loop that asks the SuperNode for work",
        ("runtime_api_address", "insecure", "superexec_auth_secret", "parent_pid"),
    ),
    PrivatePart(
        f"{_EXECUTOR}:ExecutionSpec",
        f"{_COMMANDS}, {_FORK}",
        "read: the task that an executor is given",
        ("token", "runtime_api_address", "insecure", "root_certificates_path", "parent_pid"),
    ),
    PrivatePart(f"{_EXECUTOR}:LaunchResult.accepted", f"{_COMMANDS}, {_FORK}", "called: the answer of an executor", ()),
    PrivatePart(
        "flwr.supercore.constant:TaskType",
        _COMMANDS,
        "read: the server starts a ServerApp and none of Flower's other kinds of tasks",
        attributes=("SERVER_APP",),
    ),
    PrivatePart(
        "flwr.superlink.cli.flwr_serverapp:flwr_serverapp",
        "deployment/flower/serverapp.py",
        "called: Flower's command, in a process that has its token from a pipe",
        (),
    ),
    PrivatePart(
        "flwr.app.message:make_message",
        "deployment/server/bounded_grid.py",
        "called: an error in place of a reply that was too large",
        ("metadata", "content", "error"),
    ),
    PrivatePart(
        f"{_CLIENTAPP}:install_from_fab", _FORK, "replaced: by nothing, because a site does not unpack the server's app"
    ),
    PrivatePart(f"{_CLIENTAPP}:get_load_client_app_fn", _FORK, "replaced: a site runs its own app, never the server's"),
    PrivatePart(
        f"{_CLIENTAPP}:Error",
        _FORK,
        "replaced: the code of an error leaves a site, and the text of the exception does not",
        ("code", "reason"),
    ),
    PrivatePart(
        f"{_CLIENTAPP}:run_clientapp",
        _FORK,
        "called: a message runs in a fork of a warm process instead of a new Python",
        ("runtime_api_address", "token", "insecure", "certificates", "parent_pid", "runtime_dependency_install"),
    ),
    PrivatePart(
        "flwr.supernode.main:create_app",
        "deployment/flower/supernode.py",
        "wrapped: the gate in front of the SuperNode's port on loopback",
        ("state_factory", "superexec_auth_secret"),
    ),
    PrivatePart(
        "flwr.supernode.cli.flower_supernode:uvicorn.Server",
        "deployment/flower/supernode.py",
        "extended: the SuperNode listens at a socket that it is handed, so that no other user can take its port before",
        attributes=("run",),
    ),
    PrivatePart(
        "flwr.supernode.cli:flower_supernode",
        "deployment/flower/supernode.py",
        "called: Flower's command, in our process",
        (),
    ),
    PrivatePart(
        "flwr.supernode.start_client_internal:time.sleep",
        "deployment/flower/poll_intervals.py",
        "replaced: three seconds without a message and half a second for a reply would be most of a round",
    ),
    PrivatePart(
        f"{_OBJECTS}:pull_objects",
        "deployment/flower/poll_intervals.py",
        "changed: the pause before a process asks again for a message's content",
        _PULL,
        _PULL,
    ),
    PrivatePart(
        f"{_OBJECTS}:pull_and_inflate_object_from_tree",
        "deployment/flower/poll_intervals.py",
        "changed: the same, in the process that answers messages",
        _PULL,
        _PULL,
    ),
    PrivatePart(
        "flwr.simulation:run_simulation",
        "federation/engines/flower/ray_grid.py",
        "called: in a thread, although it wants to be the main program, so that progress, Ctrl-C and errors stay ours",
        ("server_app", "client_app", "num_supernodes", "backend_config"),
    ),
    PrivatePart(
        "ray._private.worker:_worker_logs_enabled",
        "federation/engines/ray_instance.py",
        "set: Ray would print a page for each process that ends",
    ),
    PrivatePart(
        "flwr.supercore.task_identity:TaskIdentity",
        "tests",
        "set: a message can be made outside Flower's own processes",
        attributes=("run_id", "task_id", "node_id"),
    ),
)

_BY_PATH = {part.path: part for part in PRIVATE_PARTS}


def find(path: str) -> Any:
    """Return a private part of Flower, checked. Raises FlowerChanged if it is not as expected."""
    part = _BY_PATH[path]
    found = _owner(part)[0]
    names = part.path.partition(":")[2]
    value = _attribute(part, found, names.rpartition(".")[2])
    for name in part.attributes:
        if not _has(value, name):
            raise _changed(part, f"has no '{name}'")
    if part.parameters is not None:
        _check_parameters(part, value)
    return value


def replace(path: str, new: Any) -> None:
    """Put something of ours in the place of a private part of Flower. Raises FlowerChanged if there is no such part."""
    find(path)
    owner, name = _owner(_BY_PATH[path])
    setattr(owner, name, new)


def _owner(part: PrivatePart) -> tuple[Any, str]:
    """Return the module or class that holds the part, and the part's name in it."""
    module, _, names = part.path.partition(":")
    try:
        owner: Any = import_module(module)
    except ImportError as error:
        raise _changed(part, f"cannot be imported ({error})") from error
    *between, name = names.split(".")
    for step in between:
        owner = _attribute(part, owner, step)
    return owner, name


def _attribute(part: PrivatePart, owner: Any, name: str) -> Any:
    if not hasattr(owner, name):
        raise _changed(part, "is not there")
    return getattr(owner, name)


def _has(value: Any, name: str) -> bool:
    """Return whether a class has an attribute or a field of a protobuf message."""
    fields = getattr(getattr(value, "DESCRIPTOR", None), "fields_by_name", {})
    missing = object()
    return name in fields or inspect.getattr_static(value, name, missing) is not missing


def _check_parameters(part: PrivatePart, value: Any) -> None:
    assert part.parameters is not None
    if not callable(value):
        raise _changed(part, "cannot be called")
    given: Callable[..., Any] = value
    known = inspect.signature(given).parameters
    missing = [name for name in part.parameters if name not in known]
    if missing:
        raise _changed(part, f"has no parameter '{missing[0]}'")
    needed = [
        name
        for name, parameter in known.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in part.parameters
    ]
    if part.is_called and needed:
        raise _changed(part, f"needs '{needed[0]}', which Farfield does not give")
    for name in part.defaults:
        if name not in (getattr(value, "__kwdefaults__", None) or {}):
            raise _changed(part, f"has no default for '{name}'")


def _changed(part: PrivatePart, how: str) -> FlowerChanged:
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        installed = "unknown"
    return FlowerChanged(
        f"Flower {installed} does not fit this version of Farfield: '{part.path.replace(':', '.')}' {how}; install the "
        "version of flwr that constraints.txt names"
    )


def check_all() -> list[str]:
    """Return what is not as expected, one sentence per part; parts of packages that are not installed are left out."""
    problems = []
    for part in PRIVATE_PARTS:
        if find_spec(part.path.partition(".")[0]) is None or (
            part.path.startswith("flwr.simulation") and find_spec("ray") is None
        ):
            continue
        try:
            find(part.path)
        except FlowerChanged as problem:
            problems.append(str(problem))
    return problems


def table() -> str:
    """Return all private parts as a table in Markdown, for the documentation."""
    rows = ["| part of Flower | used in | what is done with it, and why |", "|---|---|---|"]
    rows += [f"| `{part.path.replace(':', '.')}` | `{part.used_in}` | {part.why} |" for part in PRIVATE_PARTS]
    return "\n".join(rows)
