"""Images replaced by the features of a frozen, pretrained backbone, computed once.

    task = with_features(load("pacs"), "efficientnet-lite0")      # 1280 numbers an image instead of pixels

The backbone was trained on other images and stays as it is: it sees no label, no statistic of any domain is taken, and
each image's features depend on that image alone. So nothing of a held-out domain reaches the training through them.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from farfield.errors import UserError
from farfield.models import BACKBONES, ModelSpec, build_model, is_backbone, native_shape, pin, resolved_name
from farfield.models.norm_layers import after_norm
from farfield.models.timm_library import is_timm
from farfield.reproducibility.devices import CPU
from farfield.reproducibility.threads import one_thread
from farfield.tasks.data_folder.store import locate
from farfield.tasks.images.cache import cached_array
from farfield.tasks.images.computed_apart import computed_for
from farfield.tasks.images.image_set import ImageInput, ImageSet, in_order, progress_bar
from farfield.tasks.images.pixels import HashedImages, read_chunk, refuse_broken
from farfield.tasks.task import Domain, Task
from farfield.tasks.unpacking import load_npz
from farfield.tasks.user_data.folder import described, make_domains, official

DEFAULT = "efficientnet-lite0"
#: What the backbones were trained at; timm says it for each of its models.
INPUT = 224
#: Few images at a time keep a layer's values in the processor's cache and its memory in use: three times as fast as 32.
BATCH = 2
#: On a GPU many at a time.
GPU_BATCH = 64
VERSION = "1"
#: An image that shows whether two networks are the same function, for networks that take any size.
PROBE = (3, 64, 64)
#: Features that someone has computed already, by task: used where the images themselves are not here.
READY = {"pacs": "pacs_feat_efficientnet_lite0.npz"}
#: Chosen among six settings for FedAvg on PACS: one seed, cartoon held out, by validation rows of the other domains.
DEFAULTS = {"rounds": 20, "local_epochs": 1, "batch_size": 32, "lr": 0.02, "momentum": 0.9}
#: Of a task's own defaults, those that say who its clients are, not how they train.
WHO_TRAINS = ("partition", "clients", "cohort")


class FeatureError(UserError):
    """Features that cannot be had."""


def features_of_images(
    name: str, images: ImageSet, backbone: str, description: str, source: str, device: torch.device = CPU
) -> Task:
    kept, notes = described(images)
    x, about, made = image_features(images, backbone, kept, device)
    return _task(name, make_domains(images, x), images.classes, about, description, source, notes, made)


def with_features(task: Task, backbone: str = DEFAULT, device: torch.device = CPU) -> Task:
    """The task with the features of a frozen backbone in place of its images."""
    if task.images is not None:
        x, about, made = image_features(task.images, backbone, device=device)
        domains = make_domains(task.images, x)
    else:
        domains, about, made = _tensor_features(task, backbone, device)
    made_of = _task(task.name, domains, task.classes, about, task.description, task.source, task.notes, made)
    # Who trains and who is held out is the task's question, and stays the same.
    kept = {key: task.defaults[key] for key in WHO_TRAINS if key in task.defaults}
    return replace(
        made_of,
        held_out=task.held_out,
        defaults={**made_of.defaults, **kept},
        classes_from_rows=task.classes_from_rows,
    )


def _task(
    name: str,
    domains: tuple[Domain, ...],
    classes: tuple[str, ...],
    about: str,
    description: str,
    source: str,
    notes: tuple[str, ...],
    made: ImageInput | None = None,
) -> Task:
    width = domains[0].x.shape[1]
    return Task(
        name=name,
        kind="classification",
        domains=domains,
        classes=classes,
        model=ModelSpec(featurizer="mlp", input_shape=(width,), outputs=len(classes), hidden=(128,)),
        defaults=DEFAULTS,
        description=f"{description}; features of a frozen backbone",
        source=source,
        notes=notes,
        fingerprint=about,
        input=made,
    )


def backbone_named(features: str) -> str:
    """Return the backbone that `cached`, `cached:BACKBONE` or `timm:NAME` means, or the name of a .npz file."""
    kind, _, backbone = features.partition(":")
    known = ", ".join([*BACKBONES, "timm:NAME"])
    if kind != "cached" and not is_backbone(features):
        raise FeatureError(f"features = '{features}': say cached, or cached:BACKBONE with {known}")
    backbone = features if kind != "cached" else backbone or DEFAULT
    if not is_backbone(backbone) and not backbone.endswith(".npz"):
        raise FeatureError(f"there is no backbone '{backbone}'; choose one of {known}, or a .npz file")
    return backbone


def image_features(
    images: ImageSet, backbone: str, kept: HashedImages | None = None, device: torch.device = CPU
) -> tuple[Tensor, str, ImageInput]:
    """Features [n, d] of the files, float32 over a memory map, a line that says what they are, and how to make more."""
    made, width = _input_of(backbone)
    kept = kept or HashedImages.of(images)
    key = kept.key("features", VERSION, made.backbone, made.weights, made.size, *on_gpu(device))
    x = cached_array(
        "features",
        key,
        shape=(len(images), width),
        dtype="float32",
        make=lambda: computed_for(device, lambda: file_features(images, made, device)),
    )
    return x, _about(made, device, f"images {kept.key()}"), made


def _input_of(backbone: str, arrays: tuple[int, ...] = ()) -> tuple[ImageInput, int]:
    """How features of this backbone are made, with the weights that are here, and how many an image has."""
    name = resolved_name(backbone)
    _, width, weights = frozen(name)
    return ImageInput(_shape_of(name)[1], name, weights, arrays=arrays), width


def _shape_of(backbone: str) -> tuple[int, int, int]:
    channels, height, width = native_shape(backbone, INPUT)
    if channels != 3 or height != width:
        raise FeatureError(
            f"'{backbone}' takes images of {channels} channels and {height} × {width}; features are computed from "
            "squares of 3 channels, so choose another backbone"
        )
    return channels, height, width


def on_gpu(device: torch.device) -> tuple[str, ...]:
    """Return what tells features of a GPU, whose last bits differ, from those of the CPU."""
    return () if device.type == "cpu" else (device.type,)


def _about(made: ImageInput, device: torch.device, images: str) -> str:
    return " by ".join([f"features of {made.backbone} ({made.weights}) on {images}", *on_gpu(device)])


def file_features(images: ImageSet, made: ImageInput, device: torch.device = CPU) -> Iterator[NDArray[np.float32]]:
    """The features of the files in order, some at a time. After the last one, all broken files are refused."""
    network = _network(made, device)
    size = BATCH if device == CPU else GPU_BATCH
    paths = [images.root / path for path in images.paths]
    parts = [paths[i : i + size] for i in range(0, len(paths), size)]

    def compute(part: list[Path]) -> tuple[NDArray[np.float32], list[tuple[Path, str]]]:
        pixels, broken = read_chunk(part, made.size)
        return _forward(network, torch.from_numpy(pixels).to(device)), broken

    broken: list[tuple[Path, str]] = []
    with progress_bar(f"{made.backbone} on {len(images)} images", len(images)) as advance, one_thread():
        for values, bad in in_order(compute, parts):
            broken += bad
            advance(len(values))
            yield values
    refuse_broken(broken, images.root)


def _tensor_features(task: Task, backbone: str, device: torch.device) -> tuple[tuple[Domain, ...], str, ImageInput]:
    """The same for a task whose images are tensors."""
    shape = task.model.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise FeatureError(
            f"task '{task.name}' has inputs of shape {shape}; features are for images of 1 or 3 channels"
        )
    made, width = _input_of(backbone, shape)
    digest = hashlib.sha256()
    for domain in task.domains:
        digest.update(domain.x.contiguous().numpy().tobytes())
    described_by = (digest.hexdigest(), VERSION, made.backbone, made.weights, made.size, *on_gpu(device))
    key = hashlib.sha256(repr(described_by).encode()).hexdigest()[:40]
    sizes = [len(domain) for domain in task.domains]

    def make() -> Iterator[NDArray[np.float32]]:
        return computed_for(device, lambda: array_features([domain.x for domain in task.domains], made, device))

    x = cached_array("features", key, shape=(sum(sizes), width), dtype="float32", make=make)
    cut = [replace(d, x=part) for d, part in zip(task.domains, torch.split(x, sizes), strict=True)]
    return tuple(cut), _about(made, device, f"tensors {digest.hexdigest()[:40]}"), made


def array_features(
    arrays: Sequence[Tensor], made: ImageInput, device: torch.device = CPU
) -> Iterator[NDArray[np.float32]]:
    """The features of images that are tensors, enlarged to the backbone's size first; in order, some at a time."""
    network = _network(made, device)
    parts = [part for x in arrays for part in torch.split(x, BATCH if device == CPU else GPU_BATCH)]
    rows = sum(len(x) for x in arrays)

    def compute(part: Tensor) -> NDArray[np.float32]:
        x = part.to(torch.float32) / 255 if part.dtype == torch.uint8 else part
        x = x.to(device)
        x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
        return _forward(network, F.interpolate(x, (made.size, made.size), mode="bilinear", antialias=True))

    with progress_bar(f"{made.backbone} on {rows} images", rows) as advance, one_thread():
        for values in in_order(compute, parts):
            advance(len(values))
            yield values


