"""What the columns of a table are for, and the rows whose domain is known and large enough."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from farfield.tasks.user_data.columns import as_text
from farfield.tasks.user_data.problems import Problems
from farfield.tasks.user_data.table_file import READ_AS_MISSING, need_columns, rows_named

if TYPE_CHECKING:
    from pandas import DataFrame

#: A domain with fewer rows can hardly be trained on and validated, and says little when it is held out.
LEAST_ROWS = 5


def check_roles(
    frame: DataFrame, label: str, domain: str, drop: Sequence[str], categorical: Sequence[str], group: str | None
) -> None:
    """Refuse columns that are not there, and columns with two roles, all of them at once."""
    problems = Problems()
    roles = {"the label": [label], "the domain": [domain], "--drop": drop, "--categorical": categorical}
    for what, names in (*roles.items(), ("the group", [] if group is None else [group])):
        for name in names:
            problems.attempt(partial(need_columns, frame, [name], what))
    if label == domain:
        problems.add(f"'{label}' cannot be both the label and the domain")
    if group is not None and group in (label, domain, *categorical):
        problems.add(f"'{group}' cannot be the group and something else as well")
    for role, column in (("label", label), ("domain", domain)):
        if column in drop:
            problems.add(f"'{column}' is the {role} and cannot be dropped as well")
    problems.refuse()


def with_domains(
    frame: DataFrame, domain: str, drop_missing: bool, least: int | None, notes: list[str], problems: Problems
) -> DataFrame:
    """The rows that have a domain of enough rows; what keeps others out is a note or a problem."""
    missing = frame.index[frame[domain].isna()]
    if len(missing) and drop_missing:
        notes.append(f"left out what has no domain: {rows_named(missing)}")
    elif len(missing):
        problems.add(
            f"the domain '{domain}' is missing in {rows_named(missing)} (row 1 is the first below the header; missing "
            f"is {READ_AS_MISSING}); fill it in with a name, or leave such rows out with --drop-missing-domains",
            "--drop-missing-domains",
        )
    frame = frame.drop(missing)
    names = as_text(frame[domain])
    sizes = names.value_counts()
    small = sizes[sizes < (LEAST_ROWS if least is None else least)].sort_index()
    if not len(small):
        return frame
    shown = ", ".join(f"'{name}' ({size})" for name, size in small.head(5).items())
    shown += f" and {len(small) - 5} more" if len(small) > 5 else ""
    if len(small) == len(sizes) and least is not None:
        problems.add(f"no domain of '{domain}' has {least} rows; the largest has {sizes.max()}")
        return frame
    if least is None:
        problems.add(
            f"of {len(sizes)} domains of '{domain}', {len(small)} with fewer than {LEAST_ROWS} rows: {shown}; merge "
            f"them in the file, name a coarser --domain, or leave them out with --least-rows {LEAST_ROWS}",
            f"--least-rows {LEAST_ROWS}",
        )
        return frame if len(small) == len(sizes) else frame[~names.isin(small.index)]
    notes.append(f"left out {len(small)} of {len(sizes)} domains, with fewer than {least} rows: {shown}")
    return frame[~names.isin(small.index)]
