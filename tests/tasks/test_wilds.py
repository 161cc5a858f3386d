"""The layouts of the WILDS package: a table of metadata beside the images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from farfield.tasks import describe, load, load_folder
from farfield.tasks.images.files import ImageError
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
    """Camera c has 24 + c pictures, a third of them empty; animal a is rarer the larger a is."""
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


def celeba(root: Path) -> Path:
    rows = ["image_id,Blond_Hair,Male,Young"]
    for i in range(40):
        rows.append(f"{i:06d}.jpg,{1 if i % 4 == 0 else -1},{1 if i >= 20 else -1},1")
        save(root / "img_align_celeba" / f"{i:06d}.jpg", i)
    (root / "list_attr_celeba.csv").write_text("\n".join(rows) + "\n")
    return root


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
    assert any("1 cameras with fewer than 10 pictures were left out" in note for note in task.notes)


def test_fedcirs_part_has_the_ten_commonest_animals_in_the_ten_busiest_cameras(data: Path) -> None:
    root = iwildcam(data / "iwildcam_v2.0")
    task = load("iwildcam-10")
    assert len(task.domains) == 10
    assert len(task.classes) == 10
    assert "empty" not in task.classes
    # Counted again from the table, without the code under test.
    rows = [line.split(",") for line in (root / "metadata.csv").read_text().splitlines()[1:]]
    rows = [(int(r[1]), int(r[3])) for r in rows if int(r[3]) and int(r[1]) < 14]
    often = sorted({y for _, y in rows}, key=lambda y: (-sum(r[1] == y for r in rows), y))[:10]
    volume = {c: sum(r[0] == c and r[1] in often for r in rows) for c in range(14)}
    busy = sorted(volume, key=lambda c: (-volume[c], c))[:10]
    assert set(task.classes) == {f"animal {y}" for y in often}
    assert {d.name: len(d) for d in task.domains} == {f"camera-{c:03d}": volume[c] for c in sorted(busy)}


def test_celeba_is_blond_or_not_by_gender(data: Path) -> None:
    celeba(data / "celebA_v1.0")
    task = load("celeba")
    assert task.domain_names == ("female", "male")
    assert task.classes == ("not-blond", "blond")
    assert [torch.bincount(d.y).tolist() for d in task.domains] == [[15, 5], [15, 5]]


@pytest.mark.parametrize("make", [camelyon, iwildcam, celeba])
def test_a_folder_of_this_kind_is_recognised_wherever_it_lies(tmp_path: Path, make: object) -> None:
    task = load_folder(make(tmp_path / "somewhere"), size=16)  # type: ignore[operator]
    assert task.name == "somewhere"
    assert len(task.domains) in (5, 14, 2)


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
