"""`farfield server`: start Flower's SuperLink with TLS and registered keys, start a run, watch both to the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.audit.log import FOLDER as AUDIT
from farfield.deployment.credentials.verify import check_host, check_public_key, check_server_files
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.flower import flower_commands, gate
from farfield.deployment.flower.private_files import UMASK, for_this_user_only, make_private
from farfield.deployment.flower.processes import (
    Process,
    ProcessError,
    environment,
    exclusive,
    is_loopback,
    wait_for_port,
)
from farfield.deployment.server.app_process import app_ended
from farfield.deployment.server.link_address import LinkAddress, check_bind, link_address
from farfield.deployment.server.output_folder import AGREEMENT, FLOWER, RUN, SETTINGS
from farfield.deployment.server.refused_sites import RefusedSites
from farfield.deployment.server.site_roster import LINK, NODES, SiteRoster
from farfield.deployment.server.site_roster import fingerprint as _fingerprint
from farfield.errors import UserError
from farfield.records import RunFolder, difference
from farfield.records.checked_files import read_checked_json, write_checked_json

#: A file in the folder of Flower's files: the secret that this user's own requests show to the gate.
SECRET = "secret"
#: Seconds in which the ServerApp must have begun.
START_SECONDS = 120.0
APP = Path(__file__).parents[1] / "flower_app"
#: The keys of a federation file that decide the numbers of a run. The others may change when the run is resumed.
_DECIDING = ("name", "algorithm", "rounds", "seed", "cohort", "evaluate_every", "settings")
#: Called with each row of the activity log, for the operator.
Show = Callable[[dict[str, Any]], None]


class ServerError(UserError):
    """A server that cannot be started, or a run that failed."""


@dataclass(frozen=True)
class Security:
    """The server's certificate and the keys that it lets in; both empty for an open server on loopback."""

    certificates: Path | None
    keys: tuple[Path, ...] = ()

    @property
    def insecure(self) -> bool:
        return self.certificates is None


def serve(
    federation: FederationFile,
    out: Path,
    security: Security,
    *,
    wait: float = 600.0,
    resume: bool = False,
    bind: str | None = None,
    show: Show = lambda _: None,
    app: Path = APP,
) -> dict[str, Any]:
    """Start a SuperLink, let the sites in, run the federation, and return the run's result.

    `bind` is the address to listen at, if it is not the one that sites connect to. `app` is the folder with the app
    that Flower starts: farfield's own.
    """
    _check(federation, out, security, resume)
    done = RunFolder(out / RUN).result
    if done is not None:
        return done
    check_bind(federation, bind, security.insecure)
    if security.certificates is not None:
        check_host(security.certificates, federation.host)
    folder = out / FLOWER
    make_private(folder)
    if (out / RUN).exists():
        make_private(out / RUN)
    problem = f"another 'farfield server' is running with --out '{out}'; end it first"
    with for_this_user_only(), exclusive(folder, problem):
        roster = SiteRoster(folder)
        roster.settle()
        keys = roster.admitted(security.keys)
        _check_keys(folder, keys, resume)
        start = uuid.uuid4().hex
        activity = ActivityLog(folder, start)
        activity.skip_existing()
        at = link_address(federation, folder, security.certificates, bind)
        with (
            _superlink(at, folder, security) as link,
            app_ended(folder, start),
            _superexec(at, folder) as executor,
        ):
            names = _register(keys, folder)
            roster.forget_nodes(_flwr)
            gate.ready_file(folder / SECRET).touch()
            run = _write_settings(folder, federation, wait, start, names, resume)
            _start_run(app, folder, out)
            show({"kind": "listening", "text": _invitation(federation, security), "run": run})
            return _watch(out, activity, link, executor, show)


def has_run(out: Path) -> bool:
    """Return whether a run was begun in this output folder."""
    return RunFolder(out / RUN).exists


def _invitation(federation: FederationFile, security: Security) -> str:
    known = "without TLS and keys" if security.insecure else f"TLS, {len(security.keys)} keys known"
    wanted = f"{federation.sites} to train"
    if federation.evaluating:
        wanted += f" and {federation.evaluating} to evaluate"
    return f"sites can connect to {federation.server} ({known}); waiting for {wanted}"