def _forward(network: nn.Module, x: Tensor) -> NDArray[np.float32]:
    with torch.inference_mode():
        x = x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x
        return np.asarray(network(x.contiguous(memory_format=torch.channels_last)).cpu().numpy(), dtype=np.float32)


def _network(made: ImageInput, device: torch.device) -> nn.Module:
    """The frozen backbone where it computes; on a GPU it is a copy, because the one of the process stays on the CPU."""
    network, _, _ = frozen(made.backbone, made.weights)
    return network if device == CPU else copy.deepcopy(network).to(device)


@cache
def frozen(backbone: str, weights: str = "auto") -> tuple[nn.Module, int, str]:
    """A pretrained backbone for inference, the number of its features, and name and hash of its weights.

    Given a name and a hash, it has these weights or is refused.
    """
    shape = _shape_of(backbone)
    spec = pin(ModelSpec(featurizer=backbone, input_shape=shape, outputs=1, norm="freeze", weights=weights), BACKBONES)
    if weights != spec.weights:
        return frozen(backbone, spec.weights)
    model = build_model(spec, seed=0)
    network = model.featurizer.eval()
    # Channels last is the faster order for convolutions on a processor.
    folded = _folded(network, shape if is_timm(backbone) else PROBE).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return folded, model.layout.features, spec.weights


