"""A folder of images becomes a task: which files, which labels, which pixels, and what a user is told."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from farfield.tasks import load_folder
from farfield.tasks.images import cache as array_cache
from farfield.tasks.images import pixels
from farfield.tasks.images.image_set import ImageError, decode
from farfield.tasks.images.layouts import list_classes, list_folder
from farfield.tasks.images.new_images import find_files
from farfield.tasks.user_data.folder import at_size
from tests.tasks.image_files import make_folder, picture, save

pytestmark = pytest.mark.usefixtures("cache")


def left(cache: Path) -> list[str]:
    """What a build left in the cache besides finished arrays."""
    return [p.name for p in cache.rglob("*") if p.is_file() and p.suffix != ".npy"]


def test_domains_classes_and_pixels_are_those_of_the_files(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites", {"b": {"dog": 6, "cat": 5}, "a": {"cat": 7, "dog": 8}})
    (root / "splits.csv").write_text("path,split\n")
    (root / "a" / "cat" / "notes.txt").write_text("no image")
    task = load_folder(root, size=16)
    assert task.name == "sites"
    assert task.domain_names == ("a", "b")
    assert task.classes == ("cat", "dog")
    assert [torch.bincount(d.y).tolist() for d in task.domains] == [[7, 8], [5, 6]]
    assert task.model.input_shape == (3, 16, 16)
    assert task.notes == ()
    with Image.open(root / "b" / "dog" / "003.png") as image:
        expected = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert task.domain("b").x.dtype == torch.uint8
    assert np.array_equal(task.domain("b").x[5 + 3].numpy(), expected)


def test_rows_are_views_of_one_memory_map_and_raise_no_warning(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = load_folder(root, size=16)
    first, second = task.domains[0].x, task.domains[1].x
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    with open("/proc/self/maps") as maps:
        assert any("pixels" in line and line.split()[1].startswith("r-") for line in maps)


def test_the_second_load_reads_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder(tmp_path / "sites")
    monkeypatch.setattr(pixels, "SETTLED", 0)
    before = load_folder(root, size=16)

    def fail(*arguments: Any) -> None:
        raise AssertionError("an image was read again")

    monkeypatch.setattr(pixels, "read_chunk", fail)
    monkeypatch.setattr(pixels, "_hash_files", fail)
    again = load_folder(root, size=16)
    assert torch.equal(again.domains[2].x, before.domains[2].x)
    assert again.fingerprint == before.fingerprint


def test_a_copy_of_the_folder_finds_the_same_pixels_and_a_changed_file_makes_new_ones(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(tmp_path / "sites")
    before = load_folder(root, size=16)
    other = shutil.copytree(root, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    copied = load_folder(other, size=16)
    assert len(list(cache.glob("pixels/*.npy"))) == 1
    assert copied.fingerprint == before.fingerprint
    save(other / "north" / "cat" / "000.png", seed=999)
    changed = load_folder(other, size=16)
    assert len(list(cache.glob("pixels/*.npy"))) == 2
    assert changed.fingerprint != before.fingerprint
    assert not torch.equal(changed.domains[0].x[0], before.domains[0].x[0])
    assert torch.equal(changed.domains[0].x[1:], before.domains[0].x[1:])


def same_looking(root: Path, shade: int) -> Path:
    """A folder whose names, sizes and times do not depend on the shade of its pictures."""
    for domain in ("a", "b"):
        for label in ("cat", "dog"):
            (root / domain / label).mkdir(parents=True, exist_ok=True)
            for number in range(5):
                path = root / domain / label / f"{number}.ppm"
                Image.new("RGB", (8, 8), (shade, number, ord(domain) + ord(label[0]))).save(path)
                os.utime(path, (1_000_000_000, 1_000_000_000))
    return root


def test_folders_that_look_the_same_from_outside_keep_their_own_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "SETTLED", 0)  # so that hashes are kept of files as young as these
    first = load_folder(same_looking(tmp_path / "x" / "sites", 10), size=8)
    second = load_folder(same_looking(tmp_path / "y" / "sites", 20), size=8)
    assert [int(task.domains[0].x[0, 0, 0, 0]) for task in (first, second)] == [10, 20]
    assert first.fingerprint != second.fingerprint
    time.sleep(0.05)  # more than a tick of the file system's clock
    third = load_folder(same_looking(tmp_path / "y" / "sites", 30), size=8)
    assert int(third.domains[0].x[0, 0, 0, 0]) == 30


def test_hashes_of_files_that_were_written_just_now_are_not_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = same_looking(tmp_path / "sites", 10)  # the time of the content is long ago, that of the inode is not
    monkeypatch.setattr(pixels, "SETTLED", 3600 * 10**9)
    load_folder(root, size=8)
    assert not list(cache.glob("hashes/*"))
    monkeypatch.setattr(pixels, "SETTLED", 0)
    load_folder(root, size=8)
    assert len(list(cache.glob("hashes/*.npy"))) == 1


def test_another_size_is_another_array_of_the_same_images(tmp_path: Path, cache: Path) -> None:
    task = load_folder(make_folder(tmp_path / "sites"), size=16)
    larger = at_size(task, 32)
    assert larger.domains[0].x.shape[1:] == (3, 32, 32) == larger.model.input_shape
    assert torch.equal(larger.domains[1].y, task.domains[1].y)
    assert sorted(p.stem[-2:] for p in cache.glob("pixels/*.npy")) == ["16", "32"]
    with pytest.raises(ImageError, match="2000 × 2000"):
        at_size(task, 2000)


@pytest.mark.parametrize("between", ["images", "full"])
def test_a_level_between_domain_and_class_is_seen_through(tmp_path: Path, between: str) -> None:
    root = make_folder(tmp_path / "set", between=between)
    if between == "full":  # VLCS: the parts lie beside the whole
        shutil.copytree(root / "north" / "full", root / "north" / "train")
    images = list_folder(root)
    assert images.domains == ("north", "south", "west")
    assert images.classes == ("cat", "dog")
    assert images.sizes == (16, 16, 16)


def test_split_folders_without_a_whole_are_put_together(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set", between="train")
    save(root / "north" / "test" / "cat" / "more.png", 777)
    assert list_folder(root).sizes == (17, 16, 16)


def test_a_folder_around_the_domains_is_seen_through(tmp_path: Path) -> None:
    make_folder(tmp_path / "PACS" / "kfold")
    images = list_folder(tmp_path / "PACS")
    assert images.domains == ("north", "south", "west")
    assert images.paths[0] == "kfold/north/cat/000.png"


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".bmp", ".webp", ".gif", ".tiff"])
def test_all_common_formats_are_decoded_to_the_same_picture(tmp_path: Path, suffix: str) -> None:
    smooth = Image.linear_gradient("L").resize((96, 64)).convert("RGB")
    smooth.save(tmp_path / f"x{suffix}")
    got = decode((tmp_path / f"x{suffix}").read_bytes(), 16)
    expected = np.asarray(smooth.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert got.shape == (3, 16, 16)
    assert np.abs(got.astype(int) - expected).max() <= 6  # lossy formats, and JPEG decoded at a fraction of its size


def test_phone_pictures_are_turned_upright_and_sixteen_bits_are_not_cut_off(tmp_path: Path) -> None:
    image = picture(0, size=(30, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    image.save(tmp_path / "turned.png", exif=exif)
    upright = np.asarray(image.transpose(Image.Transpose.ROTATE_270).resize((8, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(decode((tmp_path / "turned.png").read_bytes(), 8), upright.transpose(2, 0, 1))
    deep = (np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    got = decode((tmp_path / "deep.png").read_bytes(), 8)
    assert np.abs(got[0].astype(float) - deep / 257).max() <= 1


def test_all_corrupt_images_are_named_and_nothing_is_kept(tmp_path: Path, cache: Path) -> None:
    root = make_folder(tmp_path / "sites", suffix=".jpg")
    whole = (root / "south" / "dog" / "002.jpg").read_bytes()
    (root / "south" / "dog" / "002.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "west" / "cat" / "001.jpg").write_bytes(b"")
    with pytest.raises(ImageError) as told:
        load_folder(root, size=16)
    assert "2 images" in str(told.value)
    assert re.search(r"'south/dog/002.jpg' \(.*truncated.*\)", str(told.value), re.IGNORECASE)
    assert "'west/cat/001.jpg' (no image that Pillow knows)" in str(told.value)
    assert not list(cache.glob("pixels/*"))
    (root / "south" / "dog" / "002.jpg").write_bytes(whole)
    (root / "west" / "cat" / "001.jpg").unlink()
    assert len(load_folder(root, size=16).domain("west")) == 15


def test_an_empty_class_folder_is_noted_and_a_class_that_a_domain_lacks_too(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites", {"a": {"cat": 6, "dog": 6, "cow": 0}, "b": {"cat": 6, "dog": 6, "cow": 6}})
    (root / "empty").mkdir()
    task = load_folder(root, size=16)
    assert task.domain_names == ("a", "b")
    assert task.classes == ("cat", "cow", "dog")
    assert any("'a/cow' holds no image" in note for note in task.notes)
    assert any("'empty' holds no class with images" in note for note in task.notes)
    assert any("not every domain has every class: 'a' has no 'cow'" in note for note in task.notes)


def test_a_domain_of_one_class_is_allowed_with_a_note(tmp_path: Path) -> None:
    task = load_folder(make_folder(tmp_path / "s", {"a": {"cat": 12}, "b": {"cat": 6, "dog": 6}}), size=16)
    assert any("'a' has images of one class only ('cat')" in note for note in task.notes)


def test_many_domains_of_one_class_are_counted_after_the_first_three(tmp_path: Path, cache: Path) -> None:
    counts = {f"site-{i}": {"cat": 10} for i in range(5)} | {"both": {"cat": 8, "dog": 8}}
    notes = load_folder(make_folder(tmp_path / "images", counts), size=8).notes
    assert [note[:15] for note in notes if "one class only ('cat')" in note] == [f"domain 'site-{i}'" for i in range(3)]
    assert "2 more domains have images of one class only" in notes


def test_a_domain_with_too_few_images_is_refused_by_name(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "s", {"a": {"cat": 2, "dog": 1}, "b": {"cat": 6, "dog": 6}})
    with pytest.raises(ImageError, match=r"domain 'a' .* has 3 images, and a domain needs at least 10"):
        load_folder(root)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda root: root / "nowhere", "is no folder"),
        (lambda root: root, "there are no images"),
        (lambda root: save(root / "cat" / "1.png", 0).parents[1], "holds images directly"),
        (lambda root: make_folder(root, {"a": {"cat": 9, "dog": 9}}), "one domain only"),
        (lambda root: make_folder(root, {"a": {"cat": 12}, "b": {"cat": 12}}), "are of class 'cat'"),
    ],
)
def test_another_layout_is_refused_with_the_one_that_is_expected(tmp_path: Path, make: Any, sentence: str) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(ImageError, match=sentence) as told:
        load_folder(make(tmp_path / "x"))
    assert "domain/class/" in str(told.value)


def test_the_same_content_in_two_domains_or_two_classes_is_told(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites")
    shutil.copy(root / "north" / "cat" / "000.png", root / "west" / "cat" / "copy.png")
    shutil.copy(root / "south" / "dog" / "001.png", root / "south" / "cat" / "wrong.png")
    notes = load_folder(root, size=16).notes
    leak = next(note for note in notes if note.startswith("leakage"))
    assert "2 files" in leak
    assert "'north/cat/000.png' and 'west/cat/copy.png'" in leak
    contradiction = next(note for note in notes if note.startswith("contradiction"))
    assert "'south/cat/wrong.png' and 'south/dog/001.png'" in contradiction


def test_copies_inside_one_domain_are_told(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites")
    for number in (0, 1):
        shutil.copy(root / "south" / "dog" / f"00{number}.png", root / "south" / "dog" / f"copy{number}.png")
    shutil.copy(root / "west" / "cat" / "002.png", root / "west" / "cat" / "copy.png")
    (note,) = load_folder(root, size=16).notes
    assert note.startswith("copies: ")
    assert "2 in domain 'south', 1 in domain 'west', first 'south/dog/000.png' and 'south/dog/copy0.png'" in note
    assert "a copy of a training row may lie in the domain's validation rows" in note


def test_images_outside_any_class_are_counted(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites")
    save(root / "north" / "stray.png", 500)
    task = load_folder(root, size=16)
    assert len(task.domain("north")) == 16
    assert any("1 images lie directly in 'north'" in note for note in task.notes)


def test_a_full_disk_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(tmp_path / "sites", {d: {"cat": 50, "dog": 50} for d in "ab"})
    written = []
    put = array_cache._put

    def full(file: Any, chunk: Any) -> None:
        if len(written) == 2:  # the hashes and the first chunk fit
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(put(file, chunk))

    monkeypatch.setattr(pixels, "SETTLED", 0)
    monkeypatch.setattr(array_cache, "_put", full)
    with pytest.raises(
        array_cache.CacheError, match=r"is full: .* nothing was kept of it; make room, or set FARFIELD_CACHE"
    ):
        load_folder(root, size=16)
    assert len(written) == 2
    assert not list(cache.glob("pixels/*"))
    monkeypatch.setattr(array_cache, "_put", put)
    assert len(load_folder(root, size=16).domains) == 2


def test_too_small_a_disk_is_seen_before_anything_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder(tmp_path / "sites")
    monkeypatch.setattr(array_cache.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(array_cache.CacheError, match="is full"):
        load_folder(root)


BUILD = """
import sys, time
from pathlib import Path
from farfield.tasks import load_folder
from farfield.tasks.images import pixels
slow = pixels.read_chunk
def read_chunk(*arguments):
    time.sleep(0.2)
    return slow(*arguments)
