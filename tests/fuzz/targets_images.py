"""Pictures: one file, and a folder of them."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fuzz.mutation import Seed
from tests.fuzz.target import Consume, target

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")


def picture(kind: str, side: int = 12) -> bytes:
    """A small picture in a format."""
    import numpy as np
    from PIL import Image

    rows = np.random.default_rng(3).integers(0, 255, (side, side, 3), dtype=np.uint8)
    made: Image.Image = Image.fromarray(rows)
    file = io.BytesIO()
    made.save(file, kind)
    return file.getvalue()


@target("pictures", share=0.12, short=3000)
def pictures(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """One picture through the decoder; whatever is wrong with it is a reason in words."""
    from farfield.tasks.images.pixels import read_chunk

    path = folder / "picture"

    def consume(data: bytes) -> None:
        path.write_bytes(data)
        pixels, broken = read_chunk([path], 16)
        assert pixels.shape == (1, 3, 16, 16)
        assert all(reason for _, reason in broken)

    return [Seed(picture(kind)) for kind in FORMATS], consume


@target("image folders", share=0.004, short=60)
def image_folders(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """A folder domain/class/*.png in which one file is changed, read as `bench --data` reads it."""
    from farfield.tasks import load_folder

    os.environ["FARFIELD_CACHE"] = str(folder / "cache")
    for domain in ("north", "south", "east"):
        for label in ("cat", "dog"):
            place = folder / "images" / domain / label
            place.mkdir(parents=True)
            for number in range(5):
                (place / f"{number}.png").write_bytes(picture("PNG", 8 + number))
    names = ("north/cat/0.png", "south/dog/1.jpg", "east/cat/x.gif", "north/notes.txt", "stray.png")

    def consume(data: bytes) -> None:
        path = folder / "images" / names[(data[0] if data else 0) % len(names)]
        before: Any = path.read_bytes() if path.exists() else None
        path.write_bytes(data[1:])
        try:
            load_folder(folder / "images", size=8).outline()
        finally:
            path.unlink() if before is None else path.write_bytes(before)
            shutil.rmtree(folder / "cache", ignore_errors=True)

    return [Seed(picture(kind), "bytes", bytes([number])) for number, kind in enumerate(FORMATS[:4])], consume
