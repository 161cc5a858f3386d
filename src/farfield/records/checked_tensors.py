"""Tensors in a safetensors file with a checksum over all that the file says: names, types, shapes, values, metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, uint8

from farfield.records.atomic import write_atomic
from farfield.records.checksums import DamagedFile

SHA256 = "sha256"


def save_checked(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata with their checksum, whole or not at all."""
    # safetensors refuses tensors that share memory, and two names may well hold one tensor.
    own = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, _in_order(save(own, metadata={**metadata, SHA256: content_hash(own, metadata)})))


def _in_order(data: bytes) -> bytes:
    """Return a safetensors file with its metadata in the order of the names: equal content is then equal bytes."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def load_checked(path: Path, names: frozenset[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata. Raises DamagedFile for a file that does not say what was written.

    `names` are the entries that the metadata must have; others mean damage, such as one in the name of the checksum.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise DamagedFile(f"'{path}' is damaged: {' '.join(str(error).split())}") from error
    known = metadata.pop(SHA256, None)
    if metadata.keys() != names:
        raise DamagedFile(f"'{path}' is damaged or was not written by farfield: it is about {_listed(metadata)}")
    if known is not None and known != content_hash(tensors, metadata):
        raise DamagedFile(f"'{path}' is damaged: its content does not match its checksum; restore it from a copy")
    return tensors, metadata


def is_checked(path: Path) -> bool:
    """Return whether a readable file has a checksum; older versions wrote none."""
    with safe_open(path, framework="pt") as file:
        return SHA256 in (file.metadata() or {})


def content_hash(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the sha256 over metadata and tensors, whatever their order in the file."""
    hashed = hashlib.sha256()
    for name in sorted(metadata):
        _add(hashed, name.encode())
        _add(hashed, metadata[name].encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        _add(hashed, f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}".encode())
        hashed.update(tensor.reshape(-1).view(uint8).numpy().data if tensor.numel() else b"")
    return hashed.hexdigest()


def _add(hashed: hashlib._Hash, part: bytes) -> None:
    """Add a part with its length, so that no two contents give the same bytes."""
    hashed.update(len(part).to_bytes(8, "little") + part)


def _listed(metadata: Mapping[str, str]) -> str:
    return ", ".join(repr(name) for name in sorted(metadata)[:5]) or "nothing"
