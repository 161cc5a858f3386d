"""tcga-brca: breast cancer in six regions of the Cancer Genome Atlas, and whether the patient's death was recorded.

The table is the one of federated survival benchmarks: 39 clinical features, event E, time T. The label here is the
event alone. It does not account for how long a patient was followed (T is left out, since it is known only
afterwards): a region that followed its patients for a shorter time has fewer deaths on record.
"""

from __future__ import annotations

from farfield.tasks.data_folder.store import locate, require
from farfield.tasks.own.table import task_from_frame
from farfield.tasks.own.table_file import need_columns, read_frame
from farfield.tasks.registry import register
from farfield.tasks.task import Task

FILE = "tcga_brca.csv"
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
    available=lambda: locate(FILE) is not None,
)
def load() -> Task:
    frame = read_frame(require("tcga-brca", FILE))
    need_columns(frame, COLUMNS, "task 'tcga-brca'")
    frame["E"] = frame["E"].map({0: "censored", 1: "died"})
    return task_from_frame(
        frame,
        name="tcga-brca",
        label="E",
        domain="region",
        drop=NOT_FEATURES,
        source="The Cancer Genome Atlas, BRCA, clinical data; open, no re-identification",
        description="a death on record after breast cancer, in six regions; how long each patient was followed is not "
        "accounted for, so 'censored' is not 'survived'",
    )
