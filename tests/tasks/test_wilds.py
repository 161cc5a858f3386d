"""The layouts of the WILDS package: a table of metadata beside the images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch

import farfield as ff
from farfield.runs.plan import make_plan
from farfield.tasks import Task, describe, load, load_folder
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.images.image_set import ImageError
from farfield.tasks.open_task import open_task
from farfield.tasks.registry import load as registry_load
from tests.tasks.image_files import save


@pytest.fixture(autouse=True)
def data(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARFIELD_DATA", str(tmp_path / "data"))
    registry_load.cache_clear()
    return tmp_path / "data"


def camelyon(root: Path) -> Path:
    rows = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for i in range(60):
        patient, center, tumor = f"{4 + i % 3:03d}", i % 5, i // 5 % 2
        rows.append(f"{i},{patient},{i % 2},{3000 + i},{4000 + i},{tumor},0,{center},0")
        name = f"patient_{patient}_node_{i % 2}"
        save(root / "patches" / name / f"patch_{name}_x_{3000 + i}_y_{4000 + i}.png", i)
    (root / "metadata.csv").write_text("\n".join(rows) + "\n")
    return root


def iwildcam(root: Path, cameras: int = 14, animals: int = 13) -> Path:
    """Camera c has 24 + c pictures, a third of them empty; animal a is rarer the larger a is. Bursts are unknown."""
    rows = ["split,location_remapped,location,y,datetime,filename,image_id"]
    number = 0
    for camera in range(cameras):
        for i in range(24 + camera):
            y = 0 if i % 3 == 0 else 1 + (i * i + camera) % animals
            rows.append(f"train,{camera},{camera + 100},{y},2013-06-05,{number:05d}.jpg,{number}")
            save(root / "train" / f"{number:05d}.jpg", number)
            number += 1
    rows.append(f"train,{cameras},99,1,2013-06-05,lonely.jpg,{number}")
    save(root / "train" / "lonely.jpg", number)
    (root / "metadata.csv").write_text("\n".join(rows) + "\n")
    names = ["y,category_id,name", *(f"{y},{y},{'empty' if y == 0 else f'animal {y}'}" for y in range(animals + 1))]
    (root / "categories.csv").write_text("\n".join([*names, "99999,7,unseen animal"]) + "\n")
    return root


def official_iwildcam(root: Path, burst: int = 3) -> Path:
    """Two cameras that train, one of them without validation rows, two that cannot, and cameras of the other splits.

    A camera's pictures come in bursts of three, as its rows follow one another.
    """
    parts = [
        (0, "train", 18),
        (0, "id_val", 6),
        (0, "id_test", 3),
        (1, "train", 12),
        (2, "train", 9),  # one picture too few, whatever its validation rows
        (2, "id_val", 6),
        (3, "train", 12),  # a single burst
        (4, "val", 5),
        (5, "test", 12),
        (6, "test", 3),
    ]
    rows = ["split,location_remapped,y,filename,sequence_remapped"]
    for camera, split, count in parts:
        for i in range(count):
            number = len(rows) - 1
            sequence = 999 if camera == 3 else number // burst
            rows.append(f"{split},{camera},{i % 2},{number:05d}.jpg,{sequence}")
            save(root / "train" / f"{number:05d}.jpg", number)
    (root / "metadata.csv").write_text("\n".join(rows) + "\n")
    return root


#: Female and not blond, male and not blond, female and blond, male and blond.
FACES = (20, 16, 12, 10)


def celeba(root: Path, counts: tuple[int, ...] = FACES) -> Path:
    rows = ["image_id,Blond_Hair,Male,Young"]
    for group, count in enumerate(counts):
        for _ in range(count):
            number = len(rows) - 1
            rows.append(f"{number:06d}.jpg,{(-1, 1)[group // 2]},{(-1, 1)[group % 2]},1")
            save(root / "img_align_celeba" / f"{number:06d}.jpg", number)
    (root / "list_attr_celeba.csv").write_text("\n".join(rows) + "\n")
    return root


def groups_of(task: Task) -> list[torch.Tensor]:
    return [domain.groups for domain in task.domains if domain.groups is not None]


def parts_of(task: Task, validation: float | Literal["official"], seed: int = 0) -> dict[str, tuple[list[int], ...]]:
    """Training and validation rows of each source."""
    sources = [domain for domain in task.domains if domain.name not in task.held_out]
    made = make_clients(sources, partition=Partition(), validation=validation, seed=seed, kind="classification")
    return {
        shard.domain: tuple([i for _, rows in part for i in rows.tolist()] for part in (shard.train, shard.validation))
        for shard in made
    }


def test_hospitals_are_the_domains_of_camelyon17(data: Path) -> None:
    camelyon(data / "camelyon17_v1.0")
    assert describe("camelyon17").available
    task = load("camelyon17")
    assert task.domain_names == tuple(f"hospital-{i}" for i in range(5))
    assert task.classes == ("normal", "tumor")
    assert [torch.bincount(d.y).tolist() for d in task.domains] == [[6, 6]] * 5
    assert any("60 images are here; the published set has 455954" in note for note in task.notes)


def test_images_that_the_table_names_but_are_not_there_are_counted(data: Path) -> None:
    root = camelyon(data / "camelyon17_v1.0")
    gone = sorted((root / "patches").rglob("*.png"))[0]
    gone.unlink()
    notes = load("camelyon17").notes
    assert any(f"1 of 60 images that the table names are not in '{root}'" in note for note in notes)


def test_cameras_are_the_domains_of_iwildcam_and_small_ones_are_left_out(data: Path) -> None:
    iwildcam(data / "iwildcam_v2.0")
    task = load("iwildcam")
    assert task.domain_names == tuple(f"camera-{i:03d}" for i in range(14))
    assert task.classes[:2] == ("empty", "animal 1")
    assert len(task.classes) == 14
    assert [len(d) for d in task.domains] == [24 + c for c in range(14)]
    assert any("1 cameras with fewer than 10 pictures were left out, 1 pictures in all" in note for note in task.notes)


def test_fedcirs_part_has_the_ten_commonest_animals_in_the_ten_busiest_cameras(data: Path) -> None:
    root = iwildcam(data / "iwildcam_v2.0")
    task = load("iwildcam-10")
    assert len(task.domains) == 10
    assert len(task.classes) == 10
    assert "empty" not in task.classes
    # Counted again from the table, without the code under test.
    cells = [line.split(",") for line in (root / "metadata.csv").read_text().splitlines()[1:]]
    rows = [(int(r[1]), int(r[3])) for r in cells if int(r[3]) and int(r[1]) < 14]
    often = sorted({y for _, y in rows}, key=lambda y: (-sum(r[1] == y for r in rows), y))[:10]
    volume = {c: sum(r[0] == c and r[1] in often for r in rows) for c in range(14)}
    busy = sorted(volume, key=lambda c: (-volume[c], c))[:10]
    assert set(task.classes) == {f"animal {y}" for y in often}
    assert {d.name: len(d) for d in task.domains} == {f"camera-{c:03d}": volume[c] for c in sorted(busy)}


def test_the_patches_of_a_patient_train_together_or_validate_together(data: Path) -> None:
    camelyon(data / "camelyon17_v1.0")
    task = load("camelyon17")
    assert len(groups_of(task)) == 5
    for seed in range(5):
        for name, (train, validation) in parts_of(task, 0.1, seed).items():
            groups = task.domain(name).groups
            assert groups is not None
            assert len(train) + len(validation) == 12
            assert len(validation) == 4  # the twelve patches are of three patients, and the least is one of these
            assert not set(groups[train].tolist()) & set(groups[validation].tolist())


def test_a_hospital_with_one_patient_is_split_by_patches_and_that_is_told(data: Path) -> None:
    root = camelyon(data / "camelyon17_v1.0")
    lines = (root / "metadata.csv").read_text().splitlines()
    kept = [line for line in lines if line.split(",")[7] != "2" or line.split(",")[1] == "004"]
    for i in range(100, 112):  # more patches of the one patient that is left, so that there are enough
        kept.append(f"{i},004,0,{i},7,{i % 2},0,2,0")
        save(root / "patches" / "patient_004_node_0" / f"patch_patient_004_node_0_x_{i}_y_7.png", i)
    (root / "metadata.csv").write_text("\n".join(kept) + "\n")
    task = load("camelyon17")
    (told,) = (note for note in task.notes if "one patient" in note)
    assert told.startswith("all patches of 'hospital-2' are of one patient")
    train, validation = parts_of(task, 0.25)["hospital-2"]
    assert (len(train), len(validation)) == (12, 4)


def test_without_a_column_of_bursts_every_picture_stands_for_itself(data: Path) -> None:
    iwildcam(data / "iwildcam_v2.0")
    assert groups_of(load("iwildcam")) == []


@pytest.mark.parametrize("name", ["iwildcam", "iwildcam-10"])
def test_the_pictures_of_a_burst_train_together_or_validate_together(data: Path, name: str) -> None:
    root = iwildcam(data / "iwildcam_v2.0")
    lines = (root / "metadata.csv").read_text().splitlines()
    burst = {line.split(",")[5]: number // 4 for number, line in enumerate(lines[1:])}
    bursts = [f"{line},{burst[line.split(',')[5]]}" for line in lines[1:]]
    (root / "metadata.csv").write_text("\n".join([f"{lines[0]},sequence_remapped", *bursts]) + "\n")
    task = load(name)
    assert task.images is not None
    files = dict(task.images.spans())
    for domain, (train, validation) in parts_of(task, 0.2).items():
        names = [path.removeprefix("train/") for path in task.images.paths[files[domain]]]
        assert validation
        assert not {burst[names[i]] for i in train} & {burst[names[i]] for i in validation}


def test_a_camera_of_one_burst_is_left_out_because_it_cannot_train_and_validate(data: Path) -> None:
    official_iwildcam(data / "iwildcam_v2.0")
    task = load("iwildcam")
    assert {domain.name: len(domain) for domain in task.domains} == {
        "camera-000": 27,
        "camera-001": 12,
        "camera-002": 15,
        "camera-005": 12,
    }
    assert "86 images are here; the published set has 203029" in task.notes  # before any was left out
    assert "2 cameras with fewer than 10 pictures were left out, 8 pictures in all" in task.notes
    assert (
        "1 cameras whose pictures are all of one burst, which cannot both train and validate, were left out, 12 "
        "pictures in all" in task.notes
    )


def test_the_official_split_trains_on_its_cameras_and_holds_the_test_cameras_out_together(data: Path) -> None:
    official_iwildcam(data / "iwildcam_v2.0")
    task = load("iwildcam-wilds")
    assert {domain.name: len(domain) for domain in task.domains} == {
        "camera-000": 24,
        "camera-001": 12,
        "camera-003": 12,  # one burst, which trains: the official split says who validates
        "test cameras": 15,
    }
    assert task.held_out == ("test cameras",)
    plan = make_plan(task, algorithms=["fedavg"], validation="official", rounds=1)
    assert plan.held_out == ("test cameras",)
    assert "78 images of the splits train, id_val, test are here; published are 179914" in task.notes
    assert (
        "pictures of the official splits that are not used were left out: 5 of 'val' (of further cameras), 3 of "
        "'id_test' (of the cameras that train)" in task.notes
    )
    assert "1 cameras with fewer than 10 training pictures were left out, 15 pictures in all" in task.notes
    assert not any("one burst" in note for note in task.notes)


def test_official_validation_rows_are_the_split_id_val_and_a_camera_may_have_none(data: Path) -> None:
    root = official_iwildcam(data / "iwildcam_v2.0")
    task = load("iwildcam-wilds")
    assert task.images is not None
    split = dict(line.split(",")[3::-3] for line in (root / "metadata.csv").read_text().splitlines()[1:])
    (_, first), *_ = task.images.spans()
    names = [path.removeprefix("train/") for path in task.images.paths[first]]
    for seed in (0, 1):
        parts = parts_of(task, "official", seed)
        train, validation = parts["camera-000"]
        assert {split[names[i]] for i in train} == {"train"}
        assert {split[names[i]] for i in validation} == {"id_val"}
        assert (len(train), len(validation)) == (18, 6)
        assert parts["camera-001"] == parts["camera-003"] == (list(range(12)), [])
    # A share of the rows is drawn from both, and burst by burst.
    train, validation = parts_of(task, 0.25)["camera-000"]
    assert (len(train), len(validation)) == (18, 6)


def test_another_size_keeps_the_bursts_the_split_and_what_is_held_out(data: Path) -> None:
    official_iwildcam(data / "iwildcam_v2.0")
    task = load("iwildcam-wilds")
    small = open_task("iwildcam-wilds", image_size=16)
    assert small.domains[0].x.shape[1:] == (3, 16, 16)
    assert small.held_out == task.held_out
    assert parts_of(small, "official") == parts_of(task, "official")
    assert parts_of(small, 0.25) == parts_of(task, 0.25)


def test_a_round_is_chosen_by_the_cameras_that_have_validation_rows(data: Path, tmp_path: Path) -> None:
    official_iwildcam(data / "iwildcam_v2.0")
    out = tmp_path / "out"
    task = open_task("iwildcam-wilds", image_size=16)
    ff.bench(task, algorithms=["fedavg"], validation="official", rounds=1, seeds=1, out=out, workers=1)
    (file,) = out.rglob("rounds.jsonl")
    last = json.loads(file.read_text().splitlines()[-1])
    assert {name: values["n"] for name, values in last["validation"].items()} == {"camera-000": 6}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("id_val,", "dev,"), "has the split 'dev'; WILDS's are train, id_val, test, val, id_test"),
        (("\ntest,", "\nval,"), "has no row of the split 'test', which task 'iwildcam-wilds' needs"),
        (("split,", "part,"), "has no column 'split'; it has part"),
    ],
)
def test_a_split_that_cannot_be_used_is_named(data: Path, change: tuple[str, str], sentence: str) -> None:
    root = official_iwildcam(data / "iwildcam_v2.0")
    (root / "metadata.csv").write_text((root / "metadata.csv").read_text().replace(*change))
    with pytest.raises(ImageError, match=sentence):
        load("iwildcam-wilds")


def test_cameras_that_all_have_too_few_pictures_are_refused(data: Path) -> None:
    root = official_iwildcam(data / "iwildcam_v2.0")
    for number in range(27, 39):  # those of camera 1
        (root / "train" / f"{number:05d}.jpg").unlink()
    for number in (*range(10), *range(54, 66)):  # of camera 0, and those of camera 3
        (root / "train" / f"{number:05d}.jpg").unlink()
    with pytest.raises(ImageError, match=r"none of 2 cameras in .* has 10 pictures to train on, of two bursts or more"):
        load("iwildcam-wilds")
    for number in range(77, 83):
        (root / "train" / f"{number:05d}.jpg").unlink()
    with pytest.raises(ImageError, match=r"9 pictures of the split 'test' are in .*, and a domain needs at least 10"):
        load("iwildcam-wilds")


def test_celebas_domains_are_the_groups_of_wilds(data: Path) -> None:
    celeba(data / "celebA_v1.0")
    task = load("celeba")
    assert task.domain_names == ("not-blond-female", "not-blond-male", "blond-female", "blond-male")
    assert describe("celeba").domains == task.domain_names
    assert task.classes == ("not-blond", "blond")
    assert [torch.bincount(d.y, minlength=2).tolist() for d in task.domains] == [[20, 0], [16, 0], [0, 12], [0, 10]]
    assert [note for note in task.notes if "class" in note] == [
        "every domain is one of WILDS's groups and so of one class: its accuracy is the group's, the worst domain is "
        "the worst group, and AUROC is not defined on it"
    ]


def test_celebas_worst_domain_is_the_worst_of_the_four_groups(data: Path, tmp_path: Path) -> None:
    celeba(data / "celebA_v1.0")
    task = open_task("celeba", image_size=8)
    result = ff.bench(task, algorithms=["fedavg"], rounds=1, seeds=1, out=tmp_path / "out", workers=1)
    (line,) = result.results("last").lines
    of_group = {row["held_out"]: row["selection"]["last"]["accuracy"] for row in result.rows}
    assert set(of_group) == set(task.domain_names)
    assert line.worst == min(of_group.values())
    assert not any("auroc" in row["selection"]["last"] for row in result.rows)


@pytest.mark.parametrize(("males", "here"), [(9, 9), (0, 0)])
def test_a_group_of_too_few_faces_is_refused_with_the_task_that_can_be_had(data: Path, males: int, here: int) -> None:
    celeba(data / "celebA_v1.0", (20, 16, 12, males))
    with pytest.raises(ImageError, match=f"the group 'blond-male' has {here} images in .*'celeba-gender'"):
        load("celeba")
    assert [len(domain) for domain in load("celeba-gender").domains] == [32, 16 + males]


def test_celeba_by_gender_has_both_classes_in_two_domains(data: Path) -> None:
    celeba(data / "celebA_v1.0")
    task = load("celeba-gender")
    assert task.domain_names == ("female", "male")
    assert task.classes == ("not-blond", "blond")
    assert [torch.bincount(d.y).tolist() for d in task.domains] == [[20, 12], [16, 10]]
    assert not any("class" in note for note in task.notes)


@pytest.mark.parametrize(("make", "domains"), [(camelyon, 5), (iwildcam, 14), (official_iwildcam, 4), (celeba, 4)])
def test_a_folder_of_this_kind_is_recognised_wherever_it_lies(
    tmp_path: Path, make: Callable[[Path], Path], domains: int
) -> None:
    task = load_folder(make(tmp_path / "somewhere"), size=16)
    assert task.name == "somewhere"
    assert len(task.domains) == domains


def test_a_table_that_cannot_be_used_is_named(data: Path) -> None:
    root = camelyon(data / "camelyon17_v1.0")
    table = (root / "metadata.csv").read_text()
    (root / "metadata.csv").write_text(table.replace("tumor", "tumour"))
    with pytest.raises(ImageError, match="has no column 'tumor'; it has"):
        load("camelyon17")
    (root / "metadata.csv").write_text(table.replace("0,004,0,3000,4000,0,", "0,004,0,3000,4000,,"))
    with pytest.raises(ImageError, match="no value in column 'tumor' of row 2"):
        load("camelyon17")
    (root / "metadata.csv").unlink()
    with pytest.raises(ImageError, match="the table that says what the images are"):
        load("camelyon17")
