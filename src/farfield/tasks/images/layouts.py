"""Which image files lie where, in the folder layouts that public data sets come in.

The plain layout is `domain/class/*.png`. Understood besides it: a folder around the domains (`kfold/`, `domain_net/`),
an `images/` level between domain and class (Office-31), and split folders between them (`full`, `train`, `crossval`,
`test` as in VLCS; `full` holds the others, so they are passed over where it exists).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from farfield.tasks.images.image_set import SUFFIXES, ImageError, ImageSet, build

#: Pictures that Pillow alone does not read, or that are no pixels: worth a word, or a phone's photos vanish.
UNREAD = frozenset({".heic", ".heif", ".avif", ".svg", ".dng", ".cr2", ".nef", ".arw", ".psd", ".dcm", ".nii", ".svs"})
SPLITS = ("train", "crossval", "val", "test")
LEVELS = ("images", "image", "imgs")
#: Folders that may lie around the domains, one in the other, and those that may lie beside one of them.
_WRAPPERS, _BESIDE = 4, 20
EXPECTED = "domain/class/*.png (or jpg, bmp, webp, …), as in photo/dog/1.jpg, sketch/dog/1.jpg"


def list_folder(
    root: Path,
    *,
    domains: Mapping[str, Iterable[str]] | None = None,
    classes: Mapping[str, Iterable[str]] | None = None,
    only_classes: Iterable[str] | None = None,
) -> ImageSet:
    """The images of a folder. `domains` and `classes` map the names that are wanted to other spellings of them.

    Folders of other names are then passed over; without them every folder counts.
    """
    if not root.is_dir():
        raise ImageError(f"'{root}' is no folder; give one that holds {EXPECTED}")
    known_domains, known_classes = spellings(domains), spellings(classes)
    top = _unwrapped(root) if domains is None else find_domains(root, domains)[0]
    wanted = None if only_classes is None else set(only_classes)
    found: list[tuple[str, str, str]] = []
    notes: list[str] = []
    unread: list[Path] = []
    for folder in _folders(top):
        domain = folder.name if known_domains is None else known_domains.get(plain(folder.name))
        if domain is None:
            continue
        before = len(found)
        for class_folder in _class_folders(folder):
            label = class_folder.name
            if known_classes is not None:
                label = known_classes.get(plain(label), "")
            if not label or (wanted is not None and label not in wanted):
                continue
            paths = images_in(class_folder, unread)
            found += [(domain, label, path.relative_to(root).as_posix()) for path in paths]
            if not paths:
                notes.append(f"the folder '{class_folder.relative_to(root)}' holds no image and was passed over")
        stray = len(_here(folder, unread))
        if stray and len(found) > before:
            notes.append(f"{stray} images lie directly in '{folder.relative_to(root)}', in no class, and were left out")
        if len(found) == before and known_domains is None:
            _refuse_shallow(root, folder)
            notes.append(f"the folder '{folder.relative_to(root)}' holds no class with images and was passed over")
    stray = len(_here(top, unread))
    passed_over = unread_notes(root, unread)
    if not found:
        known = "" if domains is None else f", with the domains {', '.join(domains)}"
        raise ImageError(
            "; ".join([f"there are no images in '{root}' in the expected layout: {EXPECTED}{known}", *passed_over])
        )
    if stray:
        notes.append(f"{stray} images lie directly in '{top}', in no domain, and were left out")
    notes += passed_over
    order = tuple(domains) if domains is not None else None
    return build(root, found, notes=notes, domains=order)


def list_classes(root: Path, domain: str) -> ImageSet:
    """The images of one domain's folder: `class/*.png`, with the levels between that `list_folder` understands."""
    if not root.is_dir():
        raise ImageError(f"'{root}' is no folder; give one that holds class/*.png")
    unread: list[Path] = []
    listed = [(folder, images_in(folder, unread)) for folder in _class_folders(root)]
    found = [(domain, folder.name, path.relative_to(root).as_posix()) for folder, paths in listed for path in paths]
    stray = len(_here(root, unread))
    notes = unread_notes(root, unread)
    if not found:
        expected = "class/*.png (or jpg, bmp, webp, …)"
        raise ImageError("; ".join([f"there are no images in '{root}' in the expected layout: {expected}", *notes]))
    if stray:
        notes.insert(0, f"{stray} images lie directly in '{root}', in no class, and were left out")
    return build(root, found, notes=notes)


def _refuse_shallow(root: Path, folder: Path) -> None:
    """A folder of images without class folders: the commonest other layout, worth its own words."""
    images = _here(folder)
    if images:
        raise ImageError(
            f"'{folder}' holds images directly ('{images[0].name}', …) where class folders are expected: the layout is "
            f"{EXPECTED}"
        )


