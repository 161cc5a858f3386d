"""The hub's real client against a small stand-in for the hub on loopback, and what becomes of the parquet files."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from farfield.tasks.data_folder.catalogue import data_set
from farfield.tasks.data_folder.checksums import WrongChecksum
from farfield.tasks.data_folder.data_set import HubRepository
from farfield.tasks.data_folder.downloading import NoSpace
from farfield.tasks.data_folder.fetching import fetch
from farfield.tasks.data_folder.hub import HubFailed, write_folder
from farfield.tasks.data_folder.verification import check
from farfield.tasks.data_sets.array_sets import DamagedData, read
from tests.tasks.small_sets import arrays

COMMIT = "c" * 40


class Hub:
    """The answers that the client asks for: a revision, the list of its files, and the files."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        #: What is sent in place of a file, as by a cache on the way that has a damaged one.
        self.sent: dict[str, bytes] = {}

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        self.asked.append(f"{handler.command} {path}")
        if path in ("/api/datasets/some/set", f"/api/datasets/some/set/revision/{COMMIT}"):
            siblings = [
                {
                    "rfilename": name,
                    "size": len(content),
                    "blobId": hashlib.sha1(content).hexdigest(),
                    "lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130},
                }
                for name, content in self.files.items()
            ]
            return self._json(handler, {"id": "some/set", "sha": COMMIT, "siblings": siblings, "tags": []})
        if path == f"/api/datasets/some/set/tree/{COMMIT}":
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.files.items()
            ]
            return self._json(handler, entries)
        name = path.removeprefix(f"/datasets/some/set/resolve/{COMMIT}/")
        if name not in self.files:
            handler.send_response(404)
            handler.send_header("X-Error-Code", "RepoNotFound")
            handler.send_header("Content-Length", "0")
            return handler.end_headers()
        headers = {"ETag": f'"{hashlib.sha256(self.files[name]).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self._send(handler, self.sent.get(name, self.files[name]), headers)

    def _json(self, handler: BaseHTTPRequestHandler, value: Any) -> None:
        self._send(handler, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, handler: BaseHTTPRequestHandler, body: bytes, headers: dict[str, str]) -> None:
        handler.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(key, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    running = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            running.answer(self)

        do_HEAD = do_GET  # noqa: N815 - the standard library's name

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield running
    server.shutdown()
    server.server_close()
    thread.join()


def encoded(image: np.ndarray, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind)
    return file.getvalue()


def parquet(rows: list[dict[str, Any]], classes: list[str] | None = None, **more: list[str]) -> bytes:
    """A file as the hub's data sets have it: images as {bytes, path}, class names in the schema's metadata."""
    table = pa.Table.from_pylist(rows)
    names = {**({} if classes is None else {"label": classes}), **more}
    if names:
        features: dict[str, Any] = {name: {"names": known, "_type": "ClassLabel"} for name, known in names.items()}
        features |= {"image": {"_type": "Image"}, "boxes": [{"x": {"dtype": "int64", "_type": "Value"}}]}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def pacs_rows() -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    rows = []
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        for number in range(4):
            picture = encoded(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8), "JPEG" if number % 2 else "PNG")
            rows.append({"image": {"bytes": picture, "path": None}, "domain": domain, "label": number % 2})
    return rows


def test_a_set_of_images_becomes_a_folder_with_the_same_bytes(hub: Hub, data: Path) -> None:
    rows = pacs_rows()
    hub.files = {
        "README.md": b"about",
        "data/train-00000-of-00002.parquet": parquet(rows[:7], ["dog", "elephant"]),
        "data/train-00001-of-00002.parquet": parquet(rows[7:], ["dog", "elephant"]),
    }
    known = replace(data_set("pacs"), fetch=HubRepository("some/set", "folder"))
    done = fetch(known)
    assert (done.path, done.files) == (data / "PACS", 16)
    assert (data / "PACS/photo/dog/00001.png").read_bytes() == rows[8]["image"]["bytes"]
    assert (data / "PACS/photo/elephant/00002.jpg").read_bytes() == rows[11]["image"]["bytes"]
    assert not any("README" in line and line.startswith("GET /datasets") for line in hub.asked)
    found = check(data_set("pacs"))
    assert (found.state, found.checksums) == ("part", "16 files as recorded")
    assert found.found == {"art_painting": 4, "cartoon": 4, "photo": 4, "sketch": 4}
    assert sorted(path.name for path in data.iterdir()) == ["PACS", "PACS.sha256"]
    record = (data / "PACS.sha256").read_text().splitlines()
    assert record[0] == f"# some/set on the Hugging Face hub, revision {COMMIT}"
    assert len(record) == 17


def downloads(hub: Hub) -> list[str]:
    return [line.rpartition("/")[2] for line in hub.asked if line.startswith("GET /datasets")]


DOMAINNET = ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]


