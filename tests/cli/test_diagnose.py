"""`farfield diagnose`: a table with sentences, JSON and a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farfield.diagnose.finding import Diagnosis
from tests.tasks.tables import visits, write

Command = Callable[..., Any]


def test_a_table_of_ones_own_is_diagnosed_with_json_and_page(farfield: Command, tmp_path: Path) -> None:
    write(visits(120), tmp_path / "visits.csv")
    table = ("--data", "visits.csv", "--label", "died", "--domain", "hospital")
    ran = farfield("diagnose", *table, "--quick", "--json", "d.json", "--to", "d.html")
    assert ran.code == 0, ran.err
    found = Diagnosis.from_json(json.loads((tmp_path / "d.json").read_text()))
    assert found.domains == ("north", "south", "west")
    assert found.rows == 120
    told = " ".join(ran.out.split())
    for finding in found.results:
        assert f"{finding.kind.capitalize()}: {finding.verdict}." in told
        assert " ".join(finding.sentence.split()) in told
    assert found.conclusion in told
    assert "Nothing that trains or selects a model reads it" in told
    assert "<svg" in (tmp_path / "d.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give a task (see 'farfield list tasks'), or your own data with --data"),
        (("rect-4", "--json", "nowhere/d.json"), "--json: there is no folder 'nowhere' to write 'd.json' into"),
        (("rect-4", "--to", "."), "--to: '.' is a folder; name a file"),
        (("rect-5",), "rect-4"),
    ],
)
def test_a_mistake_is_one_sentence(farfield: Command, arguments: tuple[str, ...], sentence: str) -> None:
    ran = farfield("diagnose", *arguments)
    assert ran.code == 2
    assert sentence in " ".join(ran.err.split())
