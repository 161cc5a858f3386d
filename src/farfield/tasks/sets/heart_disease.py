"""heart-disease: four hospitals, 13 attributes, and whether a coronary artery is narrowed (UCI, 1988).

Two traps of the published files are handled here. A cholesterol of 0 is no measurement: all of Switzerland and a
quarter of the VA rows have it, so it is read as missing, and so is a blood pressure of 0. Codes (the kind of chest
pain, the resting ECG, the slope, the thallium scan) are categories, not numbers.
"""

from __future__ import annotations

from dataclasses import replace

from farfield.tasks.data_folder.store import locate, require
from farfield.tasks.own.table import task_from_frame
from farfield.tasks.own.table_file import need_columns, read_frame
from farfield.tasks.registry import register
from farfield.tasks.task import Task

FILE = "heart_disease.csv"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
CODES = ("cp", "restecg", "slope", "thal")
#: Measurements that cannot be 0 in a living person.
NEVER_ZERO = ("chol", "trestbps")
COLUMNS = ("hospital", "age", "sex", "fbs", "thalach", "exang", "oldpeak", "ca", "num", *CODES, *NEVER_ZERO)


@register(
    "heart-disease",
    summary="narrowed coronary arteries from 13 attributes, at four hospitals",
    domains=HOSPITALS,
    classes=2,
    kind="classification",
    available=lambda: locate(FILE) is not None,
)
def load() -> Task:
    frame = read_frame(require("heart-disease", FILE))
    need_columns(frame, COLUMNS, "task 'heart-disease'")
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
        domains=tuple(replace(domain, y=1 - domain.y) for domain in task.domains),
    )
