"""Files of a deployment are for their owner, also those that an earlier version left open to all."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from farfield.deployment.flower.private_files import for_this_user_only, make_private
from farfield.deployment.flower.processes import Process


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_an_older_folder_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "flower"
    (folder / "home").mkdir(parents=True)
    (folder / "home" / "config").write_text("x")
    (folder / "tool").write_text("x")
    outside = tmp_path / "outside"
    outside.write_text("x")
    (folder / "link").symlink_to(outside)
    for path, wide in (
        (folder, 0o755),
        (folder / "home", 0o775),
        (folder / "home" / "config", 0o664),
        (outside, 0o644),
    ):
        path.chmod(wide)
    (folder / "tool").chmod(0o755)
    make_private(folder)
    assert [mode(path) for path in (folder, folder / "home", folder / "home" / "config")] == [0o700, 0o700, 0o600]
    assert mode(folder / "tool") == 0o700
    assert mode(outside) == 0o644, "what a link points to is not in the folder"


def test_started_processes_and_their_logs_are_private(tmp_path: Path) -> None:
    made = tmp_path / "made"
    command = [sys.executable, "-c", f"open({str(made)!r}, 'w').close()"]
    before = os.umask(0o022)
    try:
        with Process("a process", command, tmp_path / "log", dict(os.environ)) as process:
            while process.code is None:
                time.sleep(0.05)
        with for_this_user_only():
            (tmp_path / "inside").write_text("x")
        (tmp_path / "after").write_text("x")
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("made", "log", "inside", "after")] == [0o600, 0o600, 0o600, 0o644]
