"""eicu and eicu-mortality: intensive care in many hospitals (eICU-CRD, full release or open demo).

`eicu` is FedILC's: from the medicines that a patient was given (a bag of words, 0 or 1 each) to death in hospital. The
20 hospitals with the most stays train, one client each; all others together are the held-out domain. It is made from
the published tables patient and medication. The paper does not say which part of a stay counts, so all of it does. The
last orders of a stay may then tell how it ended; `medicines(hours=48)` takes those of the first two days.

`eicu-mortality` has day-1 measurements as a table, with the region as domain: the variables of the APACHE score, joined
with patient and hospital from the published tables, or ready in one file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.models.spec import ModelSpec
from farfield.tasks.data_folder.store import data_folders, locate, require
from farfield.tasks.registry import register
from farfield.tasks.task import Domain, Task
from farfield.tasks.user_data.bag_of_words import WordPreparation
from farfield.tasks.user_data.groups import group_codes
from farfield.tasks.user_data.table import task_from_frame
from farfield.tasks.user_data.table_file import TableError, need_columns, read_frame, rows_named

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FOLDERS = ("eicu", "eicu-collaborative-research-database-2.0", "eicu_demo")
TRAINING_HOSPITALS = 20
OTHERS = "other hospitals"
SOURCE = "eICU Collaborative Research Database (Pollard et al. 2018), PhysioNet; the demo under ODbL 1.0"
#: The tables of the demo, joined already.
MORTALITY = "eicu_demo_mortality.csv.gz"
#: What `day_one` joins: all of the first table, and these columns of the others.
DAY_ONE = "apacheApsVar"
JOINED = {
    "patient": (
        "hospitalid", "gender", "age", "ethnicity", "unittype", "unitstaytype", "admissionheight", "admissionweight",
        "hospitaldischargestatus", "unitdischargestatus", "uniquepid",
    ),
    "hospital": ("numbedscategory", "teachingstatus", "region"),
    "apachePredVar": (
        "electivesurgery", "thrombolytics", "aids", "hepaticfailure", "lymphoma", "metastaticcancer", "leukemia",
        "immunosuppression", "cirrhosis", "diabetes", "ventday1", "readmit",
    ),
}  # fmt: skip
#: Who it is, where, and what is known only when the stay is over.
NOT_FEATURES = ("patientunitstayid", "hospitalid", "uniquepid", "hospitaldischargestatus", "unitdischargestatus")
MORTALITY_COLUMNS = ("region", "died_in_hospital", *NOT_FEATURES)


def _table_file(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if p.is_file()), None)


def _tables(*names: str) -> tuple[Path, ...] | None:
    """These tables, of the full release if it is here, else of the demo."""
    for place in FOLDERS:
        for folder in data_folders():
            found = [path for name in names if (path := _table_file(folder / place, name)) is not None]
            if len(found) == len(names):
                return tuple(found)
    return None


@register(
    "eicu",
    summary="death in hospital from the medicines given; the 20 largest hospitals train, the others are held out",
    domains=(),
    classes=2,
    kind="classification",
    available=lambda: _tables("patient", "medication") is not None,
)
def load() -> Task:
    return medicines()


def medicines(hours: float | None = None) -> Task:
    """FedILC's task. `hours` counts medicines started so soon after admission only; None counts the whole stay."""
    tables = _tables("patient", "medication")
    if tables is None:
        folder = require("eicu", *FOLDERS)
        raise TableError(
            f"'{folder}' has no table patient.csv(.gz) or none medication.csv(.gz), which task 'eicu' needs"
        )
    patient = _stays(tables[0])
    orders = _orders(tables[1], hours)
    orders = orders[orders["patientunitstayid"].isin(patient.index)]
    if orders.empty:
        raise TableError(f"'{tables[1].name}' has no order for a stay of '{tables[0].name}'")
    stays = np.sort(orders["patientunitstayid"].unique())
    bag, words = _bag(orders, stays)
    patient = patient.loc[stays]
    y = torch.from_numpy((patient["hospitaldischargestatus"] == "Expired").to_numpy(dtype=np.int64))
    owner, names = _domain_of(patient["hospitalid"].to_numpy())
    patients = torch.from_numpy(group_codes(patient["uniquepid"])) if "uniquepid" in patient else None
    domains = tuple(
        Domain(
            name,
            torch.from_numpy(bag[here]),
            y[torch.from_numpy(here)],
            groups=None if patients is None else patients[torch.from_numpy(here)],
        )
        for name, here in ((name, owner == name) for name in names)
    )
    return Task(
        name="eicu",
        kind="classification",
        domains=domains,
        classes=("alive", "expired"),
        model=ModelSpec(featurizer="mlp", input_shape=(len(words),), outputs=2, hidden=(1024, 1024, 512)),
        defaults={"rounds": 30, "local_epochs": 1, "batch_size": 64, "lr": 0.1, "momentum": 0.0},
        description=f"death in hospital from {len(words)} kinds of medicines; the {len(domains) - 1} largest hospitals "
        "train and the others together are held out",
        source=SOURCE,
        held_out=(OTHERS,),
        preparation=WordPreparation(tuple(words)),
        notes=_same_patients(patient["uniquepid"], owner) if "uniquepid" in patient else (),
    )


