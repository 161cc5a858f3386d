"""Run a short deployment with the lowest and the highest version of Flower that pyproject.toml allows.

    python tests/deployment/flower_versions.py               # both
    python tests/deployment/flower_versions.py 1.40.0        # these

Each version is installed with its dependencies into a folder of its own, which comes before this installation on the
path: nothing of this installation changes, and torch is not installed again. The highest version is the newest that pip
can install here. First the private parts that Farfield replaces are checked, then a real server trains with three real
sites, and the model must have the same bytes as on one machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What is run with each version: the guards, and one real deployment.
TESTS = (
    ("tests/deployment/flower", "not documentation"),
    ("tests/deployment/test_deployment.py", "same_bytes and fediir and not fedomg"),
)


def allowed() -> str:
    """Return the versions that pyproject.toml allows, as pip writes them: ">=1.40,<1.43"."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return next(name.removeprefix("flwr") for name in extras["flower"] if name.startswith("flwr"))


def lowest_and_highest() -> list[str]:
    bound = allowed()
    lowest = re.search(r">=([\d.]+)", bound)
    if lowest is None:
        raise SystemExit(f"pyproject.toml has no lowest version of flwr: '{bound}'")
    plan = json.loads(pip("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", f"flwr{bound}"))
    highest = next(row["metadata"]["version"] for row in plan["install"] if row["metadata"]["name"] == "flwr")
    return list(dict.fromkeys([lowest[1] if lowest[1].count(".") == 2 else f"{lowest[1]}.0", highest]))


def pip(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"pip {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def passes(version: str, more: tuple[str, ...] = ()) -> bool:
    """Install a version beside this installation, and run the tests with it."""
    with tempfile.TemporaryDirectory(prefix="flower-") as folder:
        print(f"== flwr {version}: installing", flush=True)
        pip("install", "--quiet", "--target", folder, *more, f"flwr=={version}")
        path = os.pathsep.join([folder, str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, "PATH": f"{folder}/bin{os.pathsep}{os.environ.get('PATH', '')}"}
        for tests, which in TESTS:
            pytest = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "long or not long", tests, "-k", which]
            check = f"import flwr.supercore.version as v; assert v.package_version == '{version}', v.package_version"
            subprocess.run([sys.executable, "-c", check], env=env, check=True)
            print(f"== flwr {version}: {tests}", flush=True)
            if subprocess.run(pytest, env=env, cwd=ROOT, check=False).returncode:
                return False
    return True


def main() -> int:
    without = ("--no-deps",) if "--no-deps" in sys.argv else ()
    versions = [given for given in sys.argv[1:] if given != "--no-deps"] or lowest_and_highest()
    results = {version: passes(version, without) for version in versions}
    for version, good in results.items():
        print(f"flwr {version}: {'passed' if good else 'FAILED'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
