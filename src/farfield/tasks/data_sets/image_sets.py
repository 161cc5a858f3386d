"""Public image sets in folders: pacs, vlcs, office-home, office-caltech10, domainnet and its ten-class part.

Each is looked for under its usual folder names in the data folders. Domains and classes have the names of the papers,
however they are spelt on the disk. What differs from the published counts is noted, not refused: people keep parts.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.models.spec import ModelSpec
from farfield.tasks.data_folder.store import locate, require
from farfield.tasks.data_sets.image_listing import Listing, offer
from farfield.tasks.images.image_set import ImageError, ImageSet
from farfield.tasks.images.layouts import list_folder
from farfield.tasks.images.official_splits import with_official_split
from farfield.tasks.registry import register
from farfield.tasks.task import Domain, Task
from farfield.tasks.unpacking import load_npz


@dataclass(frozen=True)
class PublicSet:
    """What is known of a public set before a file is looked at."""

    name: str
    summary: str
    source: str
    #: Names that its folder goes by.
    folders: tuple[str, ...]
    #: Published numbers of images a domain.
    counts: Mapping[str, int]
    classes: int
    #: Other spellings of domain names, and of class names where these are known.
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    class_spellings: Mapping[str, tuple[str, ...]] | None = None

    @property
    def domains(self) -> dict[str, tuple[str, ...]]:
        return {name: self.spellings.get(name, ()) for name in self.counts}


OFFICE_CALTECH_CLASSES: dict[str, tuple[str, ...]] = {
    "back_pack": ("backpack",),
    "bike": (),
    "calculator": (),
    "headphones": (),
    "keyboard": (),
    "laptop_computer": ("laptop",),
    "monitor": (),
    "mouse": (),
    "mug": (),
    "projector": (),
}
#: The classes that FedBN trains on, and the federated papers after it.
DOMAINNET_TEN = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
)  # fmt: skip
DOMAINNET_FOLDERS = ("domain_net", "DomainNet", "domainnet")

SETS = (
    PublicSet(
        "pacs",
        "photos, paintings, cartoons and sketches of seven things",
        "Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017",
        ("PACS", "pacs"),
        {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
        7,
        {"art_painting": ("art",)},
    ),
    PublicSet(
        "vlcs",
        "photos of five things from four collections",
        "Fang, Xu, Rockmore, Unbiased Metric Learning, ICCV 2013",
        ("VLCS", "vlcs"),
        {"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
        5,
        {"Caltech101": ("CALTECH",), "SUN09": ("SUN",), "VOC2007": ("PASCAL", "VOC")},
        {"bird": ("0",), "car": ("1",), "chair": ("2",), "dog": ("3",), "person": ("4",)},
    ),
    PublicSet(
        "office-home",
        "65 things from home and office: art, clip art, products, photos",
        "Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017",
        ("office_home", "OfficeHome", "office-home", "OfficeHomeDataset_10072016"),
        {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},
        65,
        {"Real World": ("Real",)},
    ),
    PublicSet(
        "office-caltech10",
        "ten things that Office and Caltech-256 share, from four cameras",
        "Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012",
        ("office_caltech_10", "office-caltech10", "office_caltech10", "Office_Caltech_DA_Dataset", "OfficeCaltech10"),
        {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295},
        10,
        {"caltech": ("Caltech10", "caltech256")},
        OFFICE_CALTECH_CLASSES,
    ),
    PublicSet(
        "domainnet",
        "345 things in six styles, 0.6 million images (the cleaned version)",
        "Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019",
        DOMAINNET_FOLDERS,
        {"clipart": 48129, "infograph": 51605, "painting": 72266, "quickdraw": 172500, "real": 172947, "sketch": 69128},
        345,
    ),
    PublicSet(
        "domainnet-10",
        "the ten classes of DomainNet that FedBN and later federated papers use",
        "Peng et al., ICCV 2019; classes as in Li et al., FedBN, ICLR 2021",
        DOMAINNET_FOLDERS,
        dict.fromkeys(("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), 0),
        10,
        class_spellings=dict.fromkeys(DOMAINNET_TEN, ()),
    ),
)


def list_public(public: PublicSet) -> ImageSet:
    """The images of a public set, under the papers' names, with notes on what differs from what was published."""
    root = require(public.name, *public.folders)
    images = list_in(root, public)
    notes = list(images.notes)
    for domain, count in public.counts.items():
        here = dict(zip(images.domains, images.sizes, strict=True)).get(domain, 0)
        if not here:
            notes.append(f"domain '{domain}' of {public.name} is not in '{root}'")
        elif count and here != count:
            notes.append(f"domain '{domain}' has {here:,} images here; published are {count:,}")
    if len(images.classes) != public.classes:
        notes.append(f"{len(images.classes)} classes are here; {public.name} has {public.classes}")
    return with_official_split(replace(images, notes=tuple(notes)), public.domains, public.class_spellings)


