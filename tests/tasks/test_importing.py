"""Bringing data in: recognised by layout, checked, whole or not at all, and checked again later."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from farfield.tasks.data_folder.catalogue import CATALOGUE, UnknownDataSet, data_set
from farfield.tasks.data_folder.checksums import digest
from farfield.tasks.data_folder.downloading import NoSpace
from farfield.tasks.data_folder.importing import AlreadyHere, NotRecognised, import_path, recognise
from farfield.tasks.data_folder.recognition import array_counts
from farfield.tasks.data_folder.verification import check
from farfield.tasks.data_sets import heart_disease
from farfield.tasks.data_sets.array_sets import DamagedData
from farfield.tasks.data_sets.image_sets import PUBLIC, list_public
from farfield.tasks.images.image_set import ImageError
from farfield.tasks.user_data.table_file import TableError
from tests.tasks.real import needs_data
from tests.tasks.small_sets import arrays, records, save, save_idx


def image_folder(folder: Path, domains: tuple[str, ...], inside: str = "dog") -> Path:
    for domain in domains:
        (folder / domain / inside).mkdir(parents=True)
        (folder / domain / inside / "1.jpg").write_bytes(b"\xff\xd8\xff" + domain.encode())
    return folder


def tables(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("a,b\n1,2\n3,4\n")
    return folder


def hospitals(folder: Path, name: str, columns: tuple[str, ...] = heart_disease.COLUMNS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(";".join(columns) + "\n" + ";".join("1" * len(columns)) + "\n")
    return folder / name


def uci(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in heart_disease.PROCESSED:
        (folder / name).write_text(",".join("1" * 14) + "\n" + ",".join("?" * 13) + ",0\n")
    return folder


def some(tmp_path: Path, name: str) -> Path:
    """Something on a disk, away from the data folder, that looks like this data set."""
    place = tmp_path / "downloads"
    makers: dict[str, Any] = {
        "mnist": lambda: save_idx(place / "raw", arrays(4, 4), "train", "t10k"),
        "emnist": lambda: save_idx(place / "e", arrays(4, 4), "emnist-mnist-train", "emnist-mnist-test"),
        "pacs": lambda: image_folder(place / "kfold", ("art_painting", "cartoon", "photo", "sketch")),
        "vlcs": lambda: image_folder(place / "v", ("Caltech101", "LabelMe", "SUN09", "VOC2007")),
        "office-home": lambda: image_folder(place / "o", ("Art", "Clipart", "Product", "Real_World")),
        "office-caltech10": lambda: image_folder(place / "c", ("amazon", "caltech", "dslr", "webcam"), "mug"),
        "domainnet": lambda: image_folder(
            place / "d", ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
        ),
        "eicu": lambda: tables(place / "physionet", "patient.csv", "medication.csv"),
        "heart-disease": lambda: uci(place / "heart+disease"),
    }
    return Path(makers[name]())


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("mnist", "MNIST"),
        ("emnist", "EMNIST"),
        ("pacs", "PACS"),
        ("vlcs", "VLCS"),
        ("office-home", "office_home"),
        ("office-caltech10", "office_caltech_10"),
        ("domainnet", "domain_net"),
        ("eicu", "eicu"),
        ("heart-disease", "heart_disease"),
    ],
)
def test_a_set_is_known_by_its_layout_and_put_in_its_place(data: Path, tmp_path: Path, name: str, place: str) -> None:
    path = some(tmp_path, name)
    assert recognise(path).name == name
    done = import_path(path)
    assert done.path == data / place == data_set(name).here()
    copied = sorted(p.relative_to(done.path) for p in done.path.rglob("*"))
    assert copied == sorted(p.relative_to(path) for p in path.rglob("*"))
    assert sorted(p.name for p in data.iterdir()) == sorted([place, f"{place}.sha256"])
    assert check(data_set(name)).checksums.endswith("as recorded")


def wrapped_pacs(folder: Path) -> Path:
    image_folder(folder / "kfold", ("art_painting", "cartoon", "photo", "sketch"))
    (folder / "splits").mkdir()
    (folder / "splits" / "photo_train_kfold.txt").write_text("photo/dog/1.jpg 1\n")
    (folder / "README.md").write_text("as published")
    return folder


def split_vlcs(folder: Path) -> Path:
    for split in ("full", "train", "crossval", "test"):
        image_folder(folder, ("CALTECH", "LABELME", "PASCAL", "SUN"), f"{split}/3")
    return folder


def office_with_images(folder: Path) -> Path:
    return image_folder(folder, ("amazon", "caltech10", "dslr", "webcam"), "images/laptop")


def wrapped_domainnet(folder: Path) -> Path:
    image_folder(
        folder / "files" / "domain_net", ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), "zebra"
    )
    return folder


LAYOUTS = {
    "pacs": wrapped_pacs,
    "vlcs": split_vlcs,
    "office-caltech10": office_with_images,
    "domainnet": wrapped_domainnet,
}


@pytest.mark.parametrize("given", [True, False], ids=["by-name", "by-layout"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_that_a_task_reads_is_imported_and_counted_as_the_task_does(
    data: Path, tmp_path: Path, cache: Path, name: str, given: bool
) -> None:
    path = LAYOUTS[name](tmp_path / "downloads")
    assert recognise(path).name == name
    done = import_path(path, name if given else None)
    found = check(data_set(name))
    assert found.found == dict.fromkeys(PUBLIC[name].counts, 1)
    assert (found.state, found.checksums) == ("part", f"{done.files} files as recorded")
    assert list_public(PUBLIC[name]).sizes == tuple(found.found.values())


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_set_that_was_put_there_by_hand_is_counted_as_the_task_does(data: Path, name: str) -> None:
    LAYOUTS[name](data / PUBLIC[name].folders[0])
    assert check(data_set(name)).found == dict.fromkeys(PUBLIC[name].counts, 1)


def test_a_part_of_a_set_is_taken_under_its_name_only(data: Path, tmp_path: Path) -> None:
    path = image_folder(tmp_path / "some", ("photo", "sketch"))
    with pytest.raises(NotRecognised, match="looks like none of the known data sets"):
        import_path(path)
    import_path(path, "pacs")
    assert check(data_set("pacs")).counts.startswith("art_painting 0 of 2,048, cartoon 0 of 2,344, photo 1 of 1,670")
    with pytest.raises(ImageError, match="holds one domain of vlcs only"):
        import_path(image_folder(tmp_path / "one", ("SUN09",)), "vlcs")


def test_a_folder_with_a_set_among_other_things_is_not_taken_for_the_set(data: Path, tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    wrapped_pacs(downloads / "PACS")
    (downloads / "holidays.zip").write_bytes(b"PK")
    with pytest.raises(NotRecognised, match="looks like none of the known data sets"):
        import_path(downloads)
    (downloads / "holidays.zip").rename(tmp_path / "holidays.zip")
    assert recognise(downloads).name == "pacs"


def test_a_home_folder_is_looked_at_by_its_names_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        image_folder(tmp_path / "home" / f"project-{number}", ("art_painting", "cartoon", "photo", "sketch"))
    opened: set[Path] = set()
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        opened.add(Path(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(NotRecognised):
        recognise(tmp_path / "home")
    assert opened == {tmp_path / "home"}


def test_a_folder_that_leads_back_to_itself_is_no_data_set(data: Path, tmp_path: Path) -> None:
    path = image_folder(tmp_path / "circle", ("photo", "sketch"))
    (path / "again").symlink_to(path)
    with pytest.raises(NotRecognised, match="looks like none"):
        recognise(path)
    with pytest.raises(ImageError, match="is a link back to a folder that it lies in"):
        import_path(path, "pacs")


def test_the_record_is_what_sha256sum_reads(data: Path, tmp_path: Path) -> None:
    import_path(some(tmp_path, "pacs"))
    lines = (data / "PACS.sha256").read_text().splitlines()
    assert lines[0] == f"{digest(data / 'PACS/art_painting/dog/1.jpg')}  PACS/art_painting/dog/1.jpg"
    assert len(lines) == 4


def test_a_link_leaves_the_data_where_it_is(data: Path, tmp_path: Path) -> None:
    path = some(tmp_path, "pacs")
    import_path(path, link=True)
    assert (data / "PACS").is_symlink()
    assert check(data_set("pacs")).checksums == "4 files as recorded"
    (path / "photo/dog/1.jpg").write_bytes(b"other")
    assert check(data_set("pacs")).state == "damaged"


def test_a_table_is_known_by_its_columns_and_refused_without_one_of_them(data: Path, tmp_path: Path) -> None:
    assert recognise(hospitals(tmp_path, "downloaded.csv")).name == "heart-disease"
    lacking = hospitals(tmp_path, "heart_disease.csv", heart_disease.COLUMNS[:-1])
    for name in (None, "heart-disease"):
        with pytest.raises(TableError, match=r"there is no column 'trestbps' for data set 'heart-disease'"):
            import_path(lacking, name)
    assert list(data.iterdir()) == []
    assert import_path(tmp_path / "downloaded.csv").path == data / "heart_disease.csv"


@pytest.mark.parametrize("name", ["heart.parquet", "heart.csv.gz"])
def test_a_table_of_another_kind_of_file_is_refused(data: Path, tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({column: [1, 2] for column in heart_disease.COLUMNS})
    frame.to_parquet(tmp_path / name) if name.endswith("parquet") else frame.to_csv(tmp_path / name, index=False)
    with pytest.raises(NotRecognised, match=r"heart-disease is kept as heart_disease\.csv, and '.*' is another kind"):
        import_path(tmp_path / name, "heart-disease")
    assert list(data.iterdir()) == []


def test_what_is_not_recognised_can_be_named(data: Path, tmp_path: Path) -> None:
    path = save(tmp_path / "digits-of-mine.npz", arrays(5, 5))
    with pytest.raises(NotRecognised, match=r"looks like none of the known data sets.*--as NAME"):
        import_path(path)
    assert import_path(path, "mnist").path == data / "mnist.npz"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mnits", "unknown data set 'mnits'; did you mean 'mnist'"),
        ("office_home2", "did you mean 'office-home'"),
        ("zzz", "unknown data set 'zzz'; there are mnist, emnist"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(data: Path, tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(UnknownDataSet, match=message):
        import_path(save(tmp_path / "a.npz", arrays(5, 5)), given)


def test_arrays_that_are_not_the_set_are_refused_and_nothing_is_left(data: Path, tmp_path: Path) -> None:
    path = save(tmp_path / "mnist.npz", arrays(5, 5, (16, 16)))
    with pytest.raises(DamagedData, match=r"x_train is uint8 of shape \(5, 16, 16\); mnist has uint8 images of 28×28"):
        import_path(path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DamagedData, match="cut short"):
        import_path(path)
    with pytest.raises(ImageError, match="with the domains art_painting, cartoon, photo, sketch"):
        import_path(some(tmp_path, "vlcs"), "pacs")
    with pytest.raises(NotRecognised, match=r"usps is a file \(usps\.npz\), and .* is not"):
        import_path(tmp_path / "downloads", "usps")
    assert list(data.iterdir()) == []


def test_the_python_version_of_cifar_is_refused_with_the_way_out(data: Path, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(NotRecognised, match=r"pickles.*farfield data fetch cifar10"):
        import_path(tmp_path / "cifar-10-batches-py")


def test_a_path_that_is_not_there_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(NotRecognised, match="there is no file or folder"):
        import_path(tmp_path / "nowhere")


def test_what_is_here_is_replaced_only_when_asked(data: Path, tmp_path: Path) -> None:
    import_path(save(tmp_path / "mnist.npz", arrays(5, 5)))
    larger = save(tmp_path / "larger.npz", arrays(50, 5))
    with pytest.raises(AlreadyHere, match=r"mnist is here already.*--replace"):
        import_path(larger, "mnist")
    import_path(larger, "mnist", replace=True)
    assert check(data_set("mnist")).found == {"train": 50, "test": 5}
    assert check(data_set("mnist")).checksums == "1 file as recorded"
    with pytest.raises(AlreadyHere, match="is read before"):
        import_path(some(tmp_path, "mnist"), replace=True)
    assert sorted(p.name for p in data.iterdir()) == ["mnist.npz", "mnist.npz.sha256"]


@pytest.mark.parametrize("name", ["pacs", "heart-disease"])
def test_a_full_disk_leaves_nothing_behind(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = some(tmp_path, name)
    real = shutil.copy2
    copied: list[Any] = []

    def full(source: Any, target: Any, **more: Any) -> Any:
        if len(copied) >= (2 if path.is_dir() else 0):
            Path(target).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        copied.append(target)
        return real(source, target, **more)

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(NoSpace, match=r"is full, and nothing of .* was kept"):
        import_path(path)
    assert list(data.iterdir()) == []


def test_check_finds_changed_missing_and_new_files(data: Path, tmp_path: Path) -> None:
    import_path(some(tmp_path, "pacs"))
    (data / "PACS/cartoon/dog/1.jpg").write_bytes(b"other")
    (data / "PACS/photo/dog/1.jpg").unlink()
    (data / "PACS/photo/dog/2.jpg").write_bytes(b"new")
    found = check(data_set("pacs"))
    assert found.state == "damaged"
    assert found.checksums == (
        "1 changed (PACS/cartoon/dog/1.jpg); 1 missing (PACS/photo/dog/1.jpg); 1 new (PACS/photo/dog/2.jpg)"
    )


def test_check_without_a_record_looks_at_the_folders_own_sums(data: Path, tmp_path: Path) -> None:
    shutil.copytree(some(tmp_path, "pacs"), data / "PACS")
    assert check(data_set("pacs")).checksums == "no record"
    sums = [f"{digest(p)}  ./{p.relative_to(data)}" for p in sorted(data.rglob("*.jpg"))]
    (data / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    assert check(data_set("pacs")).checksums == "4 files as recorded"
    (data / "PACS.sha256").write_text("what is this\n")
    broken = check(data_set("pacs"))
    assert broken.state == "damaged"
    assert "line 1 is not a checksum and a name" in broken.checksums


def test_what_was_recorded_and_is_gone_is_damaged_not_absent(data: Path, tmp_path: Path) -> None:
    place = import_path(some(tmp_path, "pacs")).path
    shutil.rmtree(place)
    gone = check(data_set("pacs"))
    assert (gone.state, gone.path) == ("damaged", None)
    assert "records it, and it is not there any more" in gone.checksums
    (data / "PACS.sha256").unlink()
    assert check(data_set("pacs")).state == "absent"


def test_check_says_when_there_are_more_than_published_and_when_a_file_cannot_be_read(data: Path) -> None:
    save(data / "usps.npz", arrays(7_292, 2_007, (2, 2)))
    assert (check(data_set("usps")).state, check(data_set("usps")).counts) == ("other", "train 7,292 of 7,291")
    (data / "usps.npz").write_bytes(b"PK")
    found = check(data_set("usps"))
    assert found.state == "damaged"
    assert "usps.npz' is cut short" in found.counts
    assert check(data_set("mnist")).state == "absent"


def test_published_files_are_counted_without_an_npz(data: Path) -> None:
    content = arrays(4, 3, (32, 32, 3), 100)
    (data / "cifar-100-binary").mkdir()
    (data / "cifar-100-binary/train.bin").write_bytes(records(content["x_train"], np.zeros(4), content["y_train"]))
    (data / "cifar-100-binary/test.bin").write_bytes(records(content["x_test"], np.zeros(3), content["y_test"]))
    assert array_counts("cifar100")(data / "cifar-100-binary") == {"train": 4, "test": 3}


def test_every_entry_says_what_a_user_must_know() -> None:
    for known in CATALOGUE.values():
        assert known.places
        assert known.about
        assert known.terms
        assert known.get
        if known.fetch is not None:
            assert f"farfield data fetch {known.name}" in known.get


@needs_data("PACS")
def test_the_real_pacs_has_the_published_counts() -> None:
    count = data_set("pacs").count
    path = data_set("pacs").here()
    assert count is not None
    assert path is not None
    assert count(path) == {"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929}
