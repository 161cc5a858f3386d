from __future__ import annotations

from farfield.diagnose.data_summary import DataSummary, DomainSummary
from farfield.report.data_table import data_grid


def summary(domains: dict[str, tuple[int, ...]], held_out: tuple[str, ...] = (), **fields: object) -> DataSummary:
    made = tuple(DomainSummary(name=name, rows=sum(counts), counts=counts) for name, counts in domains.items())
    width = len(next(iter(domains.values())))
    values = {"classes": tuple(f"c{i}" for i in range(width)), "shape": (8,), "columns": 5, **fields}
    return DataSummary(task="toy", kind="classification", domains=made, held_out=held_out, **values)  # type: ignore[arg-type]


def texts(data: DataSummary) -> list[list[str]]:
    return [[cell.text for cell in row] for row in data_grid(data).rows]


def test_each_domain_has_its_rows_and_the_share_of_each_class() -> None:
    data = summary({"north": (30, 10), "south": (0, 60)}, ("north", "south"))
    grid = data_grid(data)
    assert grid.title == "toy: 100 rows in 2 domains, 2 classes, 8 features from 5 columns"
    north, south, every = texts(data)
    assert north == ["north", "40", "75.0", "25.0"]
    assert south == ["south", "60", "0.0", "100.0"]
    assert every == ["all", "100", "30.0", "70.0"]
    assert grid.notes == ("Every domain is held out in turn, while the others train.",)
    assert grid.rows[1][2].tone == "missing"


def test_a_rare_class_is_not_rounded_to_none() -> None:
    assert texts(summary({"a": (9999, 1)}))[0][2:] == ["100.0", "< 0.1"]


def test_held_out_domains_are_named() -> None:
    three = {"a": (1, 1), "b": (1, 1), "c": (1, 1)}
    assert data_grid(summary(three, ("a", "c"))).notes[-1] == "Held out, one at a time: a, c."
    assert data_grid(summary(three, ("b",))).notes[-1] == "Held out: b."
    assert data_grid(summary(three)).notes[-1] == "No domain is held out: all of them train."


def test_many_domains_are_summed_up() -> None:
    data = summary({f"site {i}": (i + 1, 1) for i in range(40)})
    lines = texts(data)
    assert [line[0] for line in lines[:2]] == ["site 39", "site 38"]
    assert [line[0] for line in lines[-2:]] == ["32 others", "all"]
    assert len(lines) == 10
    assert int(lines[-2][1]) == sum(i + 2 for i in range(32))
    assert "The 8 largest of 40 domains; they have 2 to 41 rows" in data_grid(data).notes[0]


def test_many_classes_share_three_columns() -> None:
    counts = (5, 0, 3, 0, 0, 0, 2, 0)
    data = summary({"a": counts})
    assert [column.heading for column in data_grid(data).columns][2:] == ["classes", "largest class", "its share"]
    assert texts(data)[0] == ["a", "10", "3", "c0", "50.0"]


def test_a_regression_shows_mean_and_deviation() -> None:
    domains = (DomainSummary(name="a", rows=2, mean=10.0, std=2.5),)
    data = DataSummary(task="r", kind="regression", classes=(), domains=domains, shape=(3, 8, 8))
    assert data_grid(data).title == "r: 2 rows in 1 domain, a number to predict, examples of 3 × 8 × 8"
    assert texts(data)[0] == ["a", "2", "10.00", "2.50"]
