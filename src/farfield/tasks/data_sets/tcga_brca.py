"""tcga-brca: breast cancer in six regions of the Cancer Genome Atlas, and whether the patient's death was recorded.

The table is the one of federated survival benchmarks: 39 clinical features, event E, time T. The label here is the
event alone. It does not account for how long a patient was followed (T is left out, since it is known only
afterwards): a region that followed its patients for a shorter time has fewer deaths on record.
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

if TYPE_CHECKING:
    from pandas import DataFrame

#: One table with region and site, or a folder with FLamby's two files.
PLACES = ("tcga_brca.csv", "tcga_brca", "fed_tcga_brca")
PATIENTS, CENTERS = "brca.csv", "centers.csv"
REGIONS = ("Canada", "Europe", "Midwest", "Northeast", "South", "West")
#: Who the patient is, which site sent the sample (it gives the region away), and the time of follow-up.
NOT_FEATURES = ("pid", "tss_code", "T")
#: What must be there; every other column is a feature.
COLUMNS = ("region", "E", *NOT_FEATURES)


@register(
    "tcga-brca",
    summary="deaths on record after breast cancer, in six regions; follow-up time is not accounted for",
    domains=REGIONS,
    classes=2,
    kind="classification",
    available=lambda: locate(*PLACES) is not None,
)
def load() -> Task:
    frame = read(require("tcga-brca", *PLACES))
    elsewhere = int((~frame["region"].isin(REGIONS)).sum())
    frame = frame[frame["region"].isin(REGIONS)].copy()
    frame["E"] = frame["E"].map({0: "censored", 1: "died"})
    task = task_from_frame(
        frame,
        name="tcga-brca",
        label="E",
        domain="region",
        drop=NOT_FEATURES,
        source="The Cancer Genome Atlas, BRCA, clinical data; open, no re-identification",
        description="a death on record after breast cancer, in six regions; how long each patient was followed is not "
        "accounted for, so 'censored' is not 'survived'",
    )
    left_out = (f"{elsewhere} patients of sites outside the six regions were left out",) if elsewhere else ()
    return replace(task, classes_from_rows=False, notes=(*left_out, *task.notes))


def read(path: Path) -> DataFrame:
    """The patients with their regions, from one table or from FLamby's folder."""
    if path.is_file():
        frame = read_frame(path)
        need_columns(frame, COLUMNS, "data set 'tcga-brca'")
        return frame
    frame = read_frame(path / PATIENTS)
    need_columns(frame, ("pid", "E", "T"), f"data set 'tcga-brca' ('{PATIENTS}')")
    centers = read_frame(path / CENTERS, texts=("TSS Code",))
    need_columns(centers, ("TSS Code", "Region"), f"data set 'tcga-brca' ('{CENTERS}')")
    # TCGA-XX-1234 is patient 1234 of the tissue source site XX.
    site = frame["pid"].astype(str).str.split("-").str[1]
    region = site.map(dict(zip(centers["TSS Code"], centers["Region"], strict=True)))
    if region.isna().any():
        pid = frame["pid"][region.isna()].iloc[0]
        raise TableError(f"'{path / CENTERS}' has no region for the site of patient '{pid}'; get both files again")
    frame.insert(1, "region", region)
    frame.insert(2, "tss_code", site)
    return frame
