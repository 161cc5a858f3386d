"""Write `.ci/requirements.txt`: every package that CI installs, with the sha256 of the file that was tested.

    .venv/bin/python .ci/pin.py

pip resolves the package with its extras under `constraints.txt` and reports the files that it would install; nothing is
installed. The hashes are for the platform that this runs on: Linux on x86-64 with CPython 3.11 and torch's CPU build.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / ".ci" / "requirements.txt"
#: What builds the package itself: installed under hashes too, because pip's isolated builds would fetch it without.
BUILD = ("hatchling", "editables")
HEAD = (
    "# The files that CI installs, by their sha256. Made by `python .ci/pin.py` from constraints.txt; do not edit.\n"
    "# For Linux on x86-64 with CPython 3.11.\n"
)


def resolved() -> list[dict[str, object]]:
    """Return what pip would install into an empty environment, one entry per file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        pip += ["--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt"), "--report", str(report)]
        subprocess.run([*pip, "--editable", f"{ROOT}[dev,docs]", *BUILD], check=True, stderr=subprocess.DEVNULL)
        return list(json.loads(report.read_text())["install"])


def line(entry: dict[str, object]) -> str | None:
    """Return the requirement of one file with its hash; None for the package itself, which is a folder."""
    about, origin = entry["metadata"], entry["download_info"]
    assert isinstance(about, dict)
    assert isinstance(origin, dict)
    if "archive_info" not in origin:
        return None
    return (
        f"{str(about['name']).lower()}=={about['version']} --hash=sha256:{origin['archive_info']['hashes']['sha256']}"
    )


def main() -> None:
    lines = sorted(text for entry in resolved() if (text := line(entry)))
    REQUIREMENTS.write_text(HEAD + "\n".join(lines) + "\n")
    print(f"{REQUIREMENTS.relative_to(ROOT)}: {len(lines)} files")


if __name__ == "__main__":
    main()
