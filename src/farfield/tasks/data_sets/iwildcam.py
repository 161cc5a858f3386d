"""iwildcam, iwildcam-10 and iwildcam-wilds: animals before camera traps (iWildCam 2020, as WILDS publishes it).

`iwildcam` has every camera as a domain, and `iwildcam-10` is FedCiR's part of it. `iwildcam-wilds` has WILDS's own
split, which FedLOE uses: the training cameras are the sources, and all test cameras together are held out.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from farfield.tasks.data_sets.wilds_table import images_here, offer_wilds, only, read_table, ungrouped
from farfield.tasks.images.image_set import ImageError, ImageSet
from farfield.tasks.user_data.folder import LEAST_IMAGES

if TYPE_CHECKING:
    from pandas import DataFrame

FOLDERS = ("iwildcam_v2.0", "iwildcam")
#: FedCiR: ten classes of samples in the ten cameras with the most data.
SUBSET = 10
#: Class 0: nothing to see on the picture.
EMPTY = 0
#: The column for the burst that a picture belongs to.
BURST = "sequence_remapped"
#: The domain that has the pictures of all official test cameras.
TEST_CAMERAS = "test cameras"
#: The official splits that are used, with the published number of pictures.
USED_SPLITS = {"train": 129_809, "id_val": 7_314, "test": 42_791}
#: Those that are not: neither is needed to train, to choose a round, or to measure on cameras that nobody has seen.
OTHER_SPLITS = {"val": "of further cameras", "id_test": "of the cameras that train"}


def list_iwildcam(root: Path) -> ImageSet:
    """Camera as domain, animal as class; the pictures of a burst belong together."""
    table = read_table(root / "metadata.csv", ("location_remapped", "y", "filename"))
    return _pictures(root, table, [_camera(number) for number in table["location_remapped"]])


def list_official(root: Path) -> ImageSet:
    """The official split: the cameras that train, with their validation rows, and all test cameras as one domain."""
    path = root / "metadata.csv"
    table = read_table(path, ("split", "location_remapped", "y", "filename"))
    count = {str(name): int(rows) for name, rows in table["split"].value_counts().items()}
    strange = sorted(set(count) - {*USED_SPLITS, *OTHER_SPLITS})
    if strange:
        raise ImageError(
            f"'{path}' has the split '{strange[0]}'; WILDS's are {', '.join((*USED_SPLITS, *OTHER_SPLITS))}"
        )
    for name in ("train", "test"):
        if name not in count:
            raise ImageError(
                f"'{path}' has no row of the split '{name}', which task 'iwildcam-wilds' needs; task 'iwildcam' takes "
                "every camera and no split"
            )
    domains = [
        TEST_CAMERAS if split == "test" else _camera(number)
        for split, number in zip(table["split"], table["location_remapped"], strict=True)
    ]
    used = table["split"].isin(list(USED_SPLITS)).to_numpy()
    images = _pictures(root, table, domains, used)
    tests = dict(zip(images.domains, images.sizes, strict=True)).get(TEST_CAMERAS, 0)
    if tests < LEAST_IMAGES:
        raise ImageError(
            f"{tests} pictures of the split 'test' are in '{root}', and a domain needs at least {LEAST_IMAGES}: add "
            "pictures"
        )
    notes = []
    if len(images) != sum(USED_SPLITS.values()):
        notes.append(
            f"{len(images)} images of the splits {', '.join(USED_SPLITS)} are here; published are "
            f"{sum(USED_SPLITS.values())}"
        )
    left_out = [f"{count[name]} of '{name}' ({whose})" for name, whose in OTHER_SPLITS.items() if name in count]
    if left_out:
        notes.append(f"pictures of the official splits that are not used were left out: {', '.join(left_out)}")
    images = large_cameras(replace(images, notes=(*images.notes, *notes)))
    assert images.held is not None
    # Without any validation row the split cannot choose a round, and then there is none.
    trained = tuple(name for name in images.domains if name != TEST_CAMERAS) if images.held.any() else ()
    return replace(images, trained=trained)


def _camera(number: int) -> str:
    return f"camera-{number:03d}"


def _pictures(root: Path, table: DataFrame, domains: list[str], used: NDArray[np.bool_] | None = None) -> ImageSet:
    """The pictures of the table, or those of its rows that are `used`: then with the official validation rows."""
    classes = _animals(root, int(table["y"].max()) + 1)
    held = None
    if used is not None:
        table, domains = table[used], list(compress(domains, used))
        held = (table["split"] == "id_val").to_numpy()
    labels = [classes[y] for y in table["y"]]
    names = [f"train/{name}" for name in table["filename"]]
    return images_here(root, domains, labels, names, classes, groups=table.get(BURST), held=held)


def large_cameras(images: ImageSet) -> ImageSet:
    """Without the cameras that cannot be a domain, which is noted: too few pictures to train on, or one burst only."""
    domain_of = np.repeat(np.arange(len(images.domains)), images.sizes)
    trains = np.ones(len(images), dtype=bool) if images.held is None else ~images.held
    few, bursts = [], []
    cameras = [(number, part) for number, (name, part) in enumerate(images.spans()) if name != TEST_CAMERAS]
    for number, part in cameras:
        if int(trains[part].sum()) < LEAST_IMAGES:
            few.append(number)
        elif images.groups is not None and len(np.unique(images.groups[part])) == 1:
            bursts.append(number)
    if images.held is not None and bursts:
        # The official split says who validates, so a camera of one burst may train all the same.
        images = replace(images, groups=ungrouped(images, [part for number, part in cameras if number in bursts]))
        bursts = []
    if len(few) + len(bursts) == len(cameras):
        raise ImageError(
            f"none of {len(cameras)} cameras in '{images.root}' has {LEAST_IMAGES} pictures to train on, of two bursts "
            "or more, and a domain needs as many: add pictures"
        )
    notes = []
    training = "" if images.held is None else "training "
    for left_out, why in (
        (few, f"with fewer than {LEAST_IMAGES} {training}pictures"),
        (bursts, "whose pictures are all of one burst, which cannot both train and validate,"),
    ):
        if left_out:
            pictures = int(np.isin(domain_of, left_out).sum())
            notes.append(f"{len(left_out)} cameras {why} were left out, {pictures} pictures in all")
    if not notes:
        return images
    return only(images, ~np.isin(domain_of, few + bursts), images.classes, *notes)


def ten_cameras(images: ImageSet) -> ImageSet:
    """FedCiR's part of iWildCam: the ten commonest animals ('empty' is none) in the ten cameras with most of them."""
    empty = images.classes[EMPTY]
    counts = np.bincount(images.labels, minlength=len(images.classes))
    counts[EMPTY] = 0
    chosen = set(np.argsort(-counts, kind="stable")[:SUBSET].tolist())
    classes = tuple(c for i, c in enumerate(images.classes) if i in chosen and c != empty)
    shown = np.isin(images.labels, [images.classes.index(c) for c in classes])
    size = {name: int(shown[part].sum()) for name, part in images.spans()}
    cameras = set(sorted(size, key=lambda name: (-size[name], name))[:SUBSET])
    busy = np.repeat([name in cameras for name in images.domains], images.sizes)
    return only(images, shown & busy, classes)


