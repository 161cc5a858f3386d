"""Reach a Ray cluster: one that runs, or a local one that is started for the runs and ended after them."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from farfield.errors import UserError
from farfield.federation.engines.ray_instance import (
    end_ray,
    first_line,
    import_ray,
    quiet,
    ray_folder,
    ray_prints,
    start_ray,
)
from farfield.runs.places import RAY

if TYPE_CHECKING:
    from farfield.runs.cluster.driver import Cluster

#: Where `ray start` writes the address of the cluster that it has started, in the folder that RAY_TMPDIR names.
CURRENT_CLUSTER = Path("ray") / "ray_current_cluster"

#: Seconds that a cluster has to answer at its address.
ANSWER_SECONDS = 10.0


class ClusterError(UserError):
    """A cluster that cannot be reached, or cannot make runs."""


@contextmanager
def open_cluster(on: str, tell: Callable[[str], None]) -> Iterator[Cluster]:
    """Connect to the cluster that `on` names. What Ray is connected to already in this program is used and kept."""
    with connected(on, tell):
        import ray

        from farfield.runs.cluster.driver import Cluster

        try:
            yield Cluster(tell)
        except (ConnectionError, ray.exceptions.RaySystemError) as error:
            raise ClusterError(
                f"the connection to the cluster was lost ({first_line(error)}); give the same command with --resume to "
                "go on with what is done"
            ) from error


@contextmanager
def connected(on: str | None, tell: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Be connected to a cluster, for several sweeps one after the other; None needs none."""
    address = on if on != RAY else _running_cluster()
    if on is None or (ray := import_ray(loopback=address is None)).is_initialized():
        yield
        return
    if address is None:
        cores = os.cpu_count() or 1
        tell(f"starting Ray on this machine with {cores} cores; no cluster was named (RAY_ADDRESS) or is running here")
        folder = ray_folder()
        try:
            _start(folder, cores)
            yield
        finally:
            end_ray(folder)
        return
    _attach(ray, address)
    try:
        resources = ray.cluster_resources()
        nodes = sum(1 for node in ray.nodes() if node["Alive"])
        cores = int(resources.get("CPU", 0))
        tell(f"Ray cluster at {address}: {nodes} node{'' if nodes == 1 else 's'}, {cores} cores")
        yield
    finally:
        with quiet():
            ray.shutdown()
        ray_prints(True)


def _start(folder: Path, cores: int) -> None:
    try:
        start_ray(folder, cores)
    except UserError:
        raise
    except Exception as error:  # Ray has no class of its own for what can go wrong here
        raise ClusterError(f"Ray did not start on this machine: {first_line(error)}") from error


def _running_cluster() -> str | None:
    """Return the address that the environment or `ray start` names; None where a local cluster is to be started."""
    named = os.environ.get("RAY_ADDRESS", "")
    if named:
        return None if named == "local" else named
    file = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / CURRENT_CLUSTER
    return file.read_text().strip() or None if file.exists() else None


def _attach(ray: Any, address: str) -> None:
    """Connect to a cluster that runs."""
    if "://" in address:
        _check_answers(address)
    ray_prints(False)
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray's client, beside the error
            options = {} if "://" in address else {"log_to_driver": False}
            ray.init(address=address, logging_level=logging.CRITICAL, **options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        with quiet():
            ray.shutdown()
        ray_prints(True)
        if "ersion mismatch" in str(error):
            raise ClusterError(
                f"the cluster at {address} has other versions of Ray or Python than this machine; install the same "
                f"versions on both ({' '.join(str(error).split())})"
            ) from error
        raise _no_cluster(address, first_line(error)) from error


def _check_answers(address: str) -> None:
    """Refuse an address where nothing answers: Ray would try for half a minute, and not say why."""
    found = urlsplit(address)
    try:
        with socket.create_connection((found.hostname or "", found.port or 0), timeout=ANSWER_SECONDS):
            pass
    except OSError as error:
        raise _no_cluster(address, error.strerror or first_line(error)) from error


def _no_cluster(address: str, why: str) -> ClusterError:
    if "://" in address:
        way = "start one there with 'ray start --head', whose port for clients is 10001 unless it is given another"
    else:
        way = (
            "start one with 'ray start --head' and give its address, or unset RAY_ADDRESS and enter 'ray stop' for a "
            "local one with --on ray"
        )
    return ClusterError(f"there is no Ray cluster at {address} ({why}); {way}")
