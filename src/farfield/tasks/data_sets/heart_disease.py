"""heart-disease: four hospitals, 13 attributes, and whether a coronary artery is narrowed (UCI, 1988).

Two traps of the published files are handled here. A cholesterol of 0 is no measurement: all of Switzerland and a
quarter of the VA rows have it, so it is read as missing, and so is a blood pressure of 0. Codes (the kind of chest
pain, the resting ECG, the slope, the thallium scan) are categories, not numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from farfield.tasks.data_folder.store import locate, require
from farfield.tasks.registry import register
from farfield.tasks.task import Task
from farfield.tasks.user_data.table import task_from_frame
from farfield.tasks.user_data.table_file import TableError, need_columns, read_frame
from farfield.tasks.user_data.text_cells import MISSING

if TYPE_CHECKING:
    from pandas import DataFrame

#: One table with a column for the hospital, or a folder of UCI's own files, which have no header.
PLACES = ("heart_disease.csv", "heart_disease", "heart-disease", "heart+disease")
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
CODES = ("cp", "restecg", "slope", "thal")
#: Measurements that cannot be 0 in a living person.
NEVER_ZERO = ("chol", "trestbps")
COLUMNS = ("hospital", "age", "sex", "fbs", "thalach", "exang", "oldpeak", "ca", "num", *CODES, *NEVER_ZERO)
PROCESSED = tuple(f"processed.{hospital}.data" for hospital in HOSPITALS)
#: The columns of a processed file, as heart-disease.names lists them.
IN_ORDER = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip


@register(
    "heart-disease",
    summary="narrowed coronary arteries from 13 attributes, at four hospitals",
    domains=HOSPITALS,
    classes=2,
    kind="classification",
    available=lambda: locate(*PLACES) is not None,
)
def load() -> Task:
    frame = read(require("heart-disease", *PLACES))
    for name in NEVER_ZERO:
        frame[name] = frame[name].where(frame[name] != 0)
    frame["num"] = (frame["num"] > 0).map({False: "healthy", True: "diseased"})
    task = task_from_frame(
        frame[list(COLUMNS)],
        name="heart-disease",
        label="num",
        domain="hospital",
        categorical=CODES,
        source="UCI Heart Disease (Janosi, Steinbrunn, Pfisterer and Detrano, 1988), CC BY 4.0",
        description="a coronary artery narrowed by more than half (num > 0), at four hospitals; vessels (ca) and "
        "thallium scan (thal) are almost absent outside Cleveland",
    )
    # The alphabet would call "diseased" class 0; scores are easier to read when the disease is class 1.
    return replace(
        task,
        classes=("healthy", "diseased"),
        classes_from_rows=False,
        domains=tuple(replace(domain, y=1 - domain.y) for domain in task.domains),
    )


def read(path: Path) -> DataFrame:
    """The rows as published, from one table or from UCI's folder."""
    if path.is_file():
        frame = read_frame(path)
        need_columns(frame, COLUMNS, "data set 'heart-disease'")
        return frame
    import pandas as pd

    hospitals = [_processed(path / file).assign(hospital=name) for file, name in zip(PROCESSED, HOSPITALS, strict=True)]
    frame = pd.concat(hospitals, ignore_index=True)
    frame.index += 1
    return frame


def _processed(path: Path) -> DataFrame:
    import pandas as pd

    try:
        frame = pd.read_csv(path, header=None, na_values=MISSING)
    except (FileNotFoundError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise TableError(f"'{path}' is not there or is not as UCI has it ({error}); get it again") from error
    numbers = all(pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes)
    if len(frame.columns) != len(IN_ORDER) or not numbers:
        raise TableError(f"'{path}' should have {len(IN_ORDER)} numbers in each line, and no header; get it again")
    return frame.set_axis(list(IN_ORDER), axis=1)