@pytest.mark.parametrize("revision", ["main", "older"])
def test_domainnet_is_read_in_the_columns_of_either_revision(hub: Hub, data: Path, revision: str) -> None:
    rows = []
    for number, domain in enumerate(DOMAINNET):
        image = {"bytes": pacs_rows()[number]["image"]["bytes"], "path": None}
        older = {"image": image, "domain": domain, "category": "zebra"}
        rows.append({"image": image, "domain": number, "label": 1} if revision == "main" else older)
    names = {"label": ["axe", "zebra"], "domain": DOMAINNET} if revision == "main" else {}
    hub.files = {"data/train-00000-of-00001.parquet": parquet(rows, **names)}
    known = data_set("domainnet")
    assert isinstance(known.fetch, HubRepository)
    fetch(replace(known, fetch=replace(known.fetch, repository="some/set")))
    assert check(known).found == dict.fromkeys(DOMAINNET, 1)
    assert sorted(path.parent.name for path in (data / "domain_net").rglob("*.*")) == ["zebra"] * 6


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"image": {"bytes": b"x", "path": None}, "domain": "photo", "y": 1}],
            "some/set on the hub has no column 'label' or 'category'; it has image, domain, y",
        ),
        ([{"file_name": "a.jpg", "domain": "photo", "label": 1}], "has no column 'image'"),
        ([{"image": {"bytes": b"x", "path": None}, "label": 1}], "has no column 'domain'"),
        ([{"image": {"bytes": b"x", "path": None}, "label": 1, "domain": 3}], "has domains as int64 without their"),
    ],
)
def test_another_layout_is_told_after_one_file(hub: Hub, data: Path, rows: list[dict[str, Any]], message: str) -> None:
    hub.files = {f"data/train-0000{number}-of-00003.parquet": bytes(100_000) for number in range(2)}
    hub.files["data/train-00002-of-00003.parquet"] = parquet(rows)
    with pytest.raises(HubFailed, match=message):
        fetch(replace(data_set("pacs"), fetch=HubRepository("some/set", "folder")))
    assert downloads(hub) == ["train-00002-of-00003.parquet"], "the smallest one"


def test_a_file_with_another_checksum_than_the_hubs_is_removed_and_got_again(hub: Hub, data: Path) -> None:
    rows = pacs_rows()
    names = [f"train-0000{number}-of-00002.parquet" for number in range(2)]
    hub.files = {
        f"data/{name}": parquet(part, ["dog", "elephant"])
        for name, part in zip(names, (rows[:7], rows[7:]), strict=True)
    }
    wrong = bytearray(hub.files[f"data/{names[1]}"])
    wrong[len(wrong) // 2] ^= 1
    hub.sent = {f"data/{names[1]}": bytes(wrong)}
    known = replace(data_set("pacs"), fetch=HubRepository("some/set", "folder"))
    with pytest.raises(WrongChecksum, match=rf"'data/{names[1]}' of some/set has the sha256 .*removed; give the same"):
        fetch(known)
    kept = data / ".fetch/pacs/hub/data"
    assert [path.name for path in kept.iterdir()] == [names[0]]
    assert known.here() is None
    hub.sent.clear()
    hub.asked.clear()
    assert fetch(known).files == 16
    assert downloads(hub) == [names[1]], "what was whole is not downloaded again"


def test_a_file_of_an_older_revision_is_not_read(hub: Hub, data: Path) -> None:
    hub.files = {"data/train-00000-of-00001.parquet": parquet(pacs_rows(), ["dog", "elephant"])}
    older = data / ".fetch/pacs/hub/data"
    older.mkdir(parents=True)
    (older / "train-00000-of-00009.parquet").write_bytes(parquet(pacs_rows(), ["cat", "horse"]))
    assert fetch(replace(data_set("pacs"), fetch=HubRepository("some/set", "folder"))).files == 16
    assert sorted(path.name for path in (data / "PACS/photo").iterdir()) == ["dog", "elephant"]


def test_a_disk_without_room_for_the_images_is_refused_before_the_first_file(
    hub: Hub, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = parquet(pacs_rows(), ["dog", "elephant"])
    hub.files = {"data/train-00000-of-00001.parquet": content}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * len(content) - 1))
    known = replace(data_set("pacs"), fetch=HubRepository("some/set", "folder"))
    with pytest.raises(NoSpace, match=rf"needs {2 * len(content):,} more bytes .* FARFIELD_DATA"):
        fetch(known)
    assert downloads(hub) == []


