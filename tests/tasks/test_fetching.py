"""Downloads against a server on loopback: resumed, checked, and never half under their name."""

from __future__ import annotations

import errno
import hashlib
import io
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farfield.tasks.data_folder import downloading
from farfield.tasks.data_folder.catalogue import data_set
from farfield.tasks.data_folder.checksums import WrongChecksum
from farfield.tasks.data_folder.data_set import DataSet, RemoteFile
from farfield.tasks.data_folder.downloading import DownloadFailed, NoSpace, download
from farfield.tasks.data_folder.fetching import CannotFetch, fetch
from farfield.tasks.data_folder.importing import AlreadyHere
from farfield.tasks.data_folder.store import VARIABLE
from farfield.tasks.data_folder.verification import check
from farfield.tasks.data_sets import heart_disease
from farfield.tasks.data_sets.array_sets import DamagedData, read
from tests.tasks.loopback import Site, serving
from tests.tasks.small_sets import arrays, records, save

CONTENT = bytes(np.random.default_rng(0).integers(0, 256, 1_000_000, dtype=np.uint8))
RECORD = "cifar-10-batches-bin.sha256"
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(downloading, "PAUSE", 0.0)
    with serving() as running:
        running.files["/a.bin"] = CONTENT
        yield running


def left(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_file_arrives_whole_with_its_progress(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin", lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["a.bin"]
    assert seen[-1] == ("a.bin", 1_000_000, 1_000_000)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin")
    assert len(site.asked) == 1, "a file that is here is not asked for again"


def test_a_connection_that_breaks_is_gone_on_with_from_the_byte_where_it_broke(site: Site, tmp_path: Path) -> None:
    site.cut = [300_000, 400_000]
    download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert [wanted for _, wanted in site.asked] == [None, "bytes=300000-", "bytes=700000-"]


def test_an_interrupted_download_is_gone_on_with_by_the_next_call(site: Site, tmp_path: Path) -> None:
    site.cut = [100_000, 0, 0, 0]
    with pytest.raises(DownloadFailed, match=r"ended after 100,000 of 1,000,000 bytes; 100,000 bytes are kept"):
        download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin")
    assert left(tmp_path) == ["a.bin.part", "a.bin.part.etag"]
    site.asked.clear()
    download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin")
    assert site.asked == [("/a.bin", "bytes=100000-")]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert left(tmp_path) == ["a.bin"]


def test_a_file_that_changed_meanwhile_is_begun_anew(site: Site, tmp_path: Path) -> None:
    site.cut = [100_000, 0, 0, 0]
    with pytest.raises(DownloadFailed):
        download(RemoteFile(f"{site.url}/a.bin"), tmp_path / "a.bin")
    site.files["/a.bin"] = other = CONTENT[::-1]
    download(RemoteFile(f"{site.url}/a.bin"), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == other


def test_a_server_without_ranges_sends_all_again(site: Site, tmp_path: Path) -> None:
    site.cut, site.ranges = [300_000], False
    download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_part_that_was_whole_already_only_needs_its_name(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_part_that_is_longer_than_the_file_is_begun_anew(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(CONTENT + b"more")
    download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_wrong_checksum_is_refused_and_nothing_is_left(site: Site, tmp_path: Path, kind: str) -> None:
    expected = hashlib.new(kind, b"something else").hexdigest()
    with pytest.raises(WrongChecksum, match=f"has the {kind} .*, not the published {expected}.*removed"):
        download(RemoteFile(f"{site.url}/a.bin", f"{kind}:{expected}"), tmp_path / "a.bin")
    assert left(tmp_path) == []


def test_what_the_server_does_not_have_is_said_at_once(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="answered 404"):
        download(RemoteFile(f"{site.url}/b.bin"), tmp_path / "b.bin")
    assert len(site.asked) == 1
    with pytest.raises(DownloadFailed, match="neither http nor https"):
        download(RemoteFile("file:///etc/hostname"), tmp_path / "b.bin")


def test_a_server_that_is_busy_is_asked_again_and_one_that_is_gone_is_named(site: Site, tmp_path: Path) -> None:
    site.refuse = [503, 503]
    download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin")
    assert len(site.asked) == 3
    with pytest.raises(DownloadFailed, match=r"127\.0\.0\.1:1/a\.bin: the connection failed"):
        download(RemoteFile("http://127.0.0.1:1/a.bin"), tmp_path / "c.bin")


def test_a_disk_without_room_is_refused_before_the_first_byte(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=999_999))
    with pytest.raises(NoSpace, match=r"needs 1,000,000 more bytes and .* has 999,999 free"):
        download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin")
    assert not (tmp_path / "a.bin").exists()
    assert not (tmp_path / "a.bin.part").exists()


class FullDisk(io.FileIO):
    """Takes 500,000 bytes, then has no room."""

    def write(self, block: Any) -> int:
        if self.tell() + len(block) > 500_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(block)


def test_a_disk_that_fills_up_leaves_no_half_file(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, mode: str) -> Any:
        return FullDisk(path, mode) if str(path).endswith(".part") else open(path, mode)

    monkeypatch.setattr(downloading, "open", full, raising=False)
    with pytest.raises(NoSpace, match=r"was full after .* bytes of a\.bin"):
        download(RemoteFile(f"{site.url}/a.bin", SHA256), tmp_path / "a.bin")
    assert left(tmp_path) == []


def mnist_at(site: Site, tmp_path: Path) -> DataSet:
    content = save(tmp_path / "source.npz", arrays(30, 20)).read_bytes()
    site.files["/mnist.npz"] = content
    file = RemoteFile(f"{site.url}/mnist.npz", "sha256:" + hashlib.sha256(content).hexdigest())
    return replace(data_set("mnist"), fetch=(file,))


def test_a_set_is_put_in_its_place_with_a_record_and_can_be_read(site: Site, data: Path, tmp_path: Path) -> None:
    done = fetch(mnist_at(site, tmp_path))
    assert (done.path, done.files) == (data / "mnist.npz", 1)
    assert left(data) == ["mnist.npz", "mnist.npz.sha256"]
    assert (data / "mnist.npz.sha256").read_text().startswith(f"# {site.url}/mnist.npz\n")
    assert read("t", "mnist").counts == {"train": 30, "test": 20}
    found = check(data_set("mnist"))
    assert (found.state, found.checksums) == ("part", "1 file as recorded")
    assert found.counts == "train 30 of 60,000, test 20 of 10,000"
    with pytest.raises(AlreadyHere, match="mnist is here already"):
        fetch(mnist_at(site, tmp_path))


def test_a_disk_that_knows_no_links_gets_a_copy(
    site: Site, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")  # as on exFAT

    monkeypatch.setattr("os.link", refuse)
    assert fetch(mnist_at(site, tmp_path)).path.read_bytes() == site.files["/mnist.npz"]
    assert left(data) == ["mnist.npz", "mnist.npz.sha256"]


def test_an_interrupted_set_is_not_here_and_is_gone_on_with(site: Site, data: Path, tmp_path: Path) -> None:
    known = mnist_at(site, tmp_path)
    site.cut = [1000, 0, 0, 0]
    with pytest.raises(DownloadFailed):
        fetch(known)
    assert known.here() is None
    site.asked.clear()
    fetch(known)
    assert site.asked == [("/mnist.npz", "bytes=1000-")]
    assert left(data) == ["mnist.npz", "mnist.npz.sha256"]


def test_a_set_with_the_right_checksum_and_the_wrong_arrays_is_refused(site: Site, data: Path, tmp_path: Path) -> None:
    known = mnist_at(site, tmp_path)
    content = save(tmp_path / "wrong.npz", arrays(30, 20, (28, 27))).read_bytes()
    site.files["/mnist.npz"] = content
    file = RemoteFile(f"{site.url}/mnist.npz", "sha256:" + hashlib.sha256(content).hexdigest())
    with pytest.raises(DamagedData, match=r"x_train is uint8 of shape \(30, 28, 27\)"):
        fetch(replace(known, fetch=(file,)))
    assert known.here() is None


def tar_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def cifar_files() -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    content = arrays(10, 3, (32, 32, 3))
    files = {"cifar/test_batch.bin": records(content["x_test"], content["y_test"])}
    for number in range(5):
        part = slice(2 * number, 2 * number + 2)
        files[f"cifar/data_batch_{number + 1}.bin"] = records(content["x_train"][part], content["y_train"][part])
    return files, content


def test_an_archive_is_unpacked_into_its_folder_and_nowhere_else(site: Site, data: Path) -> None:
    files, content = cifar_files()
    site.files["/c.tar.gz"] = tar_of({**files, "../../outside.bin": b"x", "cifar/readme.html": b"y"})
    known = replace(data_set("cifar10"), fetch=(RemoteFile(f"{site.url}/c.tar.gz", None, "tar", "*.bin"),))
    done = fetch(known)
    assert done.path == data / "cifar-10-batches-bin"
    assert not (data.parent / "outside.bin").exists()
    assert not (data / "outside.bin").exists()
    np.testing.assert_array_equal(read("t", "cifar10").x_train, content["x_train"])
    assert (done.path / "outside.bin").exists(), "by its last name, inside the folder"
    assert not (done.path / "readme.html").exists()


def zip_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def test_a_zip_is_unpacked_by_pattern(site: Site, data: Path) -> None:
    site.files["/c.zip"] = zip_of({**cifar_files()[0], "cifar/notes.txt": b"n"})
    done = fetch(replace(data_set("cifar10"), fetch=(RemoteFile(f"{site.url}/c.zip", None, "zip", "*.bin"),)))
    assert done.files == 6


def test_a_table_in_an_archive_of_more_is_read_where_it_lies(site: Site, data: Path) -> None:
    known = data_set("heart-disease")
    assert isinstance(known.fetch, tuple)
    names = (*heart_disease.PROCESSED, "cleveland.data", "reprocessed.hungarian.data", "costs/Index")
    site.files["/heart.zip"] = zip_of({name: b",".join([b"1"] * 14) + b"\n" for name in names})
    done = fetch(replace(known, fetch=(replace(known.fetch[0], url=f"{site.url}/heart.zip", checksum=None),)))
    assert done.path == known.here() == data / "heart_disease"
    assert sorted(path.name for path in done.path.iterdir()) == sorted(heart_disease.PROCESSED)
    assert check(known).found == {"rows": 4}


def test_half_an_archive_is_removed(site: Site, data: Path) -> None:
    site.files["/c.tar.gz"] = tar_of(cifar_files()[0])[:5000]
    known = replace(data_set("cifar10"), fetch=(RemoteFile(f"{site.url}/c.tar.gz", None, "tar"),))
    with pytest.raises(DownloadFailed, match="is no whole tar archive"):
        fetch(known)
    assert known.here() is None
    assert not any(path.suffix == ".gz" for path in data.rglob("*"))


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder on a real disk of 3 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") is not None and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    monkeypatch.setenv(VARIABLE, str(disk))
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_an_archive_that_fills_a_real_disk_is_kept_and_unpacked_once_there_is_room(
    site: Site, small_disk: Path
) -> None:
    draw = np.random.default_rng(0)
    files, _ = cifar_files()
    site.files["/c.tar.gz"] = tar_of({**files, "cifar/more.bin": draw.bytes(1_200_000)})
    known = replace(data_set("cifar10"), fetch=(RemoteFile(f"{site.url}/c.tar.gz", None, "tar", "*.bin"),))
    (small_disk / "films").write_bytes(bytes(1_000_000))
    with pytest.raises(
        NoSpace, match=r"the disk of '.*' was full before cifar10 was ready; what was downloaded whole is"
    ):
        fetch(known)
    assert left(small_disk) == [".fetch/cifar10/c.tar.gz", "films"]
    assert shutil.disk_usage(small_disk).free > 500_000, "what was unpacked is removed"
    (small_disk / "films").unlink()
    done = fetch(known)
    assert done.files == 7
    assert len(site.asked) == 1, "the archive was not asked for again"
    assert left(small_disk) == sorted([*(f"cifar-10-batches-bin/{Path(n).name}" for n in (*files, "more.bin")), RECORD])


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_disk_that_fills_up_while_an_archive_is_unpacked_leaves_the_archive_alone(
    site: Site, data: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    site.files["/c"] = tar_of(cifar_files()[0]) if kind == "tar" else zip_of(cifar_files()[0])
    known = replace(data_set("cifar10"), fetch=(RemoteFile(f"{site.url}/c", None, kind, "*.bin"),))
    copied: list[str] = []

    def full(source: Any, target: Any) -> None:
        if len(copied) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        copied.append(target.name)
        target.write(source.read())

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(NoSpace, match=r"make room and give the same command again, or set FARFIELD_DATA"):
            fetch(known)
    assert left(data) == [".fetch/cifar10/c"]
    assert not (data / ".fetch/cifar10/ready").exists()
    assert fetch(known).files == 6
    assert len(site.asked) == 1


def test_a_set_that_is_got_by_hand_says_how(data: Path) -> None:
    with pytest.raises(CannotFetch, match=r"vlcs cannot be downloaded for you .*DomainBed"):
        fetch(data_set("vlcs"))
