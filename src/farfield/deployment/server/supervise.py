"""`farfield server`: start Flower's SuperLink with TLS and registered keys, start a run, watch both to the end."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.audit.log import FOLDER as AUDIT
from farfield.deployment.credentials.verify import check_host, check_server_files
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.flower import gate
from farfield.deployment.flower.private_files import for_this_user_only, make_private
from farfield.deployment.flower.processes import Process, ProcessError, exclusive, is_loopback
from farfield.deployment.server.app_process import app_ended
from farfield.deployment.server.flower_command import LINK, SECRET, FlowerCommand, flower_error
from farfield.deployment.server.link_address import check_bind, link_address
from farfield.deployment.server.output_folder import AGREEMENT, FLOWER, RUN, SETTINGS
from farfield.deployment.server.refused_sites import RefusedSites
from farfield.deployment.server.registration import check_keys, register_keys
from farfield.deployment.server.site_roster import SiteRoster
from farfield.deployment.server.superlink_process import superexec, superlink
from farfield.errors import UserError
from farfield.records import RunFolder, difference
from farfield.records.checked_files import read_checked_json, write_checked_json

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
        gate.ready_file(folder / SECRET).unlink(missing_ok=True)  # 'farfield site' waits from here on
        roster = SiteRoster(folder)
        roster.settle()
        keys = roster.admitted(security.keys)
        check_keys(folder, keys, resume)
        start = uuid.uuid4().hex
        activity = ActivityLog(folder, start)
        activity.skip_existing()
        at = link_address(federation, folder, security.certificates, bind)
        with (
            superlink(at, folder, security.certificates) as link,
            app_ended(folder, start),
            superexec(at, folder) as executor,
        ):
            with FlowerCommand(folder) as flwr:
                names = register_keys(keys, folder, flwr)
                roster.forget_nodes(flwr)
                gate.ready_file(folder / SECRET).touch()
                run = _write_settings(folder, federation, wait, start, names, resume)
                _start_run(app, folder, out, flwr)
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


def _start_run(app: Path, folder: Path, out: Path, flwr: FlowerCommand) -> None:
    copy = folder / "app"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(app, copy, ignore=shutil.ignore_patterns("__pycache__"))
    make_private(copy)  # a copy has the modes of what was copied
    done = flwr("run", str(copy), LINK, "-c", f'out="{out.resolve()}"')
    if done.returncode:
        raise ServerError(f"Flower did not start the run: {flower_error(done.stdout)}")


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
