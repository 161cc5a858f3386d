"""Pretrained weights of a backbone: found in a file on this machine, never downloaded, recorded by name and hash.

    spec = pin(ModelSpec(featurizer="resnet18", weights="auto", ...))
    spec.weights                    # 'resnet18.pth@sha256:5c10…': what a record says, whatever the folder was

A pinned spec can be built again wherever a file with these bytes lies in a folder that is searched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield.errors import UserError
from farfield.models.spec import ModelSpec
from farfield.models.timm_library import configuration, file_stem, is_timm, resolved_name

AUTO, NONE = "auto", "none"
SUFFIXES = (".safetensors", ".pth", ".pt")
#: Where weights are published: torchvision's first ImageNet weights, which the papers start from.
PUBLISHED = {
    "resnet18": "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    "resnet50": "https://download.pytorch.org/models/resnet50-0676ba61.pth",
}
_MARK = "@sha256:"


class WeightsError(UserError):
    """Weights that are not here, or that do not fit."""


#: Files that come with an installed package, by backbone; a function because looking costs an import.
_PACKAGED: dict[str, Callable[[], Path | None]] = {}
_FOLDERS: list[Callable[[], Sequence[Path]]] = []
#: Where bytes with this hash were seen in this process.
_SEEN: dict[str, Path] = {}


def search_in(folders: Callable[[], Sequence[Path]]) -> None:
    """Look for weight files in these folders as well. The layer that knows where data lies says so."""
    _FOLDERS.append(folders)


def packaged(backbone: str) -> Callable[[Callable[[], Path | None]], Callable[[], Path | None]]:
    """Register where an installed package keeps the weights of a backbone; None if it is not installed."""

    def add(find: Callable[[], Path | None]) -> Callable[[], Path | None]:
        _PACKAGED[backbone] = find
        return find

    return add


def pin(spec: ModelSpec, backbones: Sequence[str]) -> ModelSpec:
    """The spec with `weights` resolved: 'none', or name and hash of a file that is here.

    The name of a model of timm gets the tag of its weights and the version of timm.
    """
    spec = spec.model_copy(update={"featurizer": resolved_name(spec.featurizer)})
    if spec.featurizer not in backbones and not is_timm(spec.featurizer):
        if spec.weights not in (AUTO, NONE):
            raise WeightsError(
                f"model.weights = '{spec.weights}': featurizer '{spec.featurizer}' takes no pretrained weights; "
                f"{', '.join(backbones)} and timm:NAME do"
            )
        return spec.model_copy(update={"weights": NONE})
    if spec.weights == NONE:
        return spec
    path, digest = locate(spec.featurizer, spec.weights)
    return spec.model_copy(update={"weights": f"{path.name}{_MARK}{digest}"})


def locate(backbone: str, weights: str) -> tuple[Path, str]:
    """The file that `weights` means ('auto', a path, or a pinned name) and the hash of its bytes."""
    name, mark, wanted = weights.partition(_MARK)
    if mark:
        return _find_pinned(name, wanted), wanted
    path = _find_usual(backbone) if weights == AUTO else Path(weights).expanduser()
    if not path.is_file():
        raise WeightsError(f"model.weights = '{weights}': there is no such file; 'none' trains from scratch")
    if path.suffix not in SUFFIXES:
        raise WeightsError(f"'{path}' is no weight file: it must end in {' or '.join(SUFFIXES)}")
    status = path.stat()
    digest = _digest(path, status.st_size, status.st_mtime_ns)
    _SEEN[digest] = path
    return path, digest


def file_of(spec: ModelSpec) -> Path | None:
    """Return where the weights of a pinned spec lie on this machine; None for a spec without any."""
    return locate(spec.featurizer, spec.weights)[0] if _MARK in spec.weights else None


def usual_folders() -> list[Path]:
    """Where weight files are looked for: `weights/` in every data folder."""
    return [folder / "weights" for folders in _FOLDERS for folder in folders()]


def usual_stem(backbone: str) -> str:
    """The name of a backbone's weight file in a weights folder, without its ending."""
    return file_stem(backbone) if is_timm(backbone) else backbone


