"""How many examples each class of a published set has: a copy can have all rows and wrong labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from farfield.tasks.data_sets import heart_disease, tcga_brca
from farfield.tasks.data_sets.array_sets import read_from
from farfield.tasks.user_data.table_file import read_frame

#: By set, as published; the names are those that a message shows.
PUBLISHED: Mapping[str, Mapping[str, int]] = {
    "heart-disease": {
        **{"cleveland healthy": 164, "cleveland diseased": 139, "hungarian healthy": 188, "hungarian diseased": 106},
        **{"switzerland healthy": 8, "switzerland diseased": 115, "va healthy": 51, "va diseased": 149},
    },
    "tcga-brca": {
        **{"Canada censored": 48, "Canada died": 3, "Europe censored": 153, "Europe died": 9},
        **{"Midwest censored": 143, "Midwest died": 19, "Northeast censored": 252, "Northeast died": 59},
        **{"South censored": 157, "South died": 39, "West censored": 184, "West died": 22},
    },
    "eicu-mortality": {"survived": 1_983, "died": 196},
    "mnist": {
        f"{split} {digit}": count
        for split, counts in (
            ("train", (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)),
            ("test", (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)),
        )
        for digit, count in enumerate(counts)
    },
    "usps": {
        f"{split} {digit}": count
        for split, counts in (
            ("train", (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644)),
            ("test", (359, 264, 198, 166, 200, 160, 170, 147, 166, 177)),
        )
        for digit, count in enumerate(counts)
    },
}


def _heart(path: Path) -> dict[str, int]:
    frame = heart_disease.read(path)
    pairs = zip(frame["hospital"], frame["num"] > 0, strict=True)
    return dict(Counter(f"{hospital} {'diseased' if ill else 'healthy'}" for hospital, ill in pairs))


def _tcga(path: Path) -> dict[str, int]:
    frame = tcga_brca.read(path)
    frame = frame[frame["region"].isin(tcga_brca.REGIONS)]
    pairs = zip(frame["region"], frame["E"] == 1, strict=True)
    return dict(Counter(f"{region} {'died' if died else 'censored'}" for region, died in pairs))


def _eicu(path: Path) -> dict[str, int]:
    died = read_frame(path)["died_in_hospital"].dropna()
    return {"survived": int((died == 0).sum()), "died": int((died == 1).sum())}


def _digits(name: str) -> Callable[[Path], dict[str, int]]:
    def count(path: Path) -> dict[str, int]:
        arrays = read_from(name, path)
        return {
            f"{split} {digit}": int(number)
            for split in ("train", "test")
            for digit, number in enumerate(np.bincount(getattr(arrays, f"y_{split}"), minlength=10))
        }

    return count


_COUNT: Mapping[str, Callable[[Path], dict[str, int]]] = {
    "heart-disease": _heart,
    "tcga-brca": _tcga,
    "eicu-mortality": _eicu,
    "mnist": _digits("mnist"),
    "usps": _digits("usps"),
}


def class_differences(name: str, path: Path) -> list[str]:
    """Return what differs from the published class counts, such as 'va diseased 51, published 149'; often nothing."""
    if name not in PUBLISHED:
        return []
    found, published = _COUNT[name](path), PUBLISHED[name]
    names = [*published, *(other for other in found if other not in published)]
    pairs = ((each, found.get(each, 0), published.get(each, 0)) for each in names)
    return [f"{each} {have:,}, published {want:,}" for each, have, want in pairs if have != want]