pixels.read_chunk = read_chunk
load_folder(Path(sys.argv[1]), size=16)
"""


@pytest.mark.slow
def test_a_killed_build_leaves_no_array_and_the_next_one_clears_up(tmp_path: Path, cache: Path) -> None:
    root = make_folder(tmp_path / "sites", {d: {"cat": 400, "dog": 400} for d in "ab"})
    build = subprocess.Popen([sys.executable, "-c", BUILD, str(root)], env=dict(os.environ))
    deadline = time.monotonic() + 120
    while not list(cache.glob("pixels/*.partial")) and time.monotonic() < deadline:
        time.sleep(0.02)
    build.send_signal(signal.SIGKILL)
    build.wait()
    assert list(cache.glob("pixels/*.partial"))
    assert not list(cache.glob("pixels/*.npy"))
    task = load_folder(root, size=16)
    assert [len(d) for d in task.domains] == [800, 800]
    assert left(cache) == []


def test_leftovers_of_another_killed_build_go_and_those_of_a_living_one_stay(tmp_path: Path, cache: Path) -> None:
    root = make_folder(tmp_path / "sites")
    (cache / "pixels").mkdir(parents=True)
    (cache / "pixels" / "dead-64.1.partial").write_bytes(b"x")
    (cache / "pixels" / "alive-64.2.partial").write_bytes(b"x")
    held = array_cache._lock(cache / "pixels" / "alive-64.lock", wait=False)
    assert held is not None
    with held:
        load_folder(root, size=16)
        assert sorted(left(cache)) == ["alive-64.2.partial", "alive-64.lock"]


def test_a_damaged_cache_file_is_named(tmp_path: Path, cache: Path) -> None:
    root = make_folder(tmp_path / "sites")
    load_folder(root, size=16)
    path = next(cache.glob("pixels/*.npy"))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(array_cache.CacheError, match=f"{path.name}' is damaged"):
        load_folder(root, size=16)


MEASURE = """
import resource, sys
from pathlib import Path
import farfield.tasks
from farfield.tasks import load_folder
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
task = load_folder(Path(sys.argv[1]), size=256)
total = sum(int(d.x[i].sum()) for d in task.domains for i in range(len(d)))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024, sum(d.x.numel() for d in task.domains), total)
"""


@pytest.mark.slow
def test_peak_memory_stays_under_the_size_of_the_cache_and_a_little(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites", {d: {"cat": 100, "dog": 100} for d in "ab"})
    ran = subprocess.run([sys.executable, "-c", MEASURE, str(root)], capture_output=True, text=True, check=True)
    grown, cached, _ = map(int, ran.stdout.split())
    assert cached == 400 * 3 * 256 * 256
    assert grown < cached + 150 * 2**20  # the promise is a gigabyte


TRAIN = """
import resource, sys
import farfield as ff
task = ff.read_folder(sys.argv[1], size=128)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ff.bench(task, ["fedavg"], references=False, seeds=1, rounds=1, held_out=["a"], parallel=1, settings={"local_steps": 1})
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024, sum(d.x.numel() for d in task.domains))
"""


@pytest.mark.slow
def test_a_round_on_larger_images_stays_under_the_size_of_the_cache_and_a_gigabyte(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites", {d: {"cat": 200, "dog": 200} for d in "ab"})
    ran = subprocess.run([sys.executable, "-c", TRAIN, str(root)], capture_output=True, text=True, check=True)
    grown, cached = map(int, ran.stdout.split())
    assert cached == 800 * 3 * 128 * 128
    assert grown < cached + 2**30


def test_pictures_that_are_not_read_are_counted_and_named(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites")
    for name in ("a.HEIC", "b.svg", "notes.txt", ".hidden.heic"):
        (root / "north" / "cat" / name).write_bytes(b"anything")
    (root / "south" / "dog" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    save(root / "top.png", 700)
    assert load_folder(root).notes == (
        f"1 images lie directly in '{root}', in no domain, and were left out",
        "2 pictures are of a kind that is not read and were left out ('north/cat/a.HEIC', …); save them as png or jpg",
        "1 links lead nowhere and were left out ('south/dog/gone.png')",
    )


def test_whatever_is_passed_over_is_told_of_at_every_level(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites")
    (root / "away").symlink_to(tmp_path / "not-mounted")
    (root / "north" / "bird").symlink_to(tmp_path / "not-mounted")
    for place in (root, root / "north", root / "north" / "cat"):
        (place / "phone.heic").write_bytes(b"anything")
    assert load_folder(root).notes == (
        "3 pictures are of a kind that is not read and were left out ('north/cat/phone.heic', …); save them as png or "
        "jpg",
        "2 links lead nowhere and were left out ('away', …)",
    )
    site = list_classes(root / "north", "north")
    assert site.notes == (
        "2 pictures are of a kind that is not read and were left out ('cat/phone.heic', …); save them as png or jpg",
        "1 links lead nowhere and were left out ('bird')",
    )
    assert find_files([root]).notes == load_folder(root).notes


@pytest.mark.parametrize("look", [load_folder, lambda root: list_classes(root, "a"), lambda root: find_files([root])])
def test_a_folder_of_pictures_that_are_not_read_says_why_there_are_none(tmp_path: Path, look: Any) -> None:
    (tmp_path / "a" / "cat").mkdir(parents=True)
    (tmp_path / "a" / "cat" / "1.heic").write_bytes(b"anything")
    with pytest.raises(ImageError, match=r"there are no images in .*; 1 pictures are of a kind that is not read"):
        look(tmp_path)


def test_a_link_back_to_its_own_folder_is_refused(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sites")
    (root / "north" / "cat" / "again").symlink_to(root / "north")
    with pytest.raises(ImageError, match=r"north/cat/again' is a link back to a folder that it lies in"):
        load_folder(root)
    (root / "north" / "cat" / "again").unlink()
    shutil.move(root / "west", tmp_path / "elsewhere")
    (root / "west").symlink_to(tmp_path / "elsewhere")
    assert load_folder(root).domain_names == ("north", "south", "west")
