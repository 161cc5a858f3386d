"""What is known of a data set besides its data: where it lies, its terms, how to get it, how large it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farfield.tasks.data_folder.recognition import (
    Counts,
    Looks,
    array_check,
    array_counts,
    either,
    image_check,
    image_counts,
    image_folder,
    named,
)
from farfield.tasks.data_folder.store import locate
from farfield.tasks.data_sets.array_sets import SETS
from farfield.tasks.data_sets.image_sets import PublicSet

#: Endings of places that are files; all other places are folders.
FILES = (".npz", ".csv", ".gz")


@dataclass(frozen=True)
class RemoteFile:
    """One file on a web server. `checksum` is 'sha256:…' or 'md5:…', as its publisher gives it."""

    url: str
    checksum: str | None = None
    #: 'tar' or 'zip': its members go to the data set's folder. None: the file itself does.
    unpack: str | None = None
    #: Which members; all by default.
    members: str = "*"

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class HubRepository:
    """A data set on the Hugging Face hub: parquet files with images, which become a folder or an .npz."""

    repository: str
    #: 'folder' for domain/class/number.jpg, 'npz' for arrays of training and test images.
    becomes: str
    files: str = "*.parquet"
    #: Names that the column with the class goes by, from one revision to the next; the first that is there counts.
    labels: tuple[str, ...] = ("label", "category")


@dataclass(frozen=True)
class DataSet:
    name: str
    about: str
    #: Names in the data folder; the first is where it is put.
    places: tuple[str, ...]
    terms: str
    get: str
    looks: Looks
    published: Mapping[str, int] = field(default_factory=dict)
    count: Counts | None = None
    check: Callable[[Path], None] | None = None
    #: None where nobody may pass the set on, or where it is asked for by hand; `get` then says how.
    fetch: tuple[RemoteFile, ...] | HubRepository | None = None

    def here(self) -> Path | None:
        return locate(*self.places)

    def place(self, *, file: bool) -> str | None:
        """Where it is put as a file, or as a folder; None where it is never one."""
        return next((place for place in self.places if (Path(place).suffix in FILES) == file), None)


def array_data(
    name: str,
    about: str,
    *,
    terms: str,
    get: str,
    folder: Looks | None = None,
    fetch: tuple[RemoteFile, ...] | HubRepository | None = None,
) -> DataSet:
    """A set of arrays; `folder` tells a folder of the files as published."""
    key = name.replace("-", "_")
    places = SETS[key].places
    return DataSet(
        name=name,
        about=about,
        places=places,
        terms=terms,
        get=get,
        looks=named(places[0]) if folder is None else either(named(places[0]), folder),
        published=dict(zip(("train", "test"), SETS[key].sizes, strict=True)),
        count=array_counts(key),
        check=array_check(key),
        fetch=fetch,
    )


def image_data(public: PublicSet, *, terms: str, get: str, fetch: HubRepository | None = None) -> DataSet:
    """Image folders, a domain each, as the task of this name reads them."""
    return DataSet(
        name=public.name,
        about=public.summary,
        places=public.folders,
        terms=terms,
        get=get,
        looks=image_folder(public),
        published=public.counts,
        count=image_counts(public),
        check=image_check(public),
        fetch=fetch,
    )
