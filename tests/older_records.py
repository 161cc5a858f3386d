"""Records as versions before checksums wrote them: for tests of old folders, and for tests that change a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

_LINE = re.compile(rb',? ?"check": "[0-9a-f]{32}"\}')
_TOML = re.compile(rb'# check = "[0-9a-f]{32}"\n\Z')


def without_checksums(folder: Path) -> Path:
    """Remove every checksum from the files in a folder, and return the folder."""
    for path in folder.rglob("*"):
        if path.suffix == ".jsonl":
            path.write_bytes(_LINE.sub(b"}", path.read_bytes()))
        elif path.suffix == ".toml":
            path.write_bytes(_TOML.sub(b"", path.read_bytes()))
        elif path.suffix == ".json":
            content = json.loads(path.read_bytes())
            if isinstance(content, dict) and content.pop("check", None):
                path.write_text(json.dumps(content))
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                metadata = {name: text for name, text in file.metadata().items() if name != "sha256"}
                tensors = {name: file.get_tensor(name) for name in list(file.keys())}
            save_file(tensors, path, metadata=metadata)
    return folder
