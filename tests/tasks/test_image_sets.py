"""Public image sets: found under their usual names, with the papers' domains and classes, and what differs is told."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from farfield.runs.plan import make_plan
from farfield.runs.settings import PlanError
from farfield.tasks import describe, load
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.data_folder.catalogue import data_set
from farfield.tasks.data_folder.importing import import_path
from farfield.tasks.data_folder.store import MissingData, locate
from farfield.tasks.data_folder.verification import check
from farfield.tasks.data_sets.image_sets import OFFICE_CALTECH_CLASSES, SETS
from farfield.tasks.images.image_set import ImageError
from farfield.tasks.registry import load as registry_load
from farfield.tasks.task import Task
from tests.tasks.image_files import make_folder, save
from tests.tasks.real import needs_data


@pytest.fixture(autouse=True)
def data(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    if "real" not in request.node.name:
        monkeypatch.setenv("FARFIELD_DATA", str(tmp_path / "data"))
    registry_load.cache_clear()
    return tmp_path / "data"


PACS = {domain: {"dog": 6, "house": 6} for domain in ("art_painting", "cartoon", "photo", "sketch")}


FETCHED = {
    "pacs": "farfield data fetch pacs",
    "office-home": "farfield data fetch office-home",
    "domainnet": "farfield data fetch domainnet",
    "domainnet-10": "farfield data fetch domainnet",
}


@pytest.mark.parametrize("public", SETS, ids=lambda p: p.name)
def test_a_set_that_is_not_here_is_listed_as_such_and_says_what_to_do(public: object) -> None:
    name = public.name  # type: ignore[attr-defined]
    assert not describe(name).available
    with pytest.raises(MissingData, match=f"the data of task '{name}' is not here") as caught:
        load(name)
    command = FETCHED.get(name)
    way = f"get it with '{command}', put it there" if command else "see 'farfield data ls' for how to get it, put it"
    assert way in str(caught.value)


def test_the_published_counts_are_these() -> None:
    totals = {p.name: (sum(p.counts.values()), p.classes, len(p.counts)) for p in SETS}
    assert totals["pacs"] == (9_991, 7, 4)
    assert totals["vlcs"] == (10_729, 5, 4)
    assert totals["office-home"] == (15_588, 65, 4)
    assert totals["office-caltech10"] == (2_533, 10, 4)
    assert totals["domainnet"] == (586_575, 345, 6)
    assert totals["domainnet-10"][1:] == (10, 6)


def test_a_part_of_pacs_loads_and_says_what_is_missing(data: Path) -> None:
    make_folder(data / "PACS" / "kfold", {**PACS, "splits": {}})
    assert describe("pacs").available
    task = load("pacs")
    assert task.domain_names == ("art_painting", "cartoon", "photo", "sketch")
    assert task.classes == ("dog", "house")
    assert task.defaults["augment"] == "standard"
    assert "domain 'photo' has 12 images here; published are 1,670" in task.notes
    assert "2 classes are here; pacs has 7" in task.notes


def test_a_domain_that_is_not_there_is_noted_and_one_alone_is_refused(data: Path) -> None:
    make_folder(data / "PACS", {d: PACS[d] for d in ("photo", "sketch")})
    task = load("pacs")
    assert task.domain_names == ("photo", "sketch")
    assert any("domain 'cartoon' of pacs is not in" in note for note in task.notes)
    make_folder(data / "VLCS", {"SUN09": {"bird": 6, "car": 6}})
    with pytest.raises(ImageError, match="holds one domain of vlcs only"):
        load("vlcs")


def test_vlcs_with_split_folders_numbers_and_capitals_gets_the_papers_names(data: Path) -> None:
    counts = {domain: {"0": 6, "3": 6} for domain in ("CALTECH", "LABELME", "PASCAL", "SUN")}
    make_folder(data / "VLCS", counts, between="full")
    make_folder(data / "VLCS", counts, between="train")
    task = load("vlcs")
    assert task.domain_names == ("Caltech101", "LabelMe", "SUN09", "VOC2007")
    assert task.classes == ("bird", "dog")
    assert [len(d) for d in task.domains] == [12] * 4
    assert not any("leakage" in note for note in task.notes)


def test_one_domain_in_split_folders_is_known_by_its_name_and_not_taken_for_a_wrapping(data: Path) -> None:
    make_folder(data / "VLCS", {"SUN": {"bird": 6}}, between="full")
    with pytest.raises(ImageError, match=r"holds one domain of vlcs only \('SUN09'\)"):
        load("vlcs")


def test_office_home_and_office_caltech_are_found_under_their_spellings(data: Path) -> None:
    make_folder(data / "office_home", {d: {"Mug": 6, "Pen": 6} for d in ("Art", "Clipart", "Product", "RealWorld")})
    assert load("office-home").domain_names == ("Art", "Clipart", "Product", "Real World")
    counts = {d: {"backpack": 6, "laptop": 6} for d in ("amazon", "Caltech10", "dslr", "webcam")}
    make_folder(data / "office_caltech_10", counts, between="images")
    task = load("office-caltech10")
    assert task.domain_names == ("amazon", "caltech", "dslr", "webcam")
    assert task.classes == ("back_pack", "laptop_computer")


def test_domainnet_10_has_the_ten_classes_and_no_other(data: Path) -> None:
    fedbn = (
        "bird",
        "feather",
        "headphones",
        "ice_cream",
        "teapot",
        "tiger",
        "whale",
        "windmill",
        "wine_glass",
        "zebra",
    )
    classes = dict.fromkeys((*fedbn, "airplane", "sea_turtle"), 2)
    make_folder(data / "domain_net", {"clipart": classes, "quickdraw": classes})
    ten = load("domainnet-10")
    assert ten.classes == fedbn
    assert [len(d) for d in ten.domains] == [20, 20]
    assert len(load("domainnet").classes) == 12


def test_an_official_split_is_used_when_asked_for(data: Path) -> None:
    root = make_folder(data / "PACS", PACS)
    paths = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.png"))
    with open(root / "splits.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        writer.writerows([path, 0, "val" if path.endswith(("000.png", "003.png")) else "train"] for path in paths)
    task = load("pacs")
    assert [d.validation.tolist() for d in task.domains if d.validation is not None] == [[0, 3, 6, 9]] * 4
    for seed in (0, 1):
        clients = make_clients(
            task.domains, partition=Partition(), validation="official", seed=seed, kind="classification"
        )
        assert [shard.validation[0][1].tolist() for shard in clients] == [[0, 3, 6, 9]] * 4
        assert clients.train_sizes.tolist() == [8] * 4
    plan = make_plan(task, algorithms=["fedavg"], validation="official")
    assert plan.validation == "official"
    with pytest.raises(PlanError, match=r"give a share such as 0\.1, or 'official'"):
        make_plan(task, validation="some")


def test_a_task_without_an_official_split_says_so(data: Path) -> None:
    make_folder(data / "PACS", PACS)
    with pytest.raises(PlanError, match="'cartoon': the data set has no official split"):
        make_plan(load("pacs"), held_out=["art_painting"], validation="official")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("a,b\n1,2\n", "has no columns 'path' and 'split'; it has a, b"), ("path,split\nx,dev\n", "has the split 'dev'")],
)
def test_a_split_file_that_cannot_be_used_is_named(data: Path, text: str, sentence: str) -> None:
    root = make_folder(data / "PACS", PACS)
    (root / "splits.csv").write_text(text)
    with pytest.raises(ImageError, match=sentence):
        load("pacs")


def official_parts(task: Task) -> list[tuple[list[int], list[int]]]:
    """Training and validation rows of each domain under the official split."""
    made = make_clients(task.domains, partition=Partition(), validation="official", seed=0, kind="classification")
    return [(shard.train[0][1].tolist(), shard.validation[0][1].tolist()) for shard in made]


def test_test_rows_and_files_that_are_not_listed_are_in_neither_part_and_that_is_told(data: Path) -> None:
    root = make_folder(data / "PACS", PACS)
    part = {"000": "val", "001": "test", "002": "train", "003": "train", "004": "train"}  # 005 is not listed
    lines = [f"{d}/{c}/{n}.png,{s}" for d in PACS for c in ("dog", "house") for n, s in part.items()]
    (root / "splits.csv").write_text("\n".join(["path,split", *lines, "photo/dog/gone.png,val"]))
    task = load("pacs")
    assert official_parts(task) == [([2, 3, 4, 8, 9, 10], [0, 6])] * 4
    assert [len(domain) for domain in task.domains] == [12] * 4  # held out, a domain is measured on all of them
    assert (
        "with --validation official, 8 marked as test and 8 that are not listed of 48 images are neither trained on "
        "nor used for validation, as 'splits.csv' says"
    ) in task.notes
    assert "1 images that the official split lists are not here, first 'photo/dog/gone.png'" in task.notes


@pytest.mark.parametrize(("images", "lists"), [("", ""), ("kfold", ""), ("kfold", "kfold"), ("images", "splits")])
def test_the_lists_that_pacs_is_published_with_are_an_official_split(data: Path, images: str, lists: str) -> None:
    make_folder(data / "PACS" / images, PACS)
    where = data / "PACS" / lists
    where.mkdir(exist_ok=True)
    for domain in PACS:
        for name, numbers in {"train": (1, 2, 3, 4), "crossval": (0, 5), "test": range(6)}.items():
            lines = [f"{domain}/{c}/00{i}.png {k}\n" for k, c in enumerate(("dog", "house"), 1) for i in numbers]
            (where / f"{domain}_{name}_kfold.txt").write_text("".join(lines))
    task = load("pacs")
    assert official_parts(task) == [([1, 2, 3, 4, 7, 8, 9, 10], [0, 5, 6, 11])] * 4
    assert not any("official" in note for note in task.notes)


def test_domainnets_test_lists_are_its_official_validation(data: Path) -> None:
    classes = {"bird": 5, "zebra": 5, "axe": 5}
    root = make_folder(data / "domain_net", {"clipart": classes, "real": classes})
    for domain in ("clipart", "real"):
        for name, numbers in {"train": (0, 1, 2), "test": (3, 4)}.items():
            lines = [f"{domain}/{c}/00{i}.png {k}" for k, c in enumerate(sorted(classes)) for i in numbers]
            (root / f"{domain}_{name}.txt").write_text("\n".join(lines))
    assert official_parts(load("domainnet")) == [([0, 1, 2, 5, 6, 7, 10, 11, 12], [3, 4, 8, 9, 13, 14])] * 2
    ten = load("domainnet-10")
    assert official_parts(ten) == [([0, 1, 2, 5, 6, 7], [3, 4, 8, 9])] * 2
    assert not any("split lists" in note for note in ten.notes)  # axes are listed and not wanted, so not missed


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ("photo/dog/000.png 1\nphoto/dog/001.png", "line 2 of '.*photo_train_kfold.txt' is 'photo/dog/001.png'"),
        ("photo/dog/005.png 1", "photo_crossval_kfold.txt' gives 'photo/dog/005.png' to val, but it is in train"),
    ],
)
def test_a_list_that_cannot_be_used_is_named(data: Path, train: str, sentence: str) -> None:
    root = make_folder(data / "PACS", PACS)
    (root / "photo_train_kfold.txt").write_text(train)
    (root / "photo_crossval_kfold.txt").write_text("photo/dog/005.png 1\n")
    with pytest.raises(ImageError, match=sentence):
        load("pacs")


def test_surf_features_are_roots_of_word_shares(data: Path) -> None:
    data.mkdir(parents=True)
    words = np.random.default_rng(0).integers(0, 9, (80, 30)).astype(np.uint16)
    np.savez(
        data / "office_caltech10_surf.npz",
        feature=words,
        label=np.arange(80, dtype=np.uint8) % 10,
        domain=np.repeat(np.arange(4, dtype=np.uint8), 20),
        domain_names=np.array(["amazon", "caltech", "dslr", "webcam"]),
        class_names=np.array([f"c{i}" for i in range(10)]),
    )
    task = load("office-caltech10-surf")
    assert [len(d) for d in task.domains] == [20] * 4
    expected = np.sqrt(words[20] / words[20].sum())
    np.testing.assert_allclose(task.domain("caltech").x[0].numpy(), expected, rtol=1e-5)
    np.savez(data / "office_caltech10_surf.npz", feature=words)
    registry_load.cache_clear()
    with pytest.raises(ImageError, match="is not the file of SURF features"):
        load("office-caltech10-surf")


def published_surf(
    folder: Path, features: str = "fts", labels: str = "labels", caltech: str = "Caltech10"
) -> np.ndarray:
    """A file a domain as published, twenty images each; the words of all of them, domain after domain."""
    folder.mkdir(parents=True)
    words = np.random.default_rng(0).integers(0, 9, (80, 30)).astype(np.float64)
    for number, name in enumerate(("amazon", caltech, "dslr", "webcam")):
        part = words[20 * number : 20 * number + 20]
        # From 1, as MATLAB counts.
        savemat(folder / f"{name}_SURF_L10.mat", {features: part, labels: 1 + np.arange(20)[:, None] % 10})
    return words


@pytest.mark.parametrize("arrays", [("fts", "labels", "Caltech10"), ("feas", "label", "caltech")])
def test_surf_features_are_read_as_published_too(data: Path, tmp_path: Path, arrays: tuple[str, str, str]) -> None:
    words = published_surf(tmp_path / "GFKdata", *arrays)
    assert import_path(tmp_path / "GFKdata").path == data / "office_caltech10_surf"
    task = load("office-caltech10-surf")
    assert task.domain_names == ("amazon", "caltech", "dslr", "webcam")
    assert task.classes == tuple(OFFICE_CALTECH_CLASSES)
    assert [domain.y.tolist() for domain in task.domains] == [[*range(10), *range(10)]] * 4
    np.testing.assert_allclose(task.domain("caltech").x[0].numpy(), np.sqrt(words[20] / words[20].sum()), rtol=1e-5)
    assert check(data_set("office-caltech10-surf")).found == {"amazon": 20, "caltech": 20, "dslr": 20, "webcam": 20}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"fts": np.ones((3, 4)), "labels": [[0], [1], [2]]}, r"labels from 1 to 10"),
        ({"fts": np.ones((3, 4)), "labels": [[1], [1]]}, r"words of shape \(3, 4\) and 2 labels"),
        ({"fts": -np.ones((2, 4)), "labels": [[1], [1]]}, "negative counts of words"),
        ({"X": np.ones((3, 4))}, "has no arrays fts and labels"),
    ],
)
def test_a_file_of_surf_features_that_cannot_be_used_is_named(
    data: Path, tmp_path: Path, content: dict[str, object], message: str
) -> None:
    published_surf(tmp_path / "surf")
    savemat(tmp_path / "surf" / "dslr_SURF_L10.mat", content)
    with pytest.raises(ImageError, match=message) as caught:
        import_path(tmp_path / "surf")
    assert "dslr_SURF_L10.mat" in str(caught.value)
    assert not data.exists() or not list(data.iterdir())


@needs_data("office_caltech10_surf.npz")
def test_the_real_surf_features_in_the_published_files_are_the_same_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = load("office-caltech10-surf")
    path = locate("office_caltech10_surf.npz")
    assert path is not None
    with np.load(path) as file:
        folder = tmp_path / "data" / "office_caltech10_surf"
        folder.mkdir(parents=True)
        for number, name in enumerate(("amazon", "Caltech10", "dslr", "webcam")):
            here = file["domain"] == number
            content = {"fts": file["feature"][here].astype(float), "labels": file["label"][here][:, None] + 1}
            savemat(folder / f"{name}_SURF_L10.mat", content)
    monkeypatch.setenv("FARFIELD_DATA", str(tmp_path / "data"))
    registry_load.cache_clear()
    apart = load("office-caltech10-surf")
    assert apart.classes == joined.classes
    for one, other in zip(apart.domains, joined.domains, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


@needs_data("PACS")
def test_real_pacs_has_the_published_counts_and_its_official_split() -> None:
    from farfield.tasks.data_sets.image_sets import list_public

    images = list_public(SETS[0])
    assert dict(zip(images.domains, images.sizes, strict=True)) == SETS[0].counts
    assert images.notes == ()
    assert images.held is not None
    assert int(images.held.sum()) == 1014


@needs_data("office_caltech10_surf.npz")
def test_real_surf_features_have_the_published_counts() -> None:
    task = load("office-caltech10-surf")
    assert [len(d) for d in task.domains] == [958, 1123, 157, 295]
    torch.testing.assert_close(task.domains[0].x.norm(dim=1), torch.ones(958))


def test_files_that_are_no_images_are_passed_over(data: Path) -> None:
    root = make_folder(data / "PACS", PACS)
    save(root / "photo" / "dog" / "._hidden.png", 0)
    (root / "photo" / "dog" / "Thumbs.db").write_bytes(b"x")
    assert len(load("pacs").domain("photo")) == 12