def _stays(path: Path) -> DataFrame:
    """The patient table by stay. Stays without an outcome are left out."""
    patient = read_frame(path)
    need_columns(patient, ("patientunitstayid", "hospitalid", "hospitaldischargestatus"), "task 'eicu'")
    return patient[patient["hospitaldischargestatus"].isin(["Alive", "Expired"])].set_index("patientunitstayid")


def _same_patients(patient: Series, owner: NDArray[np.object_]) -> tuple[str, ...]:
    """Patients in several domains. Several stays in one domain need no note: all of them train, or all validate."""
    by_patient = patient.groupby([patient.to_numpy(), owner]).size()
    domains_of = by_patient.groupby(level=0).size()
    shared = int((domains_of > 1).sum())
    if not shared:
        return ()
    return (
        f"{shared} of {len(domains_of)} patients have stays in two or more domains: when one of these is held out, "
        "the patient was among the sources",
    )


def _orders(path: Path, hours: float | None) -> DataFrame:
    """A row an order that was carried out, with the kind of medicine: its ingredient code, else its name."""
    import pandas as pd

    used = ["patientunitstayid", "drugstartoffset", "drugordercancelled", "drugname", "drughiclseqno"]
    # Two million rows in the full release, most columns of which nobody needs.
    try:
        orders = pd.read_csv(path, usecols=used, dtype={"drugname": str}, low_memory=False)
    except (ValueError, OSError, EOFError) as error:
        raise TableError(
            f"'{path.name}' is not the medication table of eICU: {' '.join(str(error).split())}"
        ) from error
    orders = orders[orders["drugordercancelled"] != "Yes"]
    if hours is not None:
        orders = orders[orders["drugstartoffset"] < 60 * hours]
    code = orders["drughiclseqno"].map(lambda number: f"hicl {int(number)}", na_action="ignore")
    orders = orders.assign(medicine=code.fillna(orders["drugname"].str.strip().str.lower()))
    return orders.dropna(subset=["medicine"])


def _bag(orders: DataFrame, stays: NDArray[np.int64]) -> tuple[NDArray[np.uint8], list[str]]:
    """[stays, medicines]: 255 where it was given, which a batch shows as 1. A byte a cell keeps many stays small."""
    words = sorted(orders["medicine"].unique())
    position = {word: number for number, word in enumerate(words)}
    bag = np.zeros((len(stays), len(words)), dtype=np.uint8)
    rows = np.searchsorted(stays, orders["patientunitstayid"].to_numpy())
    bag[rows, orders["medicine"].map(position).to_numpy()] = 255
    return bag, words


def _domain_of(hospital: NDArray[np.int64]) -> tuple[NDArray[np.object_], tuple[str, ...]]:
    """The name of each stay's domain (its hospital, if that is one of the largest), and the names in order."""
    numbers, sizes = np.unique(hospital, return_counts=True)
    # Of two hospitals of the same size, the one with the lower number comes first.
    largest = numbers[np.argsort(-sizes, kind="stable")][:TRAINING_HOSPITALS]
    if len(numbers) <= TRAINING_HOSPITALS:
        raise TableError(
            f"task 'eicu' needs more than {TRAINING_HOSPITALS} hospitals; these tables have {len(numbers)}"
        )
    names = {number: f"hospital {number}" for number in sorted(largest)}
    return np.array([names.get(number, OTHERS) for number in hospital], dtype=object), (*names.values(), OTHERS)


