"""Data sets on the Hugging Face hub: parquet files with images, turned into the folder or the .npz that tasks read."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from farfield.errors import UserError
from farfield.tasks.data_folder.data_set import HubRepository
from farfield.tasks.sets.array_sets import DamagedData

_ROWS = 256
_ENDINGS = {b"\xff\xd8\xff": ".jpg", b"\x89PN": ".png", b"GIF": ".gif", b"BM": ".bmp"}


class HubFailed(UserError):
    """The hub could not be reached, or does not have what was asked for."""


def fetch_from_hub(source: HubRepository, folder: Path, ready: Path) -> None:
    """Download parquet files to `folder` (the hub's client goes on where it stopped) and convert them to `ready`."""
    parquet = download_parquet(source, folder)
    if source.becomes == "npz":
        write_npz(parquet, ready, source.label)
    else:
        write_folder(parquet, ready, source.label)


def download_parquet(source: HubRepository, folder: Path) -> list[Path]:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise HubFailed(
            f"{source.repository} is on the Hugging Face hub, and its client is not installed: "
            "pip install 'farfield[hub]'"
        ) from error
    try:
        snapshot_download(
            source.repository,
            repo_type="dataset",
            allow_patterns=[source.files],
            local_dir=folder,
            # Read now: the client reads its environment when it is imported.
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise HubFailed(
            f"{source.repository} could not be had from the hub ({reason}); what came is kept, give the same command "
            "again to go on"
        ) from error
    found = sorted(folder.rglob("*.parquet"))
    if not found:
        raise HubFailed(f"{source.repository} has no files like {source.files} on the hub")
    return found


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
                        row[name] = known[row[name]]
                yield row
    except (pa.ArrowException, OSError, IndexError) as error:
        raise DamagedData(f"'{path}' is cut short or no parquet file ({error}); get it again") from error


def _class_names(metadata: dict[bytes, bytes] | None) -> dict[str, list[str]]:
    features = json.loads((metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return {name: feature["names"] for name, feature in features.items() if feature.get("_type") == "ClassLabel"}


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