def _check(federation: FederationFile, out: Path, security: Security, resume: bool) -> None:
    if security.insecure and not is_loopback(federation.host):
        raise ServerError(
            f"--insecure is for addresses of this machine alone, and '{federation.server}' is not one; make a "
            "certificate with 'farfield certs server' and give --certs"
        )
    if security.certificates is not None:
        check_server_files(security.certificates)
    if not security.insecure and not security.keys:
        raise ServerError("no site's key is known, so none could join; give the sites' .pub files with --key")
    run = RunFolder(out / RUN)
    if run.exists and not resume:
        raise ServerError(f"'{out}' holds a run already; add --resume to go on, or choose another --out")
    if resume and not run.exists:
        raise ServerError(f"there is no run in '{out}' to resume; omit --resume to start a new run")
    if not run.exists and out.exists() and any(name.name not in (FLOWER, RUN, AUDIT) for name in out.iterdir()):
        raise ServerError(f"'{out}' is not empty and holds no run; choose another folder for --out")
    if resume:
        _check_unchanged(federation, out)


def _check_unchanged(federation: FederationFile, out: Path) -> None:
    """Refuse to resume a run with another value of a key that decides its numbers."""
    path = out / FLOWER / SETTINGS
    if not path.exists():
        return
    before, now = ({key: of[key] for key in _DECIDING} for of in _contents(path, federation))
    changed = difference(before, now)
    if changed:
        raise ServerError(
            f"the run in '{out}' was begun with another federation file: {changed}; set it back to go on, or choose "
            "another --out for a new run"
        )


def _contents(path: Path, federation: FederationFile) -> tuple[dict[str, Any], dict[str, Any]]:
    return read_checked_json(path)["federation"], federation.model_dump(mode="json")


def _write_settings(
    folder: Path, federation: FederationFile, wait: float, start: str, names: Mapping[str, str], resume: bool
) -> str:
    """Write what the ServerApp is told, and return the run's name.

    A resumed run has the same name as before, because sites keep their state under it.
    """
    path = folder / SETTINGS
    if not resume:
        (folder / AGREEMENT).unlink(missing_ok=True)
    run = read_checked_json(path)["run"] if resume and path.exists() else uuid.uuid4().hex
    settings = {
        "federation": federation.model_dump(mode="json"),
        "run": run,
        "wait": wait,
        "start": start,
        "pid": os.getpid(),
    }
    write_checked_json(path, {**settings, "names": dict(names)})
    return run


@contextlib.contextmanager
def _superlink(at: LinkAddress, folder: Path, security: Security) -> Iterator[Process]:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    _new_secret(folder)
    command = [*_gated(folder), "link", "--host", at.host, "--port", str(at.port)]
    # In a file, so that the sites are still registered when the server is started again after a kill.
    command += ["--database", str(folder / "superlink.db"), "--disable-runtime-dependency-installation"]
    command += ["--isolation", "process"]  # the SuperExec is started apart, with no token on a command line
    link = [f"[superlink.{LINK}]", f'address = "{at.shown}"']
    if security.certificates is None:
        command += ["--insecure"]
        link += ["insecure = true"]
    else:
        files = security.certificates.resolve()
        command += ["--ssl-certfile", str(files / "server.crt"), "--ssl-keyfile", str(files / "server.key")]
        command += ["--ssl-ca-certfile", str(at.authority), "--enable-supernode-auth"]
        link += [f'root-certificates = "{at.authority}"']
    (home / "config.toml").write_text("\n".join(link) + "\n")
    with Process("Flower's SuperLink", command, folder / "superlink.log", environment(home, **at.variables)) as process:
        wait_for_port(at.host, at.port, process)
        yield process


def _superexec(at: LinkAddress, folder: Path) -> Process:
    """Start the process that starts the ServerApp when there is a run."""
    command = [*_gated(folder), "exec", "--runtime-api-address", at.shown]
    command += ["--insecure"] if at.authority is None else ["--root-certificates", str(at.authority)]
    return Process("Flower's SuperExec", command, folder / "superlink.log", environment(folder / "home"))


