"""The page promises two whole methods that pass the battery, and that the battery notices when they are wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farfield.runs.references import REFERENCES

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: One replacement each: FedNova without its normalisation, FedDyn with the sign of its client term flipped.
FAULTS = {
    "fednova": ("(effective / steps)", "(effective / effective).expand(len(steps))"),
    "feddyn": ("local.g - self.params.alpha * (model", "local.g + self.params.alpha * (model"),
}
BATTERY = ("tests/battery/test_battery.py", "tests/battery/test_worked_examples.py")


def _methods() -> dict[str, str]:
    """The two whole files of the page, by the name of the method."""
    blocks = BLOCK.findall((ROOT / "docs" / "add-a-method.md").read_text())
    return {name: block for name in FAULTS for block in blocks if f'@worked_example("{name}"' in block}


def _saved(folder: Path, methods: dict[str, str]) -> list[Path]:
    paths = [folder / f"{name}.py" for name in methods]
    for path, text in zip(paths, methods.values(), strict=True):
        path.write_text(text)
    return paths


def _battery(files: list[Path], *chosen: str) -> tuple[int, str]:
    """Run the battery on these files in a process of its own: a method stays registered until the process ends."""
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *BATTERY, "-k", *chosen],
        cwd=ROOT,
        env={**os.environ, "FARFIELD_USE": os.pathsep.join(map(str, files)), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    return ended.returncode, ended.stdout


def test_each_method_is_one_file_of_under_sixty_lines() -> None:
    methods = _methods()
    assert list(methods) == ["fednova", "feddyn"]
    assert all(len(text.splitlines()) < 60 for text in methods.values())


@pytest.mark.long
def test_the_methods_of_the_page_pass_the_battery(tmp_path: Path) -> None:
    code, told = _battery(_saved(tmp_path, _methods()), "fednova or feddyn")
    assert code == 0, told
    passed = re.search(r"(\d+) passed", told)
    assert passed is not None
    assert int(passed[1]) >= 30


@pytest.mark.slow
def test_the_faulty_versions_fail_their_worked_examples_and_nothing_else(tmp_path: Path) -> None:
    methods = _methods()
    faulty = {name: methods[name].replace(*fault) for name, fault in FAULTS.items()}
    assert all(faulty[name] != methods[name] for name in FAULTS)
    code, told = _battery(_saved(tmp_path, faulty), "fednova or feddyn")
    assert code == 1, told
    failed = re.findall(r"^FAILED .*::(.*?) - ", told, re.MULTILINE)
    assert sorted(failed) == [
        "test_the_method_agrees_with_its_worked_example[feddyn: corrected_clients]",
        "test_the_method_agrees_with_its_worked_example[fednova: two_and_six_steps]",
        "test_the_method_agrees_with_its_worked_example[fednova: updates_per_step]",
    ]


@pytest.mark.long
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    _saved(tmp_path, _methods())
    page = (ROOT / "docs" / "add-a-method.md").read_text().replace("\\\n", "")
    lines = re.findall(r"^\$ (farfield bench .*)$", page, re.MULTILINE)
    assert len(lines) == 2
    for number, line in enumerate(lines):
        command = [sys.executable, "-m", *line.split(), "--json", f"{number}.json", "--out", f"bench-{number}"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in (0, 1))
    first, second = ([r for r in rows if r["method"] not in REFERENCES[:3]] for rows in (first, second))
    assert [row["algorithm"] for row in first] == ["fedavg", "fednova", "fednova+fedadam"]
    assert len({row["model_sha256"] for row in first}) == 3
    assert len({row["model_sha256"] for row in second}) == 3


@pytest.mark.slow
def test_the_class_is_enough_from_python(tmp_path: Path) -> None:
    _saved(tmp_path, _methods())
    (script,) = [b for b in BLOCK.findall((ROOT / "docs" / "add-a-method.md").read_text()) if "ff.bench" in b]
    script += "print([(row['algorithm'], row['rounds']) for row in result.rows][:2])"  # references come after
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    rows = "[('fedavg', 2), ('fednova', 2)]"
    assert ended.stdout.splitlines()[-1:] == [rows], ended.stderr


@pytest.mark.slow
def test_the_mutants_of_both_methods_are_noticed(tmp_path: Path) -> None:
    files = _saved(tmp_path, _methods())
    script = (
        "import sys; from tests.battery import mutants;"
        "mutants.offered_examples = lambda: ['fednova', 'feddyn']; sys.exit(mutants.main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "FARFIELD_USE": os.pathsep.join(map(str, files))},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # FedNova: updates, the update sent. FedDyn: α, adjust, g prepared and kept, the update sent, h. Each three times.
    assert "24 mutants killed, 0 wrong" in ended.stdout