def _find_usual(backbone: str) -> Path:
    for folder in usual_folders():
        for suffix in SUFFIXES:
            path = folder / f"{usual_stem(backbone)}{suffix}"
            if path.is_file():
                return path
    inside = _PACKAGED[backbone]() if backbone in _PACKAGED else None
    if inside is not None:
        return inside
    raise WeightsError(_absent(backbone))


def _absent(backbone: str) -> str:
    """Which file was looked for, how to get it, and what else can be done."""
    names = f"{usual_stem(backbone)}{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
    places = " or ".join(map(str, usual_folders()))
    ways = ["name a file with --set model.weights=PATH", "train from scratch with --set model.weights=none"]
    if backbone in PUBLISHED:
        target = (usual_folders() or [Path("weights")])[0] / f"{backbone}{SUFFIXES[1]}"
        ways = [f"download {PUBLISHED[backbone]} to {target}", *ways, "take frozen features with --features cached"]
    elif is_timm(backbone) and configuration(backbone).source:
        ways = [f"download them with 'farfield data fetch timm:{configuration(backbone).name}'", *ways]
    elif backbone in _PACKAGED:
        ways = ["install farfield[efficientnet], which has them", *ways]
    return (
        f"the pretrained weights of {backbone} are not here: there is no {names} in {places or 'a data folder'}; "
        f"{', '.join(ways[:-1])}, or {ways[-1]}"
    )


def _find_pinned(name: str, wanted: str) -> Path:
    candidates = [_SEEN[wanted]] if wanted in _SEEN else []
    candidates += [folder / name for folder in usual_folders()]
    candidates += [path for find in _PACKAGED.values() if (path := find()) is not None and path.name == name]
    other = ""
    for path in filter(Path.is_file, candidates):
        # A file that was seen before may have been replaced since, so it is asked as well.
        digest = _digest(path, path.stat().st_size, path.stat().st_mtime_ns)
        if digest == wanted:
            _SEEN[wanted] = path
            return path
        other = other or f" ('{path}' has sha256 {digest[:12]}…)"
    places = " or ".join(str(folder) for folder in usual_folders()) or "a weights folder"
    raise WeightsError(
        f"the weights '{name}' with sha256 {wanted[:12]}… are not here{other}; put the file that has it into {places}"
    )


@cache
def _digest(path: Path, size: int, mtime: int) -> str:
    # Size and time are part of the key, so that a file that was replaced is read again.
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a weight file. Only tensors are read from it: no code in it can run."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file that is no weights makes the readers raise whatever comes to their mind
        first = str(error).split("\n")[0]
        raise WeightsError(f"'{path}' cannot be read as weights: {first}") from error
    for wrapper in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    return _tensors(path, content)


def _tensors(path: Path, content: Any) -> dict[str, Tensor]:
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise WeightsError(f"'{path}' holds no named tensors; save a state_dict with torch.save or safetensors")
    return {str(name).removeprefix("module."): value for name, value in content.items()}


def load_into(module: torch.nn.Module, backbone: str, weights: str, ignore: Callable[[str], bool]) -> None:
    """Fill a module from a weight file, by name. Only names that `ignore` knows (the old head) may be left over."""
    path, _ = locate(backbone, weights)
    given = {name: value for name, value in read(path).items() if not ignore(name)}
    own = module.state_dict()
    missing = [name for name in own if name not in given and not name.endswith("num_batches_tracked")]
    extra = [name for name in given if name not in own]
    if missing or extra:
        what = f"has no '{missing[0]}'" if missing else f"has '{extra[0]}' too"
        raise WeightsError(
            f"'{path}' holds other weights than those of {backbone}: it {what} "
            f"({len(missing)} names missing, {len(extra)} too many)"
        )
    for name, value in given.items():
        if value.shape != own[name].shape:
            raise WeightsError(
                f"'{path}' does not fit {backbone}: '{name}' is {tuple(value.shape)}, not {tuple(own[name].shape)}"
            )
    module.load_state_dict(given, strict=False)
