"""Is this machine ready: versions, room on the disk, permissions, the file mode of what is written."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from farfield.deployment.doctor.check import Check, failed, ok, warning

#: Packages that the two ends of a federation need in the same version, to have the same bits.
PACKAGES = ("farfield", "flwr", "torch", "numpy")
#: Bytes that must be free, and bytes that should be.
LEAST_FREE, ENOUGH_FREE = 200 * 10**6, 2 * 10**9


def check_versions() -> Iterator[Check]:
    """Check that the installed versions are those that farfield accepts, and print them to compare with the others."""
    from packaging.requirements import InvalidRequirement, Requirement

    installed = {name: _version(name) for name in PACKAGES}
    shown = ", ".join(f"{name} {version or 'missing'}" for name, version in installed.items())
    problems = []
    for text in metadata.requires("farfield") or ():
        try:
            needed = Requirement(text)
        except InvalidRequirement:
            continue
        if needed.name in installed and (needed.marker is None or needed.marker.evaluate({"extra": "flower"})):
            version = installed[needed.name]
            if version is None or not needed.specifier.contains(version, prereleases=True):
                problems.append(f"{needed.name} must be {needed.specifier}")
    text = f"{shown}, python {platform.python_version()}"
    if problems:
        yield failed("versions", f"{text}; {', '.join(problems)}: pip install -c constraints.txt 'farfield[flower]'")
    else:
        yield ok("versions", f"{text}; compare them with the other machines': the same give the same bits")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_folder(name: str, folder: Path, *, private: bool) -> Iterator[Check]:
    """Check that a folder can be written, is closed to other users if it has to be, and has room."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        yield failed(name, f"'{existing}' is not a folder; choose another place")
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield failed(name, f"'{existing}' cannot be written by this user; change its owner, or choose another place")
        return
    made = folder.exists()
    mode = stat.S_IMODE(folder.stat().st_mode) if made else 0o700
    if private and mode & 0o077:
        yield warning(
            name, f"'{folder}' has mode {mode:04o}, open to other users of this machine; chmod 700 '{folder}'"
        )
    else:
        yield ok(name, f"'{folder}' {'can be written' if made else 'can be made'}")
    free = shutil.disk_usage(existing).free
    text = f"{free / 1e9:.1f} GB free at '{existing}'"
    if free < LEAST_FREE:
        yield failed(f"{name}'s room", f"{text}; make room, or the run stops when the disk is full")
    elif free < ENOUGH_FREE:
        yield warning(f"{name}'s room", f"{text}; two checkpoints and the logs must fit")
    else:
        yield ok(f"{name}'s room", text)


def check_umask() -> Check:
    """Check that what this user writes is not writable by others."""
    umask = os.umask(0)
    os.umask(umask)
    if umask & 0o022 != 0o022:
        return warning("umask", f"{umask:04o} lets other users change what is written; set umask 0077 or 0022")
    return ok("umask", f"{umask:04o}")
