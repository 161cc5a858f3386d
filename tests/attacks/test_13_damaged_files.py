"""Attack 13: files that are damaged, or made to be read badly. Each is refused in words, and none takes all memory.

The inputs are concrete. The fuzzers in `tests/fuzz` look for more, and what they find is added here.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy

import farfield as ff
from farfield.errors import UserError
from farfield.records.sealed import SEALED, append_sealed, open_sealed, open_sites
from farfield.report.collect import collect
from farfield.report.page import write_report
from farfield.tasks import unpacking
from farfield.tasks.data_folder.data_set import RemoteFile
from farfield.tasks.data_folder.fetching import _unpack
from farfield.tasks.images.image_set import MOST_PIXELS, ImageError, decode
from farfield.tasks.user_data.column_statistics import PreparationError
from farfield.tasks.user_data.fitted_preparation import read_fitted
from farfield.tasks.user_data.preparation import FORMAT
from tests.fuzz.target import command
from tests.older_records import without_checksums
from tests.toy import task


def grown_mb(action: Callable[[], object]) -> float:
    """How much an action raises the peak memory of a new process, in MB."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # A fork inherits the peak of its parent, so what is compared is what it holds at the end and at the start.
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            action()
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            os.write(write, str(grown).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    text = os.read(read, 100)
    _, status = os.waitpid(child, 0)
    assert status == 0
    return int(text) / 1024


# Sealed rows.


def bomb(size: int) -> str:
    """Sealed text that unpacks to one JSON string of so many bytes."""
    packing = zlib.compressobj(9)
    data = packing.compress(b'{"a": "')
    for _ in range(size >> 20):
        data += packing.compress(b" " * (1 << 20))
    data += packing.compress(b'"}') + packing.flush()
    return "b64:" + base64.b64encode(data).decode()


@pytest.mark.slow
def test_a_sealed_row_that_unpacks_to_gigabytes_is_passed_over(tmp_path: Path) -> None:
    append_sealed(tmp_path, 1, {"accuracy": 0.5, "site": {"rows": 3}})
    text = bomb(1 << 30)
    assert len(text) < 2_000_000
    with open(tmp_path / SEALED, "a") as file:
        file.write(json.dumps({"round": 2, "sealed": text, "site": text}) + "\n")

    def read() -> None:
        assert open_sealed(tmp_path) == [(1, {"accuracy": 0.5})]
        assert open_sites(tmp_path, {1, 2}) == {1: {"rows": 3}}

    # The row above has no checksum, and one before it has: it would be passed over unread.
    without_checksums(tmp_path)
    assert grown_mb(read) < 200


@pytest.mark.parametrize(
    "row",
    [
        {"round": "1", "sealed": "b64:"},
        {"round": 1},
        {"round": 1, "sealed": 7},
        {"round": True, "sealed": "b64:" + base64.b64encode(zlib.compress(b'{"a": 1}')).decode()},
        {"round": 1, "sealed": "b64:" + base64.b64encode(zlib.compress(b"[1]")).decode()},
        {"round": 1, "sealed": "b64:" + base64.b64encode(zlib.compress(b'{"a": "x"}')).decode()},
        {"round": 1, "sealed": "b64:" + base64.b64encode(zlib.compress(b"[" * 60_000)).decode()},
        {"round": 1, "sealed": "b64:" + base64.b64encode(zlib.compress(b'{"a": 1}')[:-3]).decode()},
        {"round": 1, "sealed": "é"},
    ],
)
def test_sealed_rows_of_another_shape_are_passed_over(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / SEALED).write_text(json.dumps(row) + "\n")
    assert open_sealed(tmp_path) == []
    assert open_sites(tmp_path, {1}) == {}


# Pictures.


def png_of(width: int, height: int) -> bytes:
    """A PNG of one colour, made row by row: a few kilobytes for millions of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    packing = zlib.compressobj(9)
    rows = b"".join(packing.compress(b"\0" * (1 + 3 * width)) for _ in range(height)) + packing.flush()
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.slow
def test_a_picture_of_170_megapixels_is_refused_before_it_is_decoded() -> None:
    data = png_of(13_100, 13_000)
    assert len(data) < 1_000_000

    def read() -> None:
        with pytest.raises(ImageError, match=r"170 million pixels, and at most 50 million are decoded"):
            decode(data, 32)

    assert grown_mb(read) < 100


def test_a_picture_of_the_largest_size_is_decoded() -> None:
    side = int(MOST_PIXELS**0.5) // 10
    assert decode(png_of(side, side), 8).shape == (3, 8, 8)


def test_a_large_photograph_counts_by_the_pixels_that_are_decoded() -> None:
    """A JPEG is shrunk while it is decoded, so 64 million pixels become one million."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (8000, 8000), (10, 200, 30)).save(file, "JPEG")
    assert MOST_PIXELS < 8000 * 8000
    assert decode(file.getvalue(), 64)[1].mean() == pytest.approx(200, abs=2)


def test_a_folder_with_such_a_picture_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setenv("FARFIELD_CACHE", str(tmp_path / "cache"))
    for domain in ("north", "south"):
        for label in ("cat", "dog"):
            place = tmp_path / "images" / domain / label
            place.mkdir(parents=True)
            for number in range(5):
                Image.new("RGB", (9, 9), (number * 20, len(domain), len(label))).save(place / f"{number}.png")
    (tmp_path / "images/north/cat/large.png").write_bytes(png_of(10_000, 6_000))
    with pytest.raises(UserError, match=r"north/cat/large.png' \(it has 60 million pixels"):
        ff.read_folder(tmp_path / "images", size=8)


# Archives.


def remote(kind: str) -> RemoteFile:
    return RemoteFile(url=f"https://example.org/a.{kind}", unpack=kind)


def test_a_zip_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "FREE", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", b"0" * (8 << 20))
    (tmp_path / "to").mkdir()
    with pytest.raises(UserError, match=r"'a.zip' has 0.0 MB and unpacks to 8 MB"):
        _unpack(remote("zip"), tmp_path / "a.zip", tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_a_zip_archive_cannot_unpack_to_more_than_it_says(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", b"0" * 4_000_000)
    data = bytearray((tmp_path / "a.zip").read_bytes())
    said = (4_000_000).to_bytes(4, "little")
    while said in data:
        data[data.index(said) : data.index(said) + 4] = (100).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(bytes(data))
    (tmp_path / "to").mkdir()
    with pytest.raises(UserError, match="is no whole zip archive"):
        _unpack(remote("zip"), tmp_path / "a.zip", tmp_path / "to")
    assert sum(path.stat().st_size for path in (tmp_path / "to").iterdir()) <= 100


def test_a_tar_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "FREE", 1 << 20)
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        member = tarfile.TarInfo("a.csv")
        member.size = 8 << 20
        archive.addfile(member, io.BytesIO(b"0" * member.size))
    (tmp_path / "to").mkdir()
    with pytest.raises(UserError, match=r"unpacks to 8 MB"):
        _unpack(remote("tar"), tmp_path / "a.tar", tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_an_archive_with_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_FILES", 3)
    (tmp_path / "to").mkdir()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(4):
            archive.writestr(f"{number}.csv", b"x")
    with pytest.raises(UserError, match="holds 4 files, and at most 3"):
        _unpack(remote("zip"), tmp_path / "a.zip", tmp_path / "to")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(4):
            tar.addfile(tarfile.TarInfo(f"{number}.csv"), io.BytesIO())
    with pytest.raises(UserError, match="holds more than 3 files"):
        _unpack(remote("tar"), tmp_path / "a.tar", tmp_path / "to")


def test_no_name_and_no_link_in_an_archive_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind, link in (
            ("../../outside.csv", tarfile.REGTYPE, ""),
            ("/absolute.csv", tarfile.REGTYPE, ""),
            ("link.csv", tarfile.SYMTYPE, "/etc/passwd"),
            ("hard.csv", tarfile.LNKTYPE, "/etc/passwd"),
            ("pipe", tarfile.FIFOTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            tar.addfile(member, io.BytesIO())
    _unpack(remote("tar"), tmp_path / "a.tar", tmp_path / "to")
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["absolute.csv", "outside.csv"]
    assert all(not path.is_symlink() and path.stat().st_size == 0 for path in (tmp_path / "to").iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "to"]


@pytest.mark.parametrize("name", ["..", "a/..", "."])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "to").mkdir()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"x")
    with pytest.raises(UserError, match="which is not unpacked"):
        _unpack(remote("zip"), tmp_path / "a.zip", tmp_path / "to")


def test_an_archive_whose_numbers_lead_nowhere_is_no_archive(tmp_path: Path) -> None:
    """Found by fuzzing: the start of a member lies before the file, and the system says 'invalid argument'."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.csv", b"x" * 50)
    data = bytearray((tmp_path / "a.zip").read_bytes())
    end = data.rindex(b"PK\x05\x06")
    data[end + 16 : end + 20] = (2**31).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(bytes(data))
    (tmp_path / "to").mkdir()
    with pytest.raises(UserError, match="is no whole zip archive"):
        _unpack(remote("zip"), tmp_path / "a.zip", tmp_path / "to")


# Tables and arrays.

ROWS = "x,hospital,died\n" + "".join(f"{n},{'abc'[n % 3]},{n // 3 % 2}\n" for n in range(30))


def read(path: Path) -> None:
    ff.read_table(path, label="died", domain="hospital")


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("column", ["x", "died"])
def test_a_cell_of_400_digits_is_refused_in_words(tmp_path: Path, column: str, sign: str) -> None:
    """An OverflowError before: a whole number of 400 digits is read as such, and fits into no float."""
    lines = [line.split(",") for line in ROWS.splitlines()]
    lines[4][lines[0].index(column)] = sign + "9" * 400
    (tmp_path / "rows.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    with pytest.raises(UserError, match=r"row 4|rows|infinite|classes"):
        read(tmp_path / "rows.csv")


def test_a_number_with_a_decimal_comma_that_no_reader_takes_is_no_crash(tmp_path: Path) -> None:
    """Found by fuzzing: digits of another script beside decimal commas, which Python counts as digits."""
    lines = [f"{n},5;{'ab'[n % 2]};{n / 3:.2f}".replace(".", ",") for n in range(12)]
    for cell in ("\u0661\u0662,5", "9" * 400 + ",5", "1" * 5000):
        changed = [*lines[:4], f"{cell};a;1,0", *lines[5:]]
        (tmp_path / "rows.csv").write_text("\n".join(["x;hospital;died", *changed]) + "\n")
        with contextlib.suppress(UserError):
            read(tmp_path / "rows.csv")


def test_a_packed_table_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "FREE", 1 << 20)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(ROWS.encode() + b" " * (8 << 20)))
    with pytest.raises(UserError, match=r"'rows.csv.gz' has 0.0 MB and unpacks to"):
        read(tmp_path / "rows.csv.gz")


def test_a_workbook_with_a_cell_far_out_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    import pandas as pd

    pd.read_csv(io.StringIO(ROWS)).to_excel(tmp_path / "seed.xlsx", index=False)
    read(tmp_path / "seed.xlsx")
    with (
        zipfile.ZipFile(tmp_path / "seed.xlsx") as book,
        zipfile.ZipFile(tmp_path / "rows.xlsx", "w", zipfile.ZIP_DEFLATED) as made,
    ):
        for name in book.namelist():
            data = book.read(name)
            if name.startswith("xl/worksheets/"):
                data = data.replace(b'r="A3"', b'r="XFD3"').replace(b'<row r="30"', b'<row r="1048576"')
                assert b"XFD3" in data
                assert b"1048576" in data
            made.writestr(name, data)
    with pytest.raises(UserError, match=r"a sheet of 1,048,576 rows and 16,384 columns"):
        read(tmp_path / "rows.xlsx")


def test_arrays_whose_header_promises_terabytes_are_refused(tmp_path: Path) -> None:
    head = io.BytesIO()
    npy.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    (tmp_path / "x.npy").write_bytes(head.getvalue() + b"\0" * 80)
    with pytest.raises(UserError, match="has more bytes than the file"):
        unpacking.load_npy(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", head.getvalue() + b"\0" * 80)
    with pytest.raises(UserError, match="has more bytes than the file"):
        unpacking.load_npz(tmp_path / "x.npz")


def test_arrays_of_python_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="an array of Python objects"):
        unpacking.load_npy(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("levels", [["a"]]),
        ("levels", ["a", "a"]),
        ("levels", [None]),
        ("scale", 0),
        ("scale", 10**400),
        ("mean", "nan"),
    ],
)
def test_a_preparation_of_another_shape_is_refused(name: str, value: Any) -> None:
    """Found by fuzzing model folders without checksums: a level that is a list, say."""
    column = {"name": "ward", "kind": "category", "levels": ["a"], "missing": False, "live": [True]}
    column |= {"fill": 0.0, "mean": 0.0, "scale": 1.0}
    whole = {"kind": "table", "format": FORMAT, "columns": [column], "label": {"mean": 0.0, "scale": 1.0}, "other": []}
    assert list(read_fitted(whole).to_json()["columns"][0]["levels"]) == ["a"]
    changed = {**column, name: value, "live": [True] * (len(value) if name == "levels" else 1)}
    with pytest.raises(PreparationError, match="damaged"):
        read_fitted({**whole, "columns": [changed]})


# Folders of records: whatever is in them, `farfield report` writes a page or one sentence.


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bench as an older version wrote it, without checksums: what is checked here are the shapes behind them."""
    folder = tmp_path_factory.mktemp("bench") / "b"
    ff.bench(task(3), ["fedavg", "fedprox"], held_out=["a", "b"], seeds=1, rounds=2, out=folder)
    return without_checksums(folder)


RUN = "runs/fedavg/a/seed-0"
CHANGES: list[tuple[str, str, str]] = [
    ("bench.toml", 'kind = "classification"', 'kind = "else"'),
    ("bench.toml", 'kind = "classification"', "kind = 3"),
    ("bench.toml", "rounds = 2", 'rounds = "2"'),
    ("bench.toml", "rounds = 2", "rounds = 99999999999999999999999"),
    ("bench.toml", 'metric = "accuracy"', 'metric = "no"'),
    ("bench.toml", 'metric = "accuracy"', "metric = []"),
    ("bench.toml", "seeds = [", "seeds = [[], "),
    ("bench.toml", "held_out = [", 'held_out = [{a = "b"}, '),
    ("bench.toml", 'baseline = "fedavg"', 'baseline = "x"'),
    ("bench.toml", "format = 3", "format = 1"),
    ("bench.toml", "format = 3", "format = 2"),
    ("bench.toml", 'label = "fedavg"', 'label = "fedprox"'),
    ("bench.toml", 'label = "fedavg"', "label = 1979-05-27T07:32:00Z"),
    ("bench.toml", 'task = "toy"', "task = nan"),
    ("data.json", '"rows"', '"row"'),
    ("data.json", "{", "["),
    (f"{RUN}/config.toml", "seed = 0", 'seed = "0"'),
    (f"{RUN}/config.toml", 'held_out = "a"', "held_out = []"),
    (f"{RUN}/config.toml", 'algorithm = "fedavg"', "algorithm = {}"),
    (f"{RUN}/result.json", '"rounds": 2', '"rounds": null'),
    (f"{RUN}/result.json", '"seconds": ', '"seconds": "x", "s": '),
    (f"{RUN}/result.json", '"local_steps": ', '"local_steps": 1e999, "l": '),
    (f"{RUN}/result.json", '"settings": {', '"settings": {"x": 1e999, '),
    (f"{RUN}/result.json", '"versions": {', '"versions": [], "v": {'),
    (f"{RUN}/rounds.jsonl", '"validation": {', '"validation": [], "v": {'),
    (f"{RUN}/rounds.jsonl", '"accuracy": ', '"accuracy": "x", "a": '),
    (f"{RUN}/rounds.jsonl", '"loss": ', '"loss": [], "l": '),
    (f"{RUN}/rounds.jsonl", '"loss": ', '"loss": 1e308, "l": '),
    (f"{RUN}/rounds.jsonl", '"round": 1', '"round": 2'),
    (f"{RUN}/rounds.jsonl", '"sent": {', '"sent": 3, "s": {'),
    (f"{RUN}/rounds.jsonl", '"diagnostics": {', '"diagnostics": null, "d": {'),
]


@pytest.mark.parametrize(("file", "old", "new"), CHANGES)
def test_a_record_of_another_shape_is_left_out_or_refused(
    bench: Path, tmp_path: Path, file: str, old: str, new: str
) -> None:
    folder = tmp_path / "b"
    shutil.copytree(bench, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    try:
        sweep = collect(folder, "test")
    except UserError as error:
        refused = str(error)
        assert file.split("/")[-1] in refused or str(folder) in refused
    else:
        page = write_report(sweep, tmp_path / "report.html").read_text()
        assert "fedprox" in page


def test_a_site_of_another_shape_is_left_out_of_the_page(bench: Path, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    shutil.copytree(bench, folder)
    for site in ({"rows": "x"}, {"rows": 3, "confusion": [[1, 2], [3]]}, {"rows": 3, "calibration": {"bins": [7]}}):
        for path in folder.rglob(SEALED):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            packed = "b64:" + base64.b64encode(zlib.compress(json.dumps(site).encode())).decode()
            path.write_text("".join(json.dumps({**row, "site": packed}) + "\n" for row in rows))
        sweep = collect(folder, "test")
        assert all(rule["site"] is None for row in sweep.rows for rule in row["selection"].values())
        write_report(sweep, tmp_path / "report.html")


@pytest.mark.slow
def test_the_command_says_one_sentence_and_ends_with_2(bench: Path, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    shutil.copytree(bench, folder)
    (folder / "bench.toml").write_text("a = " + "[" * 50_000)
    done = subprocess.run(
        [sys.executable, "-m", "farfield", "report", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "bench.toml' is damaged: it is nested too deeply" in " ".join(done.stderr.split())


# Files of a deployment.


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 50_000, "name = " + "9" * 5000, "\x00", "name = 2021-13-45", "name = [1, {}]", "[a.b]\n[a]\nb=1"],
)
def test_site_and_federation_files_that_no_one_can_read_are_refused(tmp_path: Path, text: str) -> None:
    site_file = pytest.importorskip("farfield.deployment.site.site_file")
    federation_file = pytest.importorskip("farfield.deployment.federation_file")
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(UserError, match=r"site.toml"):
        site_file.read_site(tmp_path / "site.toml")
    with pytest.raises(UserError, match=r"site.toml"):
        federation_file.read_federation(tmp_path / "site.toml")


def test_an_approval_that_is_nested_too_deeply_is_no_approval(tmp_path: Path) -> None:
    approval = pytest.importorskip("farfield.deployment.manifest.approval")
    (tmp_path / approval.APPROVAL).write_text('{"manifest": ' + "[" * 100_000)
    with pytest.raises(UserError, match="cannot be read"):
        approval.load_approval(tmp_path)


def test_a_command_in_this_process_gives_its_exit_code(tmp_path: Path) -> None:
    """The fuzzers rely on it: a refusal is an error of the user's, which the entry point prints with exit code 2."""
    with pytest.raises(UserError, match="there is no bench"):
        command("report", str(tmp_path))
