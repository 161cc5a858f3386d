"""Archives that `farfield data fetch` unpacks, and data sets that `farfield data import` and tasks read."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.mutation import Seed
from tests.fuzz.target import Consume, target

FILES = {"data/a.csv": b"x,y\n1,2\n" * 20, "data/b.csv": b"x,y\n3,4\n", "readme.txt": b"words"}


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarred(mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=f"w:{mode}") as archive:
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("data/link.csv")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return file.getvalue()


@target("archives", share=0.04, short=1000)
def archives(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """Nothing but plain files inside the folder comes out of an archive."""
    from farfield.tasks.data_folder.data_set import RemoteFile
    from farfield.tasks.data_folder.fetching import _unpack

    to = folder / "to"
    remotes = {
        kind: RemoteFile(url=f"https://example.org/a.{kind}", unpack=kind, members="*") for kind in ("zip", "tar")
    }

    def consume(data: bytes) -> None:
        path = folder / "archive"
        path.write_bytes(data[1:])
        to.mkdir()
        try:
            _unpack(remotes["zip" if data[:1] == b"z" else "tar"], path, to)
            assert all(entry.is_file() and not entry.is_symlink() for entry in to.iterdir())
        finally:
            shutil.rmtree(to)

    return [
        Seed(zipped(), "bytes", b"z"),
        *(Seed(tarred(mode), "bytes", b"t") for mode in ("", "gz", "bz2", "xz")),
    ], consume


@target("packed tables", share=0.004, short=80)
def packed_tables(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """A text table that gzip has packed."""
    from farfield.tasks import load_table
    from tests.fuzz.targets_tables import rows_of_a_table

    def consume(data: bytes) -> None:
        (folder / "rows.csv.gz").write_bytes(data)
        load_table(folder / "rows.csv.gz", label="died", domain="hospital")

    return [Seed(gzip.compress(rows_of_a_table().encode(), mtime=0))], consume
