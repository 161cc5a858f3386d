"""Domains and the questions asked of them; and how their rows are dealt out to clients."""

from farfield.models import weights
from farfield.tasks.data_folder import store
from farfield.tasks.data_sets import (
    colored_mnist,
    digits_five,
    eicu,
    heart_disease,
    image_sets,
    label_skew,
    linear_sem,
    rect4,
    rotated_cifar10,
    rotated_digits,
    rotated_mnist,
    tcga_brca,
    wilds,
)
from farfield.tasks.registry import TaskEntry, UnknownTask, describe, load, names, register
from farfield.tasks.task import Domain, Task
from farfield.tasks.user_data.arrays import task_from_arrays
from farfield.tasks.user_data.folder import load_folder
from farfield.tasks.user_data.table import load_table

__all__ = [
    "Domain",
    "Task",
    "TaskEntry",
    "UnknownTask",
    "colored_mnist",
    "describe",
    "digits_five",
    "eicu",
    "heart_disease",
    "image_sets",
    "label_skew",
    "linear_sem",
    "load",
    "load_folder",
    "load_table",
    "names",
    "rect4",
    "register",
    "rotated_cifar10",
    "rotated_digits",
    "rotated_mnist",
    "task_from_arrays",
    "tcga_brca",
    "wilds",
]

weights.search_in(store.data_folders)