def list_in(root: Path, public: PublicSet) -> ImageSet:
    """The images of a public set in this folder, in whichever layout; fewer than two domains are refused."""
    images = list_folder(root, domains=public.domains, classes=public.class_spellings)
    if len(images.domains) < 2:
        raise ImageError(
            f"'{root}' holds one domain of {public.name} only ('{images.domains[0]}'), and leaving one out needs two; "
            f"its domains are {', '.join(public.counts)}"
        )
    return images


for _public in SETS:
    offer(
        Listing(_public.name, partial(list_public, _public), _public.summary, _public.source),
        folders=_public.folders,
        summary=_public.summary,
        domains=tuple(_public.counts),
        classes=_public.classes,
    )
PUBLIC = {public.name: public for public in SETS}

#: One file of arrays, or a folder with a file a domain, as published (amazon_SURF_L10.mat).
SURF = ("office_caltech10_surf.npz", "office_caltech10_surf")
SURF_FILES = {
    "amazon": ("amazon_SURF_L10.mat",),
    "caltech": ("Caltech10_SURF_L10.mat", "caltech_SURF_L10.mat"),
    "dslr": ("dslr_SURF_L10.mat",),
    "webcam": ("webcam_SURF_L10.mat",),
}


@register(
    "office-caltech10-surf",
    summary="Office-Caltech-10 as 800 counts of SURF words",
    domains=tuple(SURF_FILES),
    classes=10,
    kind="classification",
    available=lambda: locate(*SURF) is not None,
)
def load_surf() -> Task:
    """The SURF words of each image; no statistic of any domain goes into them."""
    words = read_surf(require("office-caltech10-surf", *SURF))
    counts = torch.from_numpy(words.features.astype(np.float32))
    # The root of each word's share: image by image, so nothing is learnt from any domain, and rows have length 1.
    x = (counts / counts.sum(1, keepdim=True).clamp(min=1)).sqrt()
    y = torch.from_numpy(words.labels.astype(np.int64))
    rows = [torch.from_numpy(np.flatnonzero(words.owners == i)) for i in range(len(words.domains))]
    return Task(
        name="office-caltech10-surf",
        kind="classification",
        domains=tuple(Domain(name, x[part], y[part]) for name, part in zip(words.domains, rows, strict=True)),
        classes=words.classes,
        model=ModelSpec(featurizer="mlp", input_shape=(x.shape[1],), outputs=len(words.classes), hidden=(64,)),
        defaults={"rounds": 30, "local_epochs": 2, "batch_size": 32, "lr": 0.3, "momentum": 0.9},
        description="Office-Caltech-10 as histograms of 800 SURF words",
        source="Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012",
    )


@dataclass(frozen=True, eq=False)
class SurfWords:
    """How often each word occurs in each image; image i has class `labels[i]` and belongs to domain `owners[i]`."""

    features: NDArray[Any]
    labels: NDArray[Any]
    owners: NDArray[Any]
    domains: tuple[str, ...]
    classes: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        return {name: int((self.owners == number).sum()) for number, name in enumerate(self.domains)}


def read_surf(path: Path) -> SurfWords:
    """The SURF words, from one .npz or from the folder of published files."""
    if path.is_dir():
        return _published_surf(path)
    try:
        file = load_npz(path)
        return SurfWords(
            file["feature"],
            file["label"],
            file["domain"],
            tuple(str(name) for name in file["domain_names"]),
            tuple(str(name) for name in file["class_names"]),
        )
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ImageError(f"'{path}' is not the file of SURF features that was expected: {error}") from error


def _published_surf(folder: Path) -> SurfWords:
    found = [
        next((folder / n for n in names if (folder / n).exists()), folder / names[0]) for names in SURF_FILES.values()
    ]
    parts = [_surf_of(path) for path in found]
    return SurfWords(
        np.concatenate([features for features, _ in parts]),
        np.concatenate([labels for _, labels in parts]),
        np.repeat(np.arange(len(parts)), [len(labels) for _, labels in parts]),
        tuple(SURF_FILES),
        tuple(OFFICE_CALTECH_CLASSES),
    )


def _surf_of(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Words [n, 800] and classes of one domain. Files that were handed on call the arrays by other names."""
    from scipy.io import loadmat  # here, because it takes time that other sets need not pay

    try:
        content = loadmat(path, variable_names=("fts", "feas", "labels", "label"))
        features = np.asarray(content["fts"] if "fts" in content else content["feas"])
        labels = np.asarray(content["labels"] if "labels" in content else content["label"]).reshape(-1)
    except (KeyError, ValueError, TypeError, OSError, EOFError, NotImplementedError, zlib.error) as error:
        raise ImageError(
            f"'{path}' is not there or has no arrays fts and labels ({' '.join(str(error).split())}); get it again"
        ) from error
    classes = len(OFFICE_CALTECH_CLASSES)
    if features.ndim != 2 or len(features) != len(labels) or not np.isin(labels, np.arange(1, classes + 1)).all():
        raise ImageError(
            f"'{path}' has words of shape {features.shape} and {len(labels)} labels; expected are a row an image and "
            f"labels from 1 to {classes}; get it again"
        )
    if (features < 0).any():
        raise ImageError(f"'{path}' has negative counts of words: it was normalised; get the file as it was published")
    return features, labels.astype(np.int64) - 1
