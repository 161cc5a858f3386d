"""Tables of a user: text in any dialect, Parquet and Excel, from the file to a task that could be trained on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz.mutation import Seed
from tests.fuzz.target import Consume, target

if TYPE_CHECKING:
    from pandas import DataFrame

    from farfield.tasks import Task


def rows_of_a_table(rows: int = 24) -> str:
    """Numbers, codes, dates, words, flags, gaps; three hospitals and a label."""
    chance = random.Random(5)
    lines = ["age,ward,seen,note,smoker,dose,hospital,died"]
    for number in range(rows):
        hospital = ("north", "south", "east")[number % 3]
        gap = "" if number % 7 == 0 else f"{chance.gauss(60, 9):.1f}"
        seen = f"20{10 + number % 10}-0{1 + number % 9}-11"
        word = chance.choice(("stable", "worse", "n/a"))
        smoker, ward = chance.choice(("yes", "no")), chance.choice("abc")
        lines.append(f"{gap},{ward},{seen},{word},{smoker},{number % 5},{hospital},{number % 2}")
    return "\n".join(lines) + "\n"


def prepare(task: Task) -> None:
    """Do with a task what a bench does before its first round: plan it, deal its rows, prepare its columns."""
    from farfield.runs.plan import Job, make_plan
    from farfield.runs.run_data import run_data

    plan = make_plan(task, algorithms=["fedavg"], seeds=1, rounds=1)
    run_data(plan, task, Job("fedavg", plan.held_out[0], 0))


@target("csv tables", share=0.012, short=250)
def csv_tables(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """Text tables as `bench --data` reads them: the first byte says what they are called."""
    from farfield.tasks import load_table

    names = {b"c": "rows.csv", b"t": "rows.tsv"}

    def consume(data: bytes) -> None:
        path = folder / names.get(data[:1], "rows.txt")
        path.write_bytes(data[1:])
        prepare(load_table(path, label="died", domain="hospital"))

    text = rows_of_a_table()
    short = "x,hospital,died\n" + "".join(f"{n},{'ab'[n % 2]},{n % 3}\n" for n in range(12))
    numbers = "x;y;hospital;died\n" + "".join(
        f"{n},5;{n};{'ab'[n % 2]};{n / 3:.2f}\n".replace(".", ",") for n in range(12)
    )
    return [
        Seed(text.encode(), "csv", b"c"),
        Seed(text.replace(",", "\t").encode(), "bytes", b"t"),
        Seed(short.encode(), "csv", b"c"),
        Seed(numbers.encode(), "bytes", b"c"),
    ], consume


@target("csv rows of a site", share=0.006, short=120)
def csv_rows_of_a_site(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """A site's own table as `farfield client` reads it."""
    from farfield.deployment.site.data import open_site
    from farfield.deployment.site.site_file import read_site

    (folder / "site.toml").write_text('name = "amber"\ndata = "rows.csv"\nlabel = "died"\ncategorical = ["ward"]\n')

    def consume(data: bytes) -> None:
        (folder / "rows.csv").write_bytes(data)
        open_site(read_site(folder))

    return [Seed(rows_of_a_table().encode(), "csv")], consume


@target("csv cells", share=0.03, short=500)
def csv_cells(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """What the cells of one column are, one cell per line."""
    import pandas as pd

    from farfield.tasks.user_data.cells import found_type, nearly_numbers, no_numbers

    def consume(data: bytes) -> None:
        cells = [cell or None for cell in data.decode("utf-8", "replace").split("\n")]
        series = pd.Series(cells, index=range(1, len(cells) + 1), dtype=object)
        found_type(series)
        no_numbers(series)
        nearly_numbers(series)
        numbers = pd.to_numeric(series, errors="coerce")
        found_type(numbers)

    columns = (
        "1\n2\n3.5\n\n7",
        "1,5\n2,5\n1.234,5\n",
        "12 kg\n<5\n70kg",
        "2021-03-04\n4.3.2021\n3/4/21",
        "a\nb\nNA\n1",
    )
    return [Seed(of.encode(), "csv") for of in columns], consume


@target("parquet tables", share=0.006, short=120)
def parquet_tables(folder: Path) -> tuple[Sequence[Seed], Consume]:
    frame = _frame()
    frame.to_parquet(folder / "seed.parquet")
    small = frame[["age", "hospital", "died"]]
    small.to_parquet(folder / "small.parquet", compression=None)
    bodies = [(folder / name).read_bytes() for name in ("seed.parquet", "small.parquet")]
    return [Seed(body) for body in bodies], _table_reader(folder / "rows.parquet")


@target("excel tables", share=0.003, short=50)
def excel_tables(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """Workbooks: the archive itself, and one of the parts in it."""
    import zipfile

    _frame().to_excel(folder / "seed.xlsx", index=False)
    with zipfile.ZipFile(folder / "seed.xlsx") as book:
        parts = {name: book.read(name) for name in book.namelist()}
    names = sorted(parts)
    read = _table_reader(folder / "rows.xlsx")

    def consume(data: bytes) -> None:
        number = data[0] if data else 255
        if number >= len(names):
            return read(data[1:])
        with zipfile.ZipFile(folder / "made.xlsx", "w", zipfile.ZIP_DEFLATED) as book:
            for name in names:
                book.writestr(name, data[1:] if name == names[number] else parts[name])
        return read((folder / "made.xlsx").read_bytes())

    seeds = [Seed((folder / "seed.xlsx").read_bytes(), "bytes", b"\xff")]
    return [*seeds, *(Seed(parts[name], "bytes", bytes([number])) for number, name in enumerate(names))], consume


def _frame() -> DataFrame:
    import io

    import pandas as pd

    return pd.read_csv(io.StringIO(rows_of_a_table()))


def _table_reader(path: Path) -> Consume:
    from farfield.tasks import load_table

    def consume(data: bytes) -> None:
        path.write_bytes(data)
        prepare(load_table(path, label="died", domain="hospital"))

    return consume


@target("array files", share=0.02, short=300)
def array_files(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """Arrays (.npz) of a site, examples to predict, and labelled examples."""
    import numpy as np

    from farfield.deployment.site.data import open_site
    from farfield.deployment.site.site_file import read_site

    (folder / "site.toml").write_text('name = "amber"\ndata = "rows.npz"\n')
    rows = np.random.default_rng(1)
    np.savez(folder / "seed.npz", x=rows.normal(size=(12, 4)), y=np.arange(12) % 3)
    np.savez_compressed(folder / "other.npz", x=rows.normal(size=(12, 4)).astype("f4"), y=np.linspace(0, 1, 12))

    def consume(data: bytes) -> None:
        (folder / "rows.npz").write_bytes(data)
        open_site(read_site(folder))

    return [Seed((folder / name).read_bytes()) for name in ("seed.npz", "other.npz")], consume
