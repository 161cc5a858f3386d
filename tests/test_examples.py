"""The service units and the container file in examples/: checked as far as a machine allows it."""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNITS = sorted((ROOT / "examples" / "systemd").glob("*.service"))
CONTAINER = ROOT / "examples" / "container"
FARFIELD = "/opt/farfield/bin/farfield"


def commands(text: str) -> list[list[str]]:
    """The farfield commands in a unit."""
    return [shlex.split(line.removeprefix("ExecStart=")) for line in text.splitlines() if line.startswith("ExecStart=")]


def options_of(command: list[str]) -> set[str]:
    return {word for word in command if word.startswith("--")}


def known_options(name: str) -> set[str]:
    import inspect

    from farfield.cli import deployment

    return {f"--{given.replace('_', '-')}" for given in inspect.signature(getattr(deployment, name)).parameters}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_that_exists_as_a_user_of_its_own(unit: Path) -> None:
    (command,) = commands(unit.read_text())
    assert command[0] == FARFIELD
    assert options_of(command) <= known_options(command[1])
    assert re.search(r"^User=farfield-\w+$", unit.read_text(), re.MULTILINE)
    assert "Restart=on-failure" in unit.read_text()
    assert "--accept" not in command, "what leaves a site is approved by a person"
    assert ("--start-or-resume" in command) == (command[1] == "server")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_a_unit_and_finds_it_little_exposed(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name  # with a command that is here, because systemd looks for it
    copy.write_text(unit.read_text().replace(FARFIELD, "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    said = [line for line in checked.stderr.splitlines() if unit.name in line]
    assert checked.returncode == 0, checked.stderr
    assert not said, said
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unrecognized option" in rated.stderr:
        pytest.skip("this systemd-analyze cannot rate a file")
    assert rated.returncode == 0, rated.stdout[-500:] + rated.stderr


def instructions() -> list[tuple[str, str]]:
    """The instructions of the container file, with continued lines joined."""
    text = re.sub(r"\\\n", " ", (CONTAINER / "Containerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def ignored(path: str) -> bool:
    """Whether the ignore file leaves out a path: the last pattern that fits decides."""
    out = False
    for line in (CONTAINER / ".containerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and (fnmatch.fnmatch(path, pattern) or path.split("/")[0] == pattern):
            out = not line.startswith("!")
    return out


def test_everything_that_the_image_copies_exists_and_is_not_ignored() -> None:
    copied = [words.split()[:-1] for kind, words in instructions() if kind == "COPY" and "--from=" not in words]
    sources = [source for words in copied for source in words]
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not ignored(source), source
    for secret in ("certs/ca.key", "examples/hospitals/va/va.key", "data.csv", ".git/config"):
        assert ignored(secret), secret


def test_the_image_installs_the_tested_versions_and_runs_as_a_user_without_rights() -> None:
    made = instructions()
    installs = [words for kind, words in made if kind == "RUN" and "pip install" in words]
    assert installs
    for words in installs:
        assert "-c constraints.txt" in words
        arguments = shlex.split(words.split("pip install")[1])
        assert arguments[-1] == ".[flower]", "nothing but what the constraints pin"
    kinds = [kind for kind, _ in made]
    assert kinds.index("USER") > max(number for number, kind in enumerate(kinds) if kind == "RUN")
    assert ("USER", "farfield") in made
    assert ("STOPSIGNAL", "SIGTERM") in made
    assert ("ENTRYPOINT", '["farfield"]') in made


def test_the_commands_in_the_container_files_comments_exist() -> None:
    text = (CONTAINER / "Containerfile").read_text().replace("\\\n#", " ")
    typed = re.findall(r"^#.*? farfield (server|client) (.*)$", text, re.MULTILINE)
    assert [name for name, _ in typed] == ["server", "client"]
    for name, arguments in typed:
        assert options_of(shlex.split(arguments)) <= known_options(name)