def _animals(root: Path, least: int) -> tuple[str, ...]:
    """Class names by number, from categories.csv where that lies beside the table."""
    named: dict[int, str] = {}
    if (root / "categories.csv").is_file():
        table = read_table(root / "categories.csv", ("y", "name"))
        # Rows of animals that no picture shows have no number among these classes.
        named = {int(y): str(name) for y, name in zip(table["y"], table["name"], strict=True) if 0 <= int(y) < 99999}
    count = max(least, max(named, default=0) + 1)
    names = [named.get(i, "empty" if i == EMPTY else f"class-{i:03d}") for i in range(count)]
    return tuple(name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names))


offer_wilds(
    "iwildcam",
    FOLDERS,
    list_iwildcam,
    summary="animals before camera traps, a domain a camera (WILDS)",
    domains=(),
    classes=182,
    description="animals in the pictures of camera traps",
    published=203_029,
    part=large_cameras,
)
offer_wilds(
    "iwildcam-10",
    FOLDERS,
    list_iwildcam,
    summary="ten animals before the ten busiest camera traps (FedCiR's part of iWildCam)",
    domains=(),
    classes=SUBSET,
    description="ten animals in the pictures of ten camera traps",
    part=lambda images: ten_cameras(large_cameras(images)),
)
offer_wilds(
    "iwildcam-wilds",
    FOLDERS,
    list_official,
    summary="animals before camera traps, with WILDS's own split: its test cameras together are held out",
    domains=(),
    classes=182,
    description="animals in the pictures of camera traps; the official test cameras together are held out",
    held_out=(TEST_CAMERAS,),
)
