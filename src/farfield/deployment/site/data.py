"""Read the data that a site file names: its schema for the server, and its rows once all sites agree on a schema.

data = open_site(read_site("site.toml"))
data.schema                                  # what leaves the site first, see farfield.deployment.schema.site_schema
domain = data.domain(agreed)                 # the rows in the agreed codes; they stay here
train, validation = data.split(agreed, seed) # as a bench on one machine would split this domain
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from farfield.deployment.schema.site_schema import (
    AgreedSchema,
    SiteSchema,
    check_agreed,
    describe,
    describe_examples,
    describe_task,
)
from farfield.deployment.site.site_file import TABLE_KEYS, SiteFile, SiteFileError
from farfield.errors import UserError
from farfield.tasks import registry
from farfield.tasks.clients.validation import split_domain
from farfield.tasks.task import Domain, TaskKind
from farfield.tasks.user_data.source_columns import SourceTable, TaskTable

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class SiteData:
    """One site's data, read and described."""

    site: SiteFile
    schema: SiteSchema
    #: What the reader decided by itself, one sentence each.
    notes: tuple[str, ...]
    _rows: Callable[[AgreedSchema], Domain]
    _frame: DataFrame | None = None
    #: The last agreed schema and its rows: one message needs them more than once.
    _last: list[tuple[AgreedSchema, Domain]] = field(default_factory=list)

    @property
    def n(self) -> int:
        return self.schema.rows

    def domain(self, agreed: AgreedSchema) -> Domain:
        """Return the rows as a task holds them: `x` for the agreed preparation, `y` in the agreed classes."""
        if agreed.form != self.schema.form:
            raise self.site.refusal(
                _data_key(self.site), f"the federation trains on {agreed.form}, and this is {self.schema.form}"
            )
        if not self._last or self._last[0][0] != agreed:
            with _about(self.site, _data_key(self.site)):
                self._last[:] = [(agreed, self._rows(agreed))]
        return self._last[0][1]

    def split(self, agreed: AgreedSchema, seed: int) -> tuple[Tensor, Tensor]:
        """Return the training and the validation rows. A site that only evaluates has no training rows."""
        domain = self.domain(agreed)
        if self.site.role == "evaluate":
            return torch.arange(0), torch.arange(len(domain))
        with _about(self.site, "validation"):
            return split_domain(domain, self.site.validation, seed, agreed.kind)

    def first_text(self, column: str) -> str | None:
        """Return the first cell of a column that is no number, for the site's operator only."""
        if self._frame is None or column not in self._frame:
            return None
        from farfield.tasks.user_data.cells import no_numbers

        cells = no_numbers(self._frame[column])
        return f"first: '{cells.iloc[0]}' in row {cells.index[0]}" if len(cells) else None


def open_site(site: SiteFile) -> SiteData:
    """Read what a site file names. Raises SiteFileError, one sentence that names the file and the key."""
    if site.task is not None:
        return _open_task(site)
    path = site.data_path
    if not path.exists():
        raise site.refusal("data", f"there is no file or folder '{path}'")
    if path.is_dir() or path.suffix.lower() == ".npz":
        for key in TABLE_KEYS:
            if key in site.model_fields_set:
                raise site.refusal(key, f"this is for tables, and '{path.name}' is none")
        if path.is_dir():
            return _open_images(site, path)
    if site.image_size is not None:
        raise site.refusal("image_size", f"this is for a folder of images, and '{path.name}' is none")
    return _open_arrays(site, path) if path.suffix.lower() == ".npz" else _open_table(site, path)


def _open_table(site: SiteFile, path: Path) -> SiteData:
    from farfield.tasks.user_data.columns import encode
    from farfield.tasks.user_data.groups import groups_of_column
    from farfield.tasks.user_data.labels import encode_labels, with_labels
    from farfield.tasks.user_data.table_file import read_frame

    group = [site.group] if site.group is not None else []
    with _about(site, "data"):
        frame = read_frame(path, texts=[*group, *site.categorical])
    if site.label is None:
        raise site.refusal("label", f"missing; name the column of '{path.name}' to predict: {_listed(frame.columns)}")
    for key, names in (
        ("label", [site.label]),
        ("drop", site.drop),
        ("categorical", site.categorical),
        ("group", group),
    ):
        _need(site, key, names, list(frame.columns))
    label, notes = site.label, list[str]()
    with _about(site, "label"):
        frame = with_labels(frame, label, site.drop_missing_labels, notes, "drop_missing_labels = true")
    with _about(site, "data"):
        schema = describe(frame, label=label, drop=(*site.drop, *group), categorical=site.categorical)
    groups = None
    if site.group is not None:
        codes, _ = groups_of_column(frame[site.group], site.group, notes)
        groups = torch.from_numpy(codes)
        if site.role == "train" and (codes == codes[0]).all():
            raise site.refusal("group", f"all {len(frame)} rows have the same '{site.group}', and two are needed")

    def rows(agreed: AgreedSchema) -> Domain:
        check_agreed(schema, agreed)
        x = torch.from_numpy(encode(frame, agreed.columns))
        y = encode_labels(frame[label], label, agreed.classes, unseen=site.role == "evaluate")
        return Domain(site.name, x, y, groups=groups)

    return SiteData(site, schema, tuple(notes), rows, frame)