def _folded(network: nn.Module, shape: tuple[int, int, int] = PROBE) -> nn.Module:
    """The same function with every BatchNorm multiplied into the convolution before it: half the work of a pass.

    Which convolution that is, is read off the order of the layers; if the result is not the same, nothing is folded.
    """
    folded = copy.deepcopy(network)
    owners = {id(child): (parent, name) for parent in folded.modules() for name, child in parent.named_children()}
    before: nn.Conv2d | None = None
    for module in list(folded.modules()):
        if isinstance(module, nn.Conv2d):
            before = module
        elif isinstance(module, nn.BatchNorm2d) and before is not None:
            parent, name = owners[id(before)]
            setattr(parent, name, fuse_conv_bn_eval(before, module))
            parent, name = owners[id(module)]
            setattr(parent, name, after_norm(module))
            before = None
    probe = torch.rand((1, *shape), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        same = torch.allclose(folded(probe), network(probe), rtol=1e-3, atol=1e-4)
    return folded.eval() if same else network


def ready_path(name: str) -> Path:
    path = Path(name).expanduser()
    found = path if path.is_file() else locate(name)
    if found is None:
        raise FeatureError(f"there is no file '{name}' of features, neither here nor in a data folder")
    return found


def ready_features(task: str, path: Path) -> Task:
    """Features that someone has computed: arrays feature, label, domain, class_names, domain_names (and split)."""
    try:
        arrays: dict[str, Any] = load_npz(path)
        x = torch.from_numpy(arrays["feature"].astype(np.float32))
        y, domain = torch.from_numpy(arrays["label"].astype(np.int64)), arrays["domain"]
        domains = [str(name) for name in arrays["domain_names"]]
        classes = tuple(str(name) for name in arrays["class_names"])
    except (KeyError, ValueError, OSError, EOFError) as error:
        raise FeatureError(
            f"'{path}' holds no features ({error}): it needs arrays feature, label, domain, class_names, domain_names"
        ) from error
    if not len(x) == len(y) == len(domain) or not bool(torch.isfinite(x).all()):
        raise FeatureError(f"'{path}' is damaged: its arrays differ in length, or a feature is not finite")
    with open(path, "rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    rows = [np.flatnonzero(domain == i) for i in range(len(domains))]
    split = arrays.get("split")
    made = []
    for name, part in zip(domains, rows, strict=True):
        parts = np.zeros(len(part)) if split is None else split[part]  # 0 is training, 1 validation
        made.append(Domain(name, x[part], y[part], *official(parts == 1, (parts != 0) & (parts != 1))))
    note = f"features are read from the ready file '{path}', not computed from images here"
    return _task(task, tuple(made), classes, f"features of file {digest}", task, str(path.name), (note,))