def _new_secret(folder: Path) -> None:
    """Write a new secret for this user's own requests to the SuperLink: every start has its own."""
    gate.ready_file(folder / SECRET).unlink(missing_ok=True)
    (folder / SECRET).unlink(missing_ok=True)
    with open(os.open(folder / SECRET, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


def _gated(folder: Path) -> list[str]:
    return [sys.executable, "-P", flower_commands.__file__, str(folder / SECRET)]


def _check_keys(folder: Path, keys: Sequence[Path], resume: bool) -> None:
    """Keep the registered nodes, which sites that wait are known by, unless the key of a site has changed."""
    known, now = _registered(folder), {key.stem: _fingerprint(key) for key in keys}
    changed = [name for name, fingerprint in known.values() if now.get(name) != fingerprint]
    if changed and resume:
        raise ServerError(
            f"the key of site '{changed[0]}' is not the one that the run was begun with; give that one with --key"
        )
    if keys and not resume and (changed or not known):
        for left in (*folder.glob("superlink.db*"), folder / NODES):
            left.unlink(missing_ok=True)


def _registered(folder: Path) -> dict[str, list[str]]:
    """Return the name and the key's fingerprint of each node that an earlier start has registered."""
    path = folder / NODES
    return read_checked_json(path) if path.exists() else {}


def _register(keys: Sequence[Path], folder: Path) -> dict[str, str]:
    """Register the keys that are not registered yet, and return the names of all nodes."""
    nodes = _registered(folder)
    for key in keys:
        if any(name == key.stem for name, _ in nodes.values()):
            continue
        done = _flwr(folder, "supernode", "register", str(key.resolve()), LINK, "--name", key.stem, "--format", "json")
        node = re.search(r'"node-id":\s*"?(\d+)', done.stdout)
        if done.returncode or node is None:
            raise ServerError(
                f"the key '{key}' cannot be registered: {_flower_error(done.stdout)} (see '{folder / 'superlink.log'}')"
            )
        nodes[node[1]] = [key.stem, _fingerprint(key)]
        write_checked_json(folder / NODES, nodes)
    return {node: name for node, (name, _) in nodes.items()}


def _start_run(app: Path, folder: Path, out: Path) -> None:
    copy = folder / "app"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(app, copy, ignore=shutil.ignore_patterns("__pycache__"))
    make_private(copy)  # a copy has the modes of what was copied
    done = _flwr(folder, "run", str(copy), LINK, "-c", f'out="{out.resolve()}"')
    if done.returncode:
        raise ServerError(f"Flower did not start the run: {_flower_error(done.stdout)}")


def _flwr(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_gated(folder), "flwr", *arguments],
        env=environment(folder / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
        umask=UMASK,
    )


def _flower_error(text: str) -> str:
    """Return the error in the output of Flower's command: the one in its JSON, or its last line."""
    found = re.search(r'"error-message":\s*"((?:[^"\\]|\\.)*)"', text)
    if found:
        return " ".join(str(json.loads(f'"{found[1]}"')).split())
    lines = [line.strip(" │╭╰─╮╯{}") for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "it gave no reason")


def _watch(out: Path, activity: ActivityLog, link: Process, executor: Process, show: Show) -> dict[str, Any]:
    started, pid, gone = time.monotonic(), 0, False
    refused = RefusedSites(gate.refused_file(link.log.parent / SECRET))
    while True:
        for text in refused.new_sentences():
            show({"kind": "refused", "text": text})
        for row in activity.new_rows():
            pid = pid or int(row.get("pid", 0))
            if row["kind"] == "failed":
                raise ServerError(str(row["text"]))
            show(row)
            if row["kind"] == "finished":
                result = RunFolder(out / RUN).result
                assert result is not None
                return result
        link.check()
        executor.check()
        if gone:  # and the log had no last row when it was read after that
            raise ProcessError(
                f"the server's app has ended without an error message; '{link.log}' ends: {link.log_tail()}"
            )
        if pid and not _alive(pid):
            gone = True
            time.sleep(1.0)
            continue
        if not pid and time.monotonic() - started > START_SECONDS:
            raise ProcessError(
                f"the server's app has not begun after {START_SECONDS:g} s; '{link.log}' ends: {link.log_tail()}"
            )
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def find_public_keys(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the public keys in these files and folders, checked."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.pub"))
            if not inside:
                raise ServerError(f"the folder '{path}' has no .pub file; give --key what the sites have sent")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise ServerError(f"there is no key '{path}'; give a site's .pub file, or a folder of them")
    names = [path.stem for path in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ServerError(f"two keys are named '{twice}.pub'; give each site's once")
    for path in found:
        if not os.access(path, os.R_OK):
            raise ServerError(f"the key '{path}' cannot be read")
        check_public_key(path)
    return tuple(found)