def _open_arrays(site: SiteFile, path: Path) -> SiteData:
    from farfield.tasks.unpacking import PackedError, load_npz
    from farfield.tasks.user_data.arrays import array_domain

    try:
        given = load_npz(path, ("x", "y"))
    except PackedError as error:
        raise site.refusal("data", f"'{path.name}' cannot be read as arrays: {error}") from None
    for name in ("x", "y"):
        if name not in given:
            raise site.refusal("data", f"'{path.name}' holds no array '{name}'; it needs x and y")
    with _about(site, "data"):
        domain = array_domain(site.name, given["x"], given["y"])
    regression = domain.y.is_floating_point()
    if not regression and int(domain.y.min()) < 0:
        raise site.refusal("data", f"'{path.name}' has the class number {int(domain.y.min())}; they count from 0")
    classes = () if regression else tuple(str(number) for number in range(int(domain.y.max()) + 1))
    kind: TaskKind = "regression" if regression else "classification"
    schema = describe_examples(domain, kind, "arrays", classes)
    return SiteData(site, schema, (), lambda agreed: _fitting(site, domain, schema.kind, classes, agreed))


def _open_images(site: SiteFile, path: Path) -> SiteData:
    from farfield.tasks.images.layouts import list_classes
    from farfield.tasks.images.pixels import HashedImages, pixels
    from farfield.tasks.user_data.folder import LEAST_IMAGES, SIZE, make_domains

    with _about(site, "data"):
        images = list_classes(path, site.name)
        if len(images) < LEAST_IMAGES:
            raise UserError(f"'{path}' has {len(images)} images, and a site needs at least {LEAST_IMAGES}")
        x = pixels(images, HashedImages.of(images).hashed, site.image_size or SIZE)
        (domain,) = make_domains(images, x)
    schema = describe_examples(domain, "classification", "images", images.classes)
    classes = images.classes
    return SiteData(site, schema, images.notes, lambda agreed: _fitting(site, domain, schema.kind, classes, agreed))


def _open_task(site: SiteFile) -> SiteData:
    assert site.task is not None
    with _about(site, "task"):
        task = registry.load(site.task)
    if site.domain not in task.domain_names:
        near = _nearest(site.domain, task.domain_names)
        raise site.refusal("domain", f"the task '{task.name}' has no domain '{site.domain}'; {near}")
    domain = replace(task.domain(site.domain), name=site.name)
    schema = describe_task(task, domain)

    def rows(agreed: AgreedSchema) -> Domain:
        if agreed.task != task.name:
            raise UserError(f"the federation trains on the task '{agreed.task}'")
        if schema.words != agreed.words or bool(schema.columns) != bool(agreed.columns):
            raise UserError(f"the task '{task.name}' has other columns here than at the other sites")
        own = domain
        if isinstance(task.preparation, TaskTable):
            check_agreed(schema, agreed)
            of_run = SourceTable(agreed.columns, decided_by=task.preparation.columns)
            own = replace(domain, x=of_run.examples(domain), cells=None)
        elif schema.columns != agreed.columns:
            raise UserError(f"the task '{task.name}' has other columns here than at the other sites")
        return _fitting(site, own, task.kind, task.classes, agreed)

    return SiteData(site, schema, task.notes, rows)


def _fitting(site: SiteFile, domain: Domain, kind: TaskKind, classes: Sequence[str], agreed: AgreedSchema) -> Domain:
    """Return a domain with its classes numbered as agreed. Raises UserError if it does not fit the agreed schema."""
    if tuple(domain.x.shape[1:]) != agreed.shape or str(domain.x.dtype) != f"torch.{agreed.dtype}":
        raise UserError(
            f"examples are {str(domain.x.dtype).removeprefix('torch.')} of shape {tuple(domain.x.shape[1:])}, and the "
            f"federation agreed on {agreed.dtype} of shape {agreed.shape}"
        )
    if kind != agreed.kind:
        raise UserError(f"the labels make a {kind}, and the federation agreed on a {agreed.kind}")
    if agreed.form == "arrays" and any(column.kind != "number" for column in agreed.columns):
        raise UserError("the federation takes numbers as categories, which would disclose which of them occur")
    unknown = [name for name in classes if name not in agreed.classes]
    if unknown and site.role != "evaluate":
        raise UserError(f"there is a class '{unknown[0]}'; the federation agreed on {_listed(agreed.classes)}")
    if kind == "regression" or tuple(classes) == agreed.classes[: len(classes)]:
        return domain
    # Classes that no training site has come after those of the model: they are unseen.
    numbers = {name: number for number, name in enumerate([*agreed.classes, *unknown])}
    codes = torch.tensor([numbers[name] for name in classes])
    return replace(domain, y=codes[domain.y])


@contextmanager
def _about(site: SiteFile, key: str) -> Iterator[None]:
    """Turn an error of a reader into one that names the site file and the key."""
    try:
        yield
    except SiteFileError:
        raise
    except ValueError as error:
        raise site.refusal(key, str(error)) from error


def _data_key(site: SiteFile) -> str:
    return "data" if site.task is None else "task"


def _need(site: SiteFile, key: str, names: Sequence[str], columns: Sequence[str]) -> None:
    for name in names:
        if name not in columns:
            near = _nearest(name, columns)
            raise site.refusal(key, f"'{site.data_path.name}' has no column '{name}'; {near}")


def _nearest(name: str | None, known: Sequence[str]) -> str:
    folded = {each.lower(): each for each in known}
    near = difflib.get_close_matches((name or "").lower(), folded, n=1)
    hint = f"did you mean '{folded[near[0]]}'? " if near else ""
    return f"{hint}there are {_listed(known)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{', '.join(names[:20])}{more}"
