"""Domains and the questions asked of them; and how their rows are dealt out to clients."""

from farfield.tasks import eicu, heart_disease, linear_sem, rect4, rotated_digits, tcga_brca
from farfield.tasks.arrays import task_from_arrays
from farfield.tasks.registry import TaskEntry, UnknownTask, describe, load, names, register
from farfield.tasks.table import load_table
from farfield.tasks.task import Domain, Task

__all__ = [
    "Domain",
    "Task",
    "TaskEntry",
    "UnknownTask",
    "describe",
    "eicu",
    "heart_disease",
    "linear_sem",
    "load",
    "load_table",
    "names",
    "rect4",
    "register",
    "rotated_digits",
    "task_from_arrays",
    "tcga_brca",
]