@register(
    "eicu-mortality",
    summary="death in hospital from measurements of the first day in intensive care, in four regions",
    domains=("Midwest", "Northeast", "South", "West"),
    classes=2,
    kind="classification",
    available=lambda: locate(MORTALITY) is not None or _tables(DAY_ONE, *JOINED) is not None,
)
def load_mortality() -> Task:
    frame = _mortality()
    need_columns(frame, MORTALITY_COLUMNS, "task 'eicu-mortality'")
    unknown = int(frame["region"].isna().sum())
    frame = frame[frame["region"].notna()].copy()
    frame["died_in_hospital"] = frame["died_in_hospital"].map({0: "alive", 1: "expired"})
    task = task_from_frame(
        frame,
        name="eicu-mortality",
        label="died_in_hospital",
        domain="region",
        drop=[name for name in NOT_FEATURES if name != "uniquepid"],
        group="uniquepid",
        drop_missing_labels=True,
        source=SOURCE,
        description="death in hospital from day-1 measurements, in four regions of the United States; about one stay "
        "in eleven ends so, which makes accuracy say little: look at AUROC",
    )
    left_out = (f"{unknown} stays of hospitals without a region were left out",) if unknown else ()
    return replace(task, classes_from_rows=False, notes=(*left_out, *task.notes))


def _mortality() -> DataFrame:
    """The rows of `eicu-mortality`: the ready file if it is here, else joined from the published tables."""
    if locate(MORTALITY) is None:
        tables = _tables(DAY_ONE, *JOINED)
        if tables is not None:
            return day_one(*tables)
        folder = require("eicu-mortality", MORTALITY, *FOLDERS)
        missing = [name for name in (DAY_ONE, *JOINED) if _table_file(folder, name) is None]
        raise TableError(f"'{folder}' has no table {', '.join(missing)} (.csv or .csv.gz), for task 'eicu-mortality'")
    return read_frame(require("eicu-mortality", MORTALITY))


def day_one(scores: Path, patient: Path, hospital: Path, predictors: Path) -> DataFrame:
    """A row a stay that has an APACHE score: what the score is made of, and who and where the patient was.

    -1 stands for a value that was not measured, and '> 89' for every age above that, which becomes 90.
    """
    stay = "patientunitstayid"
    frame = read_frame(scores)
    need_columns(frame, (stay,), "task 'eicu-mortality'")
    frame = frame.drop(columns="apacheapsvarid", errors="ignore")
    for path, table, key in (
        (patient, "patient", stay),
        (hospital, "hospital", "hospitalid"),
        (predictors, "apachePredVar", stay),
    ):
        more = read_frame(path)
        need_columns(more, (key, *JOINED[table]), "task 'eicu-mortality'")
        frame = frame.merge(more[[key, *JOINED[table]]].drop_duplicates(key), on=key, how="left")
    frame.index = range(1, len(frame) + 1)
    known = frame.columns.difference([stay, "hospitalid"])
    frame[known] = frame[known].where(frame[known] != -1)
    frame["age"] = _ages(frame["age"])
    frame["teachingstatus"] = frame["teachingstatus"].astype(str).isin(("True", "t"))  # the two releases write it so
    return frame.assign(died_in_hospital=frame["hospitaldischargestatus"].map({"Alive": 0, "Expired": 1}))


def _ages(column: Series) -> Series:
    import pandas as pd

    years = pd.to_numeric(column.astype(str).str.replace(" ", "").replace(">89", "90"), errors="coerce")
    strange = column.index[years.isna() & column.notna()]
    if len(strange):
        raise TableError(
            f"task 'eicu-mortality': the age is '{column[strange[0]]}' in the joined {rows_named(strange)}, where a "
            "number or '> 89' belongs"
        )
    return years
