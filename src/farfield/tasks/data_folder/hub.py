"""Data sets on the Hugging Face hub: parquet files with images, turned into the folder or the .npz that tasks read."""

from __future__ import annotations

import fnmatch
import glob
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from farfield.errors import UserError
from farfield.tasks.data_folder.checksums import WrongChecksum, digest
from farfield.tasks.data_folder.data_set import HubRepository
from farfield.tasks.data_folder.downloading import NoSpace, is_full
from farfield.tasks.data_folder.store import VARIABLE
from farfield.tasks.data_sets.array_sets import DamagedData

_ROWS = 256
_ENDINGS = {b"\xff\xd8\xff": ".jpg", b"\x89PN": ".png", b"GIF": ".gif", b"BM": ".bmp"}


class HubFailed(UserError):
    """The hub could not be reached, or does not have what was asked for."""


def fetch_from_hub(source: HubRepository, folder: Path, ready: Path) -> str:
    """Download parquet files to `folder` (the hub's client goes on where it stopped) and convert them to `ready`.

    Returns which revision of what it was.
    """
    snapshot = _Snapshot(source, folder)
    # A set that is laid out in another way than expected should cost one file, not all of them.
    (first,) = snapshot.get([min(snapshot.sizes, key=lambda name: (snapshot.sizes[name], name))])
    label = label_column(first, source)
    parquet = snapshot.get(sorted(snapshot.sizes))
    if source.becomes == "npz":
        write_npz(parquet, ready, label)
    else:
        write_folder(parquet, ready, label)
    return f"{source.repository} on the Hugging Face hub, revision {snapshot.revision}"


class _Snapshot:
    """The files of one revision, the newest when this was made, with the sizes and sums that the hub gives for them."""

    def __init__(self, source: HubRepository, folder: Path) -> None:
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise HubFailed(
                f"{source.repository} is on the Hugging Face hub, and its client is not installed: "
                "pip install 'farfield[hub]'"
            ) from error
        self._repository, self._folder = source.repository, folder
        # Read now: the client reads its environment when it is imported.
        self._endpoint = os.environ.get("HF_ENDPOINT")
        with self._failing():
            info = HfApi(endpoint=self._endpoint).dataset_info(source.repository, files_metadata=True)
        files = [file for file in info.siblings or [] if fnmatch.fnmatch(file.rfilename, source.files)]
        if not files or info.sha is None:
            raise HubFailed(f"{source.repository} has no files like {source.files} on the hub")
        self.revision = info.sha
        self.sizes = {file.rfilename: file.size or 0 for file in files}
        self._sums = {file.rfilename: str(file.lfs["sha256"]) for file in files if file.lfs is not None}
        self._verified: set[str] = set()
        # The images that become files of a folder are as large again as the parquet files, which hold their bytes.
        self._check_space(2 if source.becomes == "folder" else 1)

    def get(self, names: list[str]) -> list[Path]:
        """These files, whole: what has another checksum than the hub gives is removed and named."""
        from huggingface_hub import snapshot_download

        with self._failing():
            snapshot_download(
                self._repository,
                repo_type="dataset",
                revision=self.revision,
                allow_patterns=[glob.escape(name) for name in names],
                local_dir=self._folder,
                endpoint=self._endpoint,
            )
        for name in names:
            if name not in self._verified:
                self._verify(name)
                self._verified.add(name)
        return [self._folder / name for name in names]

    def _verify(self, name: str) -> None:
        path = self._folder / name
        if not path.is_file():
            raise HubFailed(f"{self._repository} has '{name}' in its list, and it did not come; try again later")
        expected = self._sums.get(name)
        found = digest(path) if expected is not None else None
        if found != expected:
            path.unlink()
            raise WrongChecksum(
                f"'{name}' of {self._repository} has the sha256 {found}, not {expected} as the hub says: it is damaged "
                "and removed; give the same command again to get it anew"
            )

    def _check_space(self, times: int) -> None:
        here = sum(path.stat().st_size for name in self.sizes if (path := self._folder / name).is_file())
        needed, free = times * sum(self.sizes.values()) - here, shutil.disk_usage(_existing(self._folder)).free
        if needed > free:
            made = ", with the images made of it," if times > 1 else ""
            raise NoSpace(
                f"{self._repository}{made} needs {needed:,} more bytes and the disk of '{self._folder}' has {free:,} "
                f"free; make room, or set {VARIABLE} to a larger disk"
            )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What the client raises as a sentence, except for a full disk, which whoever called knows how to clean up."""
        try:
            yield
        except Exception as error:  # what a broken connection raises differs from one version of the client to the next
            if isinstance(error, OSError) and is_full(error):
                for half in self._folder.rglob("*.incomplete"):
                    half.unlink(missing_ok=True)
                raise
            reason = " ".join(str(error).split())[:200]
            raise HubFailed(
                f"{self._repository} could not be had from the hub ({reason}); what came is kept, give the same "
                "command again to go on"
            ) from error


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)


def label_column(path: Path, source: HubRepository) -> str:
    """The column with the class, if this file has all that is needed of it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise DamagedData(f"'{path}' is cut short or no parquet file ({error}); get it again") from error
    needed = [("image",), source.labels, *([("domain",)] if source.becomes == "folder" else [])]
    for names in needed:
        if not set(names) & set(schema.names):
            raise HubFailed(
                f"{source.repository} on the hub has no column {' or '.join(map(repr, names))}; it has "
                f"{', '.join(schema.names)}: get it by hand, until farfield knows that layout"
            )
    if source.becomes == "folder" and "domain" not in _class_names(schema.metadata):
        kind = schema.field("domain").type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)):
            raise HubFailed(f"{source.repository} on the hub has domains as {kind} without their names")
    return next(name for name in source.labels if name in schema.names)


