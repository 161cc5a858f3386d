"""Write each hospital's rows.csv: from the UCI heart-disease data, or made up.

    python prepare.py                 # from the data folder, see 'farfield data fetch heart-disease'
    python prepare.py FOLDER          # from FOLDER: heart_disease.csv, or the four processed.*.data files of UCI
    python prepare.py --made-up       # rows that nobody ever had, to try everything without a download

Beside them it writes joined.csv, all rows in one table. No federation needs that file, and no real one could have it:
it is there to compare with training on one machine.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip
LABEL = "disease"
SOURCE = "https://archive.ics.uci.edu/dataset/45/heart+disease"
MARK = "THESE-ROWS-ARE-MADE-UP"
Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write each hospital's rows.csv, and joined.csv with all of them.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("folder", nargs="?", type=Path, help="where the UCI heart-disease data is")
    which.add_argument("--made-up", action="store_true", help="rows that nobody ever had, in the same columns")
    given = parser.parse_args()
    made_up = given.made_up
    tables = invent() if made_up else read(given.folder or data_folder())
    for hospital in HOSPITALS:
        write(HERE / hospital / "rows.csv", tables[hospital])
        mark = HERE / hospital / MARK
        if made_up:
            mark.write_text("rows.csv was written by 'python prepare.py --made-up'. It says nothing about anybody.\n")
        else:
            mark.unlink(missing_ok=True)
        ill = sum(row[LABEL] == "yes" for row in tables[hospital])
        kind = "made-up rows" if made_up else "rows"
        print(f"{hospital}/rows.csv: {len(tables[hospital])} {kind}, {ill} with the disease")
    write(HERE / "joined.csv", [{"hospital": name, **row} for name in HOSPITALS for row in tables[name]])


def data_folder() -> Path:
    from farfield.tasks.data_folder.store import data_folder, locate
    from farfield.tasks.data_sets.heart_disease import PLACES

    found = locate(*PLACES) or data_folder()
    return found.parent if found.is_file() else found


def read(folder: Path) -> dict[str, list[Row]]:
    """The published rows by hospital."""
    tables: dict[str, list[Row]] = {name: [] for name in HOSPITALS}
    for hospital, row in published(folder):
        if hospital in tables:
            tables[hospital].append(cleaned(row))
    missing = [name for name, rows in tables.items() if not rows]
    if missing:
        sys.exit(
            f"'{folder}' has no rows of {', '.join(missing)}: it should have heart_disease.csv with a hospital column, "
            f"or the four processed.*.data files of {SOURCE}; download them, or try it with --made-up"
        )
    return tables


def published(folder: Path) -> Iterator[tuple[str, Row]]:
    joined = folder / "heart_disease.csv"
    if joined.exists():
        with joined.open(newline="") as file:
            yield from ((row.get("hospital") or "", row) for row in csv.DictReader(file))
        return
    for hospital in HOSPITALS:
        path = folder / f"processed.{hospital}.data"
        if path.exists():
            with path.open(newline="") as file:
                yield from ((hospital, row) for row in csv.DictReader(file, (*COLUMNS, "num")))


def cleaned(row: Row) -> Row:
    """A row as a hospital would have it. A cholesterol or a blood pressure of 0 was not measured."""
    cells = {name: number(row[name]) for name in COLUMNS}
    for name in ("chol", "trestbps"):
        cells[name] = "" if cells[name] == "0" else cells[name]
    return {**cells, LABEL: "yes" if float(row["num"]) > 0 else "no"}


def number(cell: str) -> str:
    return "" if cell in ("", "?") else f"{float(cell):g}"


def invent() -> dict[str, list[Row]]:
    """Rows with the published columns, and with what makes these hospitals differ: who comes, what is measured."""
    draw = random.Random(0)
    ill = {"cleveland": 0.46, "hungarian": 0.36, "switzerland": 0.93, "va": 0.75}
    return {
        name: [invented(draw, name, draw.random() < ill[name]) for _ in range(60 + 10 * place)]
        for place, name in enumerate(HOSPITALS)
    }


def invented(draw: random.Random, hospital: str, ill: bool) -> Row:
    def code(*codes: int) -> str:
        return str(draw.choice(codes))

    row = {
        "age": f"{draw.gauss(58 if ill else 50, 8):.0f}",
        "sex": code(0, 1, 1, 1) if ill else code(0, 1),
        "cp": code(3, 4, 4, 4) if ill else code(1, 2, 3, 4),
        "trestbps": f"{draw.gauss(135, 15):.0f}",
        "chol": "" if hospital == "switzerland" else f"{draw.gauss(245, 45):.0f}",
        "fbs": code(0, 0, 0, 1),
        "restecg": code(0, 1, 2),
        "thalach": f"{draw.gauss(132 if ill else 152, 18):.0f}",
        "exang": code(0, 1, 1) if ill else code(0, 0, 0, 1),
        "oldpeak": f"{abs(draw.gauss(1.4 if ill else 0.4, 0.7)):.1f}",
        "slope": code(2, 2, 3) if ill else code(1, 1, 2),
        "ca": code(0, 1, 2, 3) if hospital == "cleveland" else "",
        "thal": code(6, 7, 7) if ill else code(3, 3, 7),
    }
    for name in ("fbs", "slope", "thal"):
        if hospital != "cleveland" and draw.random() < 0.3:
            row[name] = ""
    return {**row, LABEL: "yes" if ill else "no"}


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
