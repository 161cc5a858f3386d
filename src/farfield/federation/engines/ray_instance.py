"""A Ray instance of this program's own: on loopback, quiet, and gone at the end with all its processes and files."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from farfield.errors import UserError

#: Read by Ray when it is imported, and by the processes that it starts.
RAY_SETTINGS = {
    # Its advice about machines with accelerators is not for whoever uses Ray without one.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
#: Ray's processes talk over loopback, as they do on other systems; on Linux they would listen everywhere. Ray that is
#: imported with this cannot reach a cluster of several machines.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class RayChanged(UserError):
    """A version of Ray that does not have what is needed of it."""


def ray_folder() -> Path:
    """Make a folder for an instance. Ray makes sockets in it, whose paths may not be long."""
    return Path(tempfile.mkdtemp(prefix="ff-", dir="/tmp" if os.path.isdir("/tmp") else None))


def import_ray(*, loopback: bool = True) -> Any:
    """Return Ray, imported with the settings that it reads then."""
    for name, value in (RAY_SETTINGS | (LOOPBACK if loopback else {})).items():
        os.environ.setdefault(name, value)
    import ray

    return ray


def start_ray(folder: Path, cores: int, variables: Mapping[str, str] | None = None) -> None:
    """Start an instance that has its files in a folder; its processes find the variables in their environment."""
    ray = import_ray()
    ray_prints(False)
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    with quiet(), _inherited({"PYTHONPATH": path, **(variables or {})}):
        ray.init(
            address="local",
            num_cpus=cores,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder),
        )


def end_ray(folder: Path) -> None:
    """End the instance that has its files in a folder, and remove them."""
    ray = import_ray()
    with quiet():
        ray.shutdown()
    ray_prints(True)
    _end_processes_of(folder)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the log lines of Flower and Ray: what matters of them comes out as an error or an event of ours."""
    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def ray_prints(whether: bool) -> None:
    """Let Ray print what its processes report, a page for each that ends, or not; its own debugger does it so."""
    worker: Any = sys.modules["ray._private.worker"]
    if not hasattr(worker, "_worker_logs_enabled"):
        raise RayChanged("this version of Ray does not fit: 'ray._private.worker._worker_logs_enabled' is not there")
    worker._worker_logs_enabled = whether


def _end_processes_of(folder: Path) -> None:
    """End what still writes to Ray's folder, which is this instance's alone.

    Ray's helpers notice by themselves that their parent is gone, but after a start that was interrupted they take
    minutes to do so. Only Linux tells which files a process has open.
    """
    for process in Path("/proc").glob("[0-9]*"):
        try:
            files = [os.readlink(entry) for entry in (process / "fd").iterdir()]
            if int(process.name) != os.getpid() and any(file.startswith(f"{folder}/") for file in files):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:  # somebody else's, or gone
            continue


@contextlib.contextmanager
def _inherited(variables: Mapping[str, str]) -> Iterator[None]:
    """Processes that are started here find these in their environment, and what is started later does not."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
