"""Domains and the questions asked of them; and how their rows are dealt out to clients."""

from farfield.models import weights
from farfield.tasks import image_sets, linear_sem, rect4, rotated_digits, store, wilds
from farfield.tasks.folder import load_folder
from farfield.tasks.registry import TaskEntry, UnknownTask, describe, load, names, register
from farfield.tasks.task import Domain, Task

__all__ = [
    "Domain",
    "Task",
    "TaskEntry",
    "UnknownTask",
    "describe",
    "image_sets",
    "linear_sem",
    "load",
    "load_folder",
    "names",
    "rect4",
    "register",
    "rotated_digits",
    "wilds",
]

weights.search_in(store.data_folders)