def write_folder(parquet: list[Path], ready: Path, label: str) -> None:
    """`domain/class/number.jpg` with the images' own bytes, numbered in the order of the files."""
    numbers: Counter[tuple[str, str]] = Counter()
    ready.mkdir()
    for path in parquet:
        for row in _rows(path, ("image", "domain", label)):
            place = (_safe(row["domain"], path), _safe(row[label], path))
            numbers[place] += 1
            folder = ready.joinpath(*place)
            if numbers[place] == 1:
                folder.mkdir(parents=True)
            content = _bytes(row["image"], path)
            (folder / f"{numbers[place]:05d}{_ending(content)}").write_bytes(content)


def write_npz(parquet: list[Path], ready: Path, label: str) -> None:
    """Arrays of the training and test files, told apart by how their names begin."""
    from PIL import Image

    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        images, labels = [], []
        for path in parquet:
            if path.name.startswith(split):
                for row in _rows(path, ("image", label), names=False):
                    images.append(np.asarray(Image.open(io.BytesIO(_bytes(row["image"], path)))))
                    labels.append(row[label])
        if not images:
            raise HubFailed(f"there are no {split} files among {', '.join(path.name for path in parquet)}")
        arrays |= {f"x_{split}": np.stack(images), f"y_{split}": np.asarray(labels, np.uint8)}
    with open(ready, "wb") as out:
        np.savez_compressed(out, **arrays)


def _rows(path: Path, columns: tuple[str, ...], names: bool = True) -> Iterator[dict[str, Any]]:
    """Rows of a parquet file, some at a time; class numbers become the names that the file's schema gives them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise DamagedData(f"'{path}' has no column '{missing[0]}'; it has {', '.join(file.schema_arrow.names)}")
        classes = _class_names(file.schema_arrow.metadata) if names else {}
        for batch in file.iter_batches(_ROWS, columns=list(columns)):
            for row in batch.to_pylist():
                for name, known in classes.items():
                    if name in row:
                        number = row[name]
                        # The hub writes -1 where nobody knows.
                        if number is None or not 0 <= number < len(known):
                            raise DamagedData(f"'{path}' has a {name} {number} of {len(known)} names; get it again")
                        row[name] = known[number]
                yield row
    except (pa.ArrowException, OSError) as error:
        raise DamagedData(f"'{path}' is cut short or no parquet file ({error}); get it again") from error


def _class_names(metadata: dict[bytes, bytes] | None) -> dict[str, list[str]]:
    features = json.loads((metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return {
        name: feature["names"]
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
    }


def _bytes(image: Any, path: Path) -> bytes:
    content = image.get("bytes") if isinstance(image, dict) else None
    if not content:
        raise DamagedData(f"'{path}' has an image without bytes")
    return bytes(content)


def _ending(content: bytes) -> str:
    return next((ending for start, ending in _ENDINGS.items() if content.startswith(start)), ".img")


def _safe(name: Any, path: Path) -> str:
    """A name as one part of a path; one that would lead out of the folder is refused."""
    text = str(name).replace("/", "_").replace("\\", "_").strip()
    if not text or text.startswith("."):
        raise DamagedData(f"'{path}' has the name {name!r}, which cannot be a folder")
    return text
