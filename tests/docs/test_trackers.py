from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "trackers.md"


def test_the_callback_of_the_page_prints_the_worst_domain_of_every_evaluated_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    out = tmp_path / "b"
    exec(code.replace("callbacks=", f"out={str(out)!r}, callbacks="), {"__name__": "page"})
    printed = set(capsys.readouterr().out.splitlines())
    expected = set()
    for path in out.rglob("rounds.jsonl"):
        held_out = unquote(path.parent.parent.name)
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "validation" in row:
                loss, domain = max((figures["loss"], name) for name, figures in row["validation"].items())
                expected.add(
                    f"fedavg, {held_out} held out, seed 0: round {row['round']}, worst is {domain} with loss {loss:.3f}"
                )
    assert printed == expected
    assert len(expected) >= 2
