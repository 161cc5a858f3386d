"""The commands and options on the page about operations exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from farfield.cli import certs, deployment, doctor, site

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
COMMANDS = {
    "server": deployment.server,
    "client": deployment.client,
    "doctor": doctor.doctor,
    "site list": site.list_,
    "site remove": site.remove,
    "site rotate": site.rotate,
    "certs server": certs.server,
    "certs node": certs.node,
}


def test_every_command_on_the_page_has_the_options_that_it_is_shown_with() -> None:
    lines = re.findall(r"(?:\$ +|`)farfield ([^`\n]+)", PAGE)
    assert len(lines) >= 8
    for line in lines:
        words = line.split()
        name = words[0] if words[0] in COMMANDS else " ".join(words[:2])
        known = {f"--{given.replace('_', '-')}" for given in inspect.signature(COMMANDS[name]).parameters} | {"--json"}
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)) <= known, line


def test_the_table_of_checks_names_the_checks_that_there_are() -> None:
    """Each check that the code makes is in the table, by the words in its first column."""
    source = "".join(
        path.read_text() for path in (Path(__file__).parents[2] / "src/farfield/deployment/doctor").glob("*.py")
    )
    made = set(re.findall(r'(?:ok|warning|failed)\(\s*"([^"{]+)"', source))
    table = PAGE.split("| check | at |")[1].split("\n\n")[0]
    shown = " ".join(row.split("|")[1] for row in table.splitlines()[2:] if "|" in row)
    for name in made - {"run", "method"}:
        assert any(word in shown for word in (name, name.split()[-1])), name
