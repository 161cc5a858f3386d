"""Look at a deployment's processes from outside: which they are, and how much memory they ever had."""

from __future__ import annotations

import contextlib
from pathlib import Path


def find_process(*parts: str) -> int:
    """Return the process whose command line has all of these parts; of several, the one that was started last."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if all(part in command for part in parts):
                    found.append(int(entry.name))
    assert found, f"there is no process with {parts}"
    return max(found)


def memory(pid: int) -> tuple[float, float]:
    """Return the megabytes that a process has now, and the most that it ever had."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1e3, int(status["VmHWM"].split()[0]) / 1e3