def _unwrapped(root: Path) -> Path:
    """The folder that holds the domains: further down where a folder holds just one other and no images."""
    while True:
        # A folder of lists or texts (`splits/`) beside the one with the images is no domain.
        folders = [folder for folder in _folders(root) if _folders(folder) or _here(folder)]
        if len(folders) != 1 or _here(root) or not any(_folders(inner) for inner in _folders(folders[0])):
            return root
        root = folders[0]


def find_domains(root: Path, domains: Mapping[str, Iterable[str]]) -> tuple[Path, tuple[str, ...]]:
    """The folder that holds folders of these domains, and which of them, by their names alone: no image is looked for.

    It is further down where none is here and just one folder goes deeper (`splits/` with its lists does not).
    """
    known = spellings(domains)
    assert known is not None
    top = root
    for _ in range(_WRAPPERS + 1):
        folders = _folders(top)
        here = {known[name] for name in (plain(folder.name) for folder in folders) if name in known}
        if here:
            return top, tuple(name for name in domains if name in here)
        # More than a few are no wrapping: someone's home, say, whose folders need not all be opened.
        deeper = [folder for folder in folders if _folders(folder)] if len(folders) <= _BESIDE else []
        if len(deeper) != 1:
            break
        top = deeper[0]
    return root, ()


def _class_folders(domain: Path) -> list[Path]:
    folders = _folders(domain)
    names = {folder.name.lower(): folder for folder in folders}
    if len(folders) == 1 and set(names) <= set(LEVELS):
        return _class_folders(folders[0])
    if "full" in names and set(names) <= {"full", *SPLITS}:
        return _folders(names["full"])
    if names and set(names) <= set(SPLITS):
        return [inner for folder in folders for inner in _folders(folder)]
    return folders


def _folders(path: Path) -> list[Path]:
    names = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith((".", "__")):
                names.append(entry.name)
                if entry.is_symlink() and path.resolve().is_relative_to(os.path.realpath(entry.path)):
                    raise ImageError(f"'{entry.path}' is a link back to a folder that it lies in; remove the link")
    return [path / name for name in sorted(names)]


def _here(path: Path, unread: list[Path] | None = None) -> list[Path]:
    """The images in a folder itself; pictures that cannot be read are added to `unread`."""
    names = []
    with os.scandir(path) as entries:
        for entry in entries:
            if is_image(entry.name) and entry.is_file():
                names.append(entry.name)
            elif unread is not None and not entry.is_dir() and (_suffix(entry.name) in UNREAD or _leads_nowhere(entry)):
                unread.append(path / entry.name)
    return [path / name for name in sorted(names)]


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    """A link to an image, a class or a whole domain that is not there: a disk that is not mounted, say."""
    return entry.is_symlink() and not entry.name.startswith(".") and not os.path.exists(entry.path)


def images_in(folder: Path, unread: list[Path] | None = None) -> list[Path]:
    """All images in a folder, at any depth; pictures that cannot be read are added to `unread`."""
    return [*_here(folder, unread), *(path for inner in _folders(folder) for path in images_in(inner, unread))]


def unread_notes(root: Path, unread: list[Path]) -> list[str]:
    """What is to be said of pictures that were passed over."""
    lost = sorted(path for path in unread if path.is_symlink() and not path.exists())
    strange = sorted(set(unread) - set(lost))
    notes = []
    if strange:
        notes.append(
            f"{len(strange)} pictures are of a kind that is not read and were left out ({_first(root, strange)}); save "
            "them as png or jpg"
        )
    if lost:
        notes.append(f"{len(lost)} links lead nowhere and were left out ({_first(root, lost)})")
    return notes


def _first(root: Path, paths: list[Path]) -> str:
    return f"'{paths[0].relative_to(root)}'" + (", …" if len(paths) > 1 else "")


def is_image(name: str) -> bool:
    return _suffix(name) in SUFFIXES


def _suffix(name: str) -> str:
    """Of a file that is not hidden."""
    return "" if name.startswith(".") else os.path.splitext(name)[1].lower()


def spellings(names: Mapping[str, Iterable[str]] | None) -> dict[str, str] | None:
    """From every plain spelling to the name that is wanted; None if any name is."""
    if names is None:
        return None
    return {plain(other): name for name, others in names.items() for other in (name, *others)}


def plain(name: str) -> str:
    """A name without what spellings differ in: case, spaces, dashes, underscores."""
    return "".join(c for c in name.lower() if c.isalnum())
