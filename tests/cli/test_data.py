"""`farfield data` as a user types it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from farfield.cli import data as data_command
from farfield.tasks.data_folder.catalogue import CATALOGUE
from farfield.tasks.data_folder.data_set import RemoteFile
from farfield.tasks.data_folder.store import VARIABLE
from tests.tasks.loopback import serving
from tests.tasks.small_sets import arrays, save

Command = Callable[..., Any]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    return tmp_path / "data"


def test_ls_names_every_set_with_its_terms_and_where_it_is(farfield: Command, data: Path) -> None:
    data.mkdir()
    path = save(data / "mnist.npz", arrays(5, 5))
    rows = {row["name"]: row for row in json.loads(farfield("data", "ls", "--json").out)}
    assert set(rows) == set(CATALOGUE)
    assert rows["mnist"]["here"] is True
    assert (rows["mnist"]["path"], rows["mnist"]["bytes"]) == (str(path), path.stat().st_size)
    assert rows["vlcs"]["here"] is False
    assert rows["vlcs"]["fetchable"] is False
    assert rows["pacs"]["published"]["sketch"] == 3929
    shown = farfield("data", "ls")
    assert shown.code == 0
    assert "CC BY 4.0" in shown.out
    assert str(data) in shown.out


def test_import_then_check_then_damage(farfield: Command, data: Path, tmp_path: Path) -> None:
    source = save(tmp_path / "mnist.npz", arrays(30, 20))
    ran = farfield("data", "import", str(source))
    assert ran.code == 0
    assert "mnist: 1 files in" in ran.out
    assert "terms: usually quoted as CC BY-SA 3.0" in ran.out
    (row,) = json.loads(farfield("data", "check", "--json").out)
    assert (row["name"], row["state"], row["found"]) == ("mnist", "part", {"train": 30, "test": 20})
    content = bytearray((data / "mnist.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (data / "mnist.npz").write_bytes(content)
    damaged = farfield("data", "check", "mnist")
    assert damaged.code == 1
    assert "damaged" in damaged.out
    assert "1 changed (mnist.npz)" in damaged.out


def test_mistakes_are_one_sentence_and_exit_code_2(farfield: Command, data: Path, tmp_path: Path) -> None:
    for arguments, words in (
        (["data", "fetch", "mnits"], "did you mean 'mnist'?"),
        (["data", "check", "cifar-10"], "did you mean 'cifar10'?"),
        (["data", "check", "mnist"], "mnist is not here; farfield data fetch mnist"),
        (["data", "import", "nowhere"], "there is no file or folder 'nowhere'"),
        (["data", "fetch", "vlcs"], "vlcs cannot be downloaded for you"),
        (["data", "import", str(tmp_path)], "looks like none of the known data sets"),
    ):
        ran = farfield(*arguments)
        assert ran.code == 2, arguments
        assert words in " ".join(ran.err.split()), arguments
        assert "Traceback" not in ran.err
    assert farfield("data", "check").out.startswith("there is no data set in")


def test_fetch_shows_the_terms_and_asks_before_it_downloads(
    farfield: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = save(tmp_path / "m.npz", arrays(30, 20)).read_bytes()
    with serving() as site:
        site.files["/mnist.npz"] = content
        file = RemoteFile(f"{site.url}/mnist.npz", "sha256:" + hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], fetch=(file,)))
        for answer in ("", "n\n"):
            monkeypatch.setattr("sys.stdin", io.StringIO(answer))
            refused = farfield("data", "fetch", "mnist")
            assert refused.code == 2
        assert "terms: usually quoted as CC BY-SA 3.0" in refused.out
        assert "the terms were not accepted" in " ".join(refused.err.split())
        assert site.asked == []
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
        assert farfield("data", "fetch", "mnist").code == 0
        (data / "mnist.npz").unlink()
        done = farfield("data", "fetch", "mnist", "--yes")
        assert done.code == 0
        assert "terms: usually quoted as CC BY-SA 3.0" in done.out
    assert (data / "mnist.npz").read_bytes() == content
    assert farfield("data", "fetch", "mnist", "--yes").code == 2


def test_a_task_without_its_data_says_how_to_get_it_and_nothing_is_downloaded(farfield: Command, data: Path) -> None:
    ran = farfield("bench", "rotated-mnist")
    assert ran.code == 2
    said = " ".join(ran.err.split())
    assert "there is no mnist.npz or MNIST in" in said
    assert "get it with 'farfield data fetch mnist'" in said
    assert not data.exists()


def test_a_bench_on_imported_digits_uses_the_tasks_own_partition(farfield: Command, data: Path, tmp_path: Path) -> None:
    from farfield.tasks import load

    load.cache_clear()
    content = arrays(400, 40)
    content["x_train"][np.arange(400), :, content["y_train"]] = 255
    farfield("data", "import", str(save(tmp_path / "mnist.npz", content)))
    options = ["--seeds", "1", "--rounds", "1", "-a", "fedavg", "--json", "r.json", "-q", "-j", "1"]
    ran = farfield("bench", "mnist", *options, "--set", "model.hidden=[2,4,8]")
    assert ran.code == 0, ran.err
    (row,) = json.loads(Path("r.json").read_text())
    assert (row["held_out"], row["clients"]) == ("test", 100)
    load.cache_clear()


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_cuts_no_name_whatever_the_width(width: int) -> None:
    to = io.StringIO()
    console = Console(file=to, width=width)
    rows = [data_command._row(known) for known in CATALOGUE.values()]
    console.print(data_command._listing(rows, width))
    text = to.getvalue()
    assert "…" not in text
    listed = {line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")}
    assert set(CATALOGUE) <= listed
    assert max(map(len, text.splitlines())) <= width