def test_a_disk_that_fills_up_while_images_are_written_leaves_the_download_alone(
    hub: Hub, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files = {"data/train-00000-of-00001.parquet": parquet(pacs_rows(), ["dog", "elephant"])}
    known = replace(data_set("pacs"), fetch=HubRepository("some/set", "folder"))
    real = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name.startswith("00002"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(NoSpace, match=r"was full before pacs was ready; what was downloaded whole is kept in"):
            fetch(known)
    assert not (data / ".fetch/pacs/ready").exists()
    assert [path.name for path in (data / ".fetch/pacs/hub/data").iterdir()] == ["train-00000-of-00001.parquet"]
    hub.asked.clear()
    assert fetch(known).files == 16
    assert downloads(hub) == []


def test_a_disk_that_fills_up_while_the_hubs_files_come_leaves_no_half_file(
    hub: Hub, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files = {"data/train-00000-of-00001.parquet": parquet(pacs_rows(), ["dog", "elephant"])}
    half = data / ".fetch/pacs/hub/.cache/huggingface/download/data/train.incomplete"

    def full(*_: Any, **__: Any) -> None:
        half.parent.mkdir(parents=True)
        half.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(NoSpace, match="was full before pacs was ready"):
        fetch(replace(data_set("pacs"), fetch=HubRepository("some/set", "folder")))
    assert half.parent.is_dir()
    assert not half.exists()


def test_a_set_of_digits_becomes_arrays(hub: Hub, data: Path) -> None:
    content = arrays(6, 4, (16, 16))
    for split in ("train", "test"):
        rows = [
            {"image": {"bytes": encoded(x, "PNG"), "path": None}, "label": int(y)}
            for x, y in zip(content[f"x_{split}"], content[f"y_{split}"], strict=True)
        ]
        hub.files[f"data/{split}-00000-of-00001.parquet"] = parquet(rows, [str(digit) for digit in range(10)])
    done = fetch(replace(data_set("usps"), fetch=HubRepository("some/set", "npz")))
    assert done.path == data / "usps.npz"
    found = read("t", "usps")
    for key, array in content.items():
        np.testing.assert_array_equal(getattr(found, key), array)


def test_what_the_hub_does_not_have_is_one_sentence(hub: Hub, data: Path) -> None:
    with pytest.raises(HubFailed, match="other/set could not be had from the hub"):
        fetch(replace(data_set("pacs"), fetch=HubRepository("other/set", "folder")))
    hub.files = {"README.md": b"about"}
    with pytest.raises(HubFailed, match=r"some/set has no files like \*\.parquet"):
        fetch(replace(data_set("pacs"), fetch=HubRepository("some/set", "folder")))
    assert data_set("pacs").here() is None


def test_a_hub_that_is_not_reached_is_one_sentence(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(HubFailed, match=r"some/set could not be had from the hub \(.*give the same command again"):
        fetch(replace(data_set("pacs"), fetch=HubRepository("some/set", "folder")))


def test_without_the_client_the_extra_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubFailed, match=r"pip install 'farfield\[hub\]'"):
        fetch(data_set("pacs"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            parquet([{"image": {"bytes": b"x", "path": None}, "label": 0}]),
            "has no column 'domain'",
        ),
        (parquet(pacs_rows(), ["dog"]), "has a label 1 of 1 names"),
        (parquet([{**pacs_rows()[0], "label": -1}], ["dog"]), "has a label -1 of 1 names"),
        (parquet(pacs_rows())[:-20], "cut short or no parquet file"),
        (parquet([{"image": {"bytes": b"x", "path": None}, "label": 0, "domain": ".."}]), "cannot be a folder"),
        (parquet([{"image": {"bytes": None, "path": "a.png"}, "label": 0, "domain": "a"}]), "an image without bytes"),
    ],
)
def test_a_parquet_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train.parquet"
    path.write_bytes(content)
    with pytest.raises(DamagedData, match=message) as caught:
        write_folder([path], tmp_path / "out", "label")
    assert str(path) in str(caught.value)
