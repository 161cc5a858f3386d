"""Tasks of image files that have a name: their files are listed first, and decoded at the size that is asked for.

LISTINGS["pacs"].task(size=128)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from farfield.tasks.data_folder.store import locate
from farfield.tasks.images.image_set import ImageSet
from farfield.tasks.registry import register
from farfield.tasks.task import Task
from farfield.tasks.user_data.folder import SIZE, image_task


@dataclass(frozen=True)
class Listing:
    """A task before any of its images is decoded."""

    name: str
    find: Callable[[], ImageSet]
    description: str
    source: str
    held_out: tuple[str, ...] = ()

    def task(self, size: int = SIZE) -> Task:
        made = image_task(
            self.find(),
            name=self.name,
            size=size,
            defaults={"augment": "standard"},
            description=self.description,
            source=self.source,
        )
        return replace(made, held_out=self.held_out)


LISTINGS: dict[str, Listing] = {}


def offer(listing: Listing, *, folders: tuple[str, ...], summary: str, domains: tuple[str, ...], classes: int) -> None:
    """Offer it under its name, where one of `folders` is in a data folder."""

    def load() -> Task:
        return listing.task()

    load.__qualname__ = f"load.{listing.name}"
    register(
        listing.name,
        summary=summary,
        domains=domains,
        classes=classes,
        kind="classification",
        available=lambda: locate(*folders) is not None,
        exact=False,
    )(load)
    LISTINGS[listing.name] = listing
