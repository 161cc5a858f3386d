"""camelyon17 and celeba, and how any folder in the layout of the WILDS package is recognised.

Koh et al., WILDS: A Benchmark of in-the-Wild Distribution Shifts, ICML 2021. The official splits into training and test
domains are used by iwildcam-wilds alone: elsewhere every domain is held out in turn, or the ones that a bench names.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from farfield.tasks.data_sets import iwildcam
from farfield.tasks.data_sets.wilds_table import images_here, offer_wilds, read_table, ungrouped
from farfield.tasks.images.image_set import ImageError, ImageSet
from farfield.tasks.user_data.folder import LEAST_IMAGES

CAMELYON = ("camelyon17_v1.0", "camelyon17")
IWILDCAM = iwildcam.FOLDERS
CELEBA = ("celebA_v1.0", "celeba", "celebA", "CelebA")
HAIR = ("not-blond", "blond")
#: WILDS's groups, hair × gender.
GROUPS = tuple(f"{hair}-{gender}" for hair in HAIR for gender in ("female", "male"))


def list_wilds(root: Path) -> ImageSet | None:
    """The images of a folder in one of these layouts; None if it has another."""
    if (root / "list_attr_celeba.csv").is_file():
        return list_celeba(root)
    if not (root / "metadata.csv").is_file():
        return None
    with open(root / "metadata.csv", encoding="utf-8", errors="replace") as file:
        columns = set(file.readline().strip().split(","))
    if {"center", "tumor"} <= columns:
        return list_camelyon(root)
    if {"location_remapped", "y"} <= columns:
        return iwildcam.large_cameras(iwildcam.list_iwildcam(root))
    return None


def list_camelyon(root: Path) -> ImageSet:
    """Hospital as domain, tumour or not as class; the patches of a patient belong together."""
    table = read_table(
        root / "metadata.csv", ("patient", "node", "x_coord", "y_coord", "tumor", "center"), text=("patient",)
    )
    patients = table["patient"].str.zfill(3)
    names = [
        f"patches/patient_{p}_node_{n}/patch_patient_{p}_node_{n}_x_{x}_y_{y}.png"
        for p, n, x, y in zip(patients, table["node"], table["x_coord"], table["y_coord"], strict=True)
    ]
    hospitals = [f"hospital-{center}" for center in table["center"]]
    classes = ("normal", "tumor")
    labels = [classes[int(tumor)] for tumor in table["tumor"]]
    return _lone_patients(images_here(root, hospitals, labels, names, classes, groups=patients))


def _lone_patients(images: ImageSet) -> ImageSet:
    """Patches of a hospital's only patient stand for themselves: there is no other patient to validate on."""
    assert images.groups is not None
    alone = [(name, part) for name, part in images.spans() if len(np.unique(images.groups[part])) == 1]
    notes = [
        f"all patches of '{name}' are of one patient, so its validation rows are of the patient it trains on"
        for name, _ in alone
    ]
    return replace(images, groups=ungrouped(images, [part for _, part in alone]), notes=(*images.notes, *notes))


def list_celeba(root: Path) -> ImageSet:
    """Blond hair or not as class, and as domain WILDS's groups: hair × gender, each of one class."""
    genders, labels, names = _faces(root)
    groups = [f"{label}-{gender}" for label, gender in zip(labels, genders, strict=True)]
    images = images_here(root, groups, labels, names, HAIR, order=GROUPS)
    here = dict(zip(images.domains, images.sizes, strict=True))
    for group in GROUPS:
        if here.get(group, 0) < LEAST_IMAGES:
            raise ImageError(
                f"the group '{group}' has {here.get(group, 0)} images in '{root}', and a domain needs at least "
                f"{LEAST_IMAGES}: add images, or take the task 'celeba-gender', whose domains hold both classes"
            )
    note = (
        "every domain is one of WILDS's groups and so of one class: its accuracy is the group's, the worst domain is "
        "the worst group, and AUROC is not defined on it"
    )
    return replace(images, one_class=True, notes=(*images.notes, note))


def list_genders(root: Path) -> ImageSet:
    """Blond hair or not as class, and as domain the attribute it hangs together with in this set: male or not."""
    genders, labels, names = _faces(root)
    return images_here(root, genders, labels, names, HAIR)


def _faces(root: Path) -> tuple[list[str], list[str], list[str]]:
    """Gender, hair and file of each row of CelebA's table."""
    table = read_table(root / "list_attr_celeba.csv", ("image_id", "Blond_Hair", "Male"))
    genders = ["male" if value == 1 else "female" for value in table["Male"]]
    labels = [HAIR[int(value == 1)] for value in table["Blond_Hair"]]
    return genders, labels, [f"img_align_celeba/{name}" for name in table["image_id"]]


offer_wilds(
    "camelyon17",
    CAMELYON,
    list_camelyon,
    summary="lymph node patches with or without tumour, from five hospitals (WILDS)",
    domains=tuple(f"hospital-{i}" for i in range(5)),
    classes=2,
    description="patches of lymph node tissue from five hospitals",
    published=455_954,
)
offer_wilds(
    "celeba",
    CELEBA,
    list_celeba,
    summary="faces with blond hair or not, in WILDS's four groups of hair and gender",
    domains=GROUPS,
    classes=2,
    description="faces with blond hair or not, a domain a group",
    published=202_599,
)
offer_wilds(
    "celeba-gender",
    CELEBA,
    list_genders,
    summary="faces with blond hair or not, by gender (WILDS)",
    domains=("female", "male"),
    classes=2,
    description="faces with blond hair or not",
    published=202_599,
)
