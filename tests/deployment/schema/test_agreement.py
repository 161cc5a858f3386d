"""Sites agree on the schema that reading the joined table gives, or a sentence says who has to mend what."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield.deployment.schema.agreement import agree
from farfield.deployment.schema.conflict import SchemaConflict
from farfield.deployment.schema.site_schema import (
    AgreedSchema,
    ArraySite,
    SchemaError,
    TableSite,
    describe,
    read_agreed_schema,
    read_site_schema,
)
from farfield.tasks import Task
from farfield.tasks.data_folder.store import locate
from farfield.tasks.user_data.preparation import TablePreparation
from farfield.tasks.user_data.table import task_from_frame
from farfield.tasks.user_data.table_file import TableError, read_frame
from tests.tasks.real import needs_data
from tests.tasks.tables import visits, write


def cut(frame: pd.DataFrame, **options: Any) -> dict[str, TableSite]:
    """Each hospital's rows described alone, as JSON carries it."""
    chosen = {"label": "died", **options}
    told = {}
    for name, part in frame.groupby("hospital"):
        own = part.drop(columns="hospital").infer_objects()
        told[str(name)] = read_site_schema(json.loads(describe(own, **chosen).model_dump_json()))
    return told


def joined(frame: pd.DataFrame, **options: Any) -> Task:
    return task_from_frame(frame, name="t", **{"label": "died", "domain": "hospital", **options})


def assert_same(agreed: AgreedSchema, task: Task) -> None:
    assert isinstance(task.preparation, TablePreparation)
    assert agreed.columns == task.preparation.columns
    assert (agreed.kind, agreed.classes) == (task.kind, task.classes)
    assert tuple(agreed.sites) == task.domain_names
    assert list(agreed.sites.values()) == [len(domain) for domain in task.domains]
    assert agreed.model == task.model
    assert agreed.defaults == task.defaults
    assert isinstance(agreed.preparation, TablePreparation)
    assert agreed.preparation.scale_label == task.preparation.scale_label


def _text(frame: pd.DataFrame, cells: Callable[[int], object]) -> list[object]:
    return [cells(row) for row in range(len(frame))]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"country": "NL"},
        {"nothing": None},
        {"code": [row % 4 for row in range(60)]},
        {"flag": [row % 2 for row in range(60)]},  # 0 and 1 at every site
        {"flag": [int(row % 3 == 0) for row in range(60)]},  # 1 at 'north' only, 0 elsewhere
        {"flag": [math.nan if row % 3 == 0 else row % 2 for row in range(60)]},  # none at 'north'
        {"flag": [1.0 if row % 3 else math.nan for row in range(60)]},  # constant where it is known
        {"flag": [2 if row % 3 == 0 else row % 2 for row in range(60)]},  # 0 and 1 at two sites, 2 at one
        {"flag": [row % 3 + 5 for row in range(60)]},  # another number at each site
        {"truth": [row % 3 == 0 for row in range(60)]},  # true at one site, false at the others
        {"note": [f"n{row % 30}" for row in range(60)]},  # 30 texts; each site has 10
        {"patient": [f"p{row}" for row in range(60)]},
        {"one": ["a" if row % 3 else "b" for row in range(60)]},
        {"gaps": [None if row % 3 == 0 else "a" for row in range(60)]},
        {"died": [row // 3 % 3 for row in range(60)]},
        {"died": [row % 5 + 0.5 * (row % 3 == 0) for row in range(60)]},  # whole at two sites, real at one
        {"died": list(range(60))},  # 20 whole numbers at each site, 60 together
        {"died": [row % 7 for row in range(60)]},
        {"died": [row % 2 == 0 for row in range(60)]},
        {"died": [10 if row % 2 else 9 for row in range(60)]},
    ],
)
def test_sites_agree_on_what_the_joined_table_says(change: dict[str, Any]) -> None:
    frame = visits().assign(**change)
    sites = cut(frame)
    if "patient" in change:
        # Each site has 20 texts, few enough to tell; together they are a name a row.
        assert "patient" not in {column.name for column in agree(sites).columns}
    assert_same(agree(sites), joined(frame))
    turned = agree(dict(reversed(sites.items())))
    assert turned == agree(sites)
    assert read_agreed_schema(json.loads(turned.model_dump_json())) == turned


def _labels_apart(frame: pd.DataFrame) -> bool:
    """Whether there is one class only, or a site whose classes no other site has."""
    classes = {site: set(labels) for site, labels in frame.groupby("hospital")["died"]}
    others = [set().union(*(own for name, own in classes.items() if name != site)) for site in classes]
    apart = any(not own & rest for own, rest in zip(classes.values(), others, strict=True))
    return frame["died"].nunique() == 1 or (len(classes) > 1 and apart)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["north", "south", "west"]),
            st.sampled_from([0, 1, 2, None]),
            st.sampled_from([True, False]),
            st.sampled_from(["a", "b", "c", None]),
            st.sampled_from(["no", "yes"]),
        ),
        min_size=10,
        max_size=60,
    )
)
def test_any_table_cut_into_sites_gives_its_own_columns_or_a_conflict(rows: list[tuple[Any, ...]]) -> None:
    frame = pd.DataFrame(rows, columns=["hospital", "level", "truth", "ward", "died"])
    frame["level"] = frame["level"].astype(float)
    frame["steady"] = np.arange(len(frame)) % 4
    frame.index = range(1, len(frame) + 1)
    if frame["hospital"].value_counts().min() < 5 or _labels_apart(frame):
        conflict(cut(frame))
        return
    agreed = agree(cut(frame))
    notes = " ".join(agreed.notes)
    task = joined(frame.drop(columns="ward") if "'ward' was left out: it only says" in notes else frame)
    assert_same(agreed, task)


def test_codes_said_to_be_categories_are_so_at_every_site() -> None:
    frame = visits().assign(code=np.arange(60) % 4 + 1.0)
    assert_same(agree(cut(frame, categorical=["code"])), joined(frame, categorical=["code"]))


@needs_data("heart_disease.csv")
@pytest.mark.parametrize("label", ["num", "oldpeak", "exang"])
def test_heart_disease_cut_into_hospitals_gives_its_columns(label: str) -> None:
    path = locate("heart_disease.csv")
    assert path is not None
    frame = read_frame(path)
    frame = frame[frame[label].notna()]
    codes = [name for name in ("cp", "restecg", "slope", "thal") if name != label]
    told = cut(frame, label=label, categorical=codes)
    assert len(told) == 4
    assert_same(agree(told), joined(frame, label=label, categorical=codes))


def test_the_order_of_columns_is_that_of_the_first_site_by_name() -> None:
    told = cut(visits())
    told["south"] = told["south"].model_copy(update={"columns": told["south"].columns[::-1]})
    assert [column.name for column in agree(told).columns] == ["age", "smokes", "ward", "pressure"]


def site(**columns: Any) -> TableSite:
    rows = max(len(cells) for cells in columns.values())
    frame = pd.DataFrame({"died": ["no", "yes"] * (rows // 2), **columns})
    frame.index = range(1, rows + 1)
    return describe(frame, label="died")


def conflict(told: Any) -> SchemaConflict:
    with pytest.raises(SchemaConflict) as caught:
        agree(told)
    assert "\n" not in str(caught.value)
    return caught.value


AGES = [30.5, 41.0, 52.0, 63.0, 44.0, 55.0]


def test_a_site_without_a_column_is_told_to_add_it() -> None:
    told = {name: site(age=AGES, chol=AGES) for name in ("a", "b", "c")}
    said = conflict({**told, "hungary": site(age=AGES)})
    assert str(said) == (
        "site 'hungary' has no column 'chol', which the other 3 sites have; add it, or have it dropped everywhere"
    )
    assert (said.sites, said.column) == (("hungary",), "chol")
    said = conflict({**told, "hungary": site(age=AGES, Chol=AGES)})
    assert "rename its column 'Chol' if that is the same" in str(said)


def test_a_site_with_a_column_of_its_own_is_told_to_drop_it() -> None:
    said = conflict({"a": site(age=AGES), "b": site(age=AGES), "zurich": site(age=AGES, extra=AGES)})
    assert str(said) == (
        "site 'zurich' has a column 'extra', which the other 2 sites lack; write drop = [\"extra\"] in its site file, "
        "or add it everywhere"
    )
    assert said.sites == ("zurich",)


def test_a_column_that_would_be_left_out_anyway_may_be_lacking() -> None:
    agreed = agree({"a": site(age=AGES), "b": site(age=AGES, empty=[None] * 6), "c": site(age=AGES)})
    assert [column.name for column in agreed.columns] == ["age"]
    assert agreed.notes == ("column 'empty' was left out: it has no values at any site",)


def test_numbers_here_and_text_there_name_the_site_and_the_text() -> None:
    told = {name: site(age=AGES) for name in ("a", "b", "c")}
    said = conflict({**told, "zurich": site(age=["30", "41", "old", "63", "44", "55"])})
    assert str(said) == (
        "column 'age' is numbers at 3 sites and text (such as 'old') at 'zurich'; mend it there or have it dropped "
        "everywhere"
    )
    assert (said.sites, said.column) == (("zurich",), "age")


def test_dates_here_and_a_word_among_them_there_are_left_out_as_from_the_joined_table() -> None:
    days = [f"2021-03-{day:02d}" for day in range(1, 7)]
    told = {"a": site(age=AGES, seen=days), "b": site(age=AGES, seen=days), "c": site(age=AGES, seen=[*days[1:], "?!"])}
    agreed = agree(told)
    assert [column.name for column in agreed.columns] == ["age"]
    assert agreed.notes[0].startswith("column 'seen' was left out: it holds no numbers, texts or true and false")


def test_true_and_false_may_be_written_as_one_and_zero() -> None:
    agreed = agree({"a": site(f=[True, False] * 3), "b": site(f=[1, 0] * 3), "c": site(f=[0] * 6)})
    assert [column.kind for column in agreed.columns] == ["boolean"]
    said = conflict({"a": site(f=[True, False] * 3), "b": site(f=AGES), "c": site(f=AGES)})
    assert "numbers at 'b' and 'c' and true and false at 'a'" in str(said)


def test_a_category_at_one_site_must_be_one_at_all() -> None:
    frame = pd.DataFrame({"died": ["no", "yes"] * 3, "code": [1, 2, 3, 1, 2, 3]})
    asked = describe(frame, label="died", categorical=["code"])
    said = conflict({"a": asked, "b": describe(frame, label="died")})
    assert 'write categorical = ["code"] in every site file, or in none' in str(said)


def test_names_and_ids_stay_at_the_site() -> None:
    texts = [f"patient {number}" for number in range(40)]
    told = site(name=texts, age=list(range(40)))
    assert "patient" not in told.model_dump_json()
    assert (told.columns[0].distinct, told.columns[0].levels) == (40, None)
    agreed = agree({"a": told, "b": told})
    assert [column.name for column in agreed.columns] == ["age"]
    assert "names or ids" in agreed.notes[0]


def test_texts_kept_back_by_one_site_that_others_call_categories_are_a_conflict() -> None:
    cities = [f"city {number % 25}" for number in range(400)]
    said = conflict({"large": site(city=cities), "small": site(city=cities[:30])})
    assert said.sites == ("small",)
    assert "looks like names or ids at 'small' (25 different texts in 30 rows), which were not disclosed" in str(said)


def test_numbers_of_rows_stay_at_the_site() -> None:
    told = site(age=AGES)
    assert told.model_dump() == {
        "form": "table",
        "rows": 6,
        "columns": ({"name": "age", "found": "number", "known": 6, "missing": 0, "distinct": 0, "levels": None},),
        "label": {"name": "died", "found": "text", "whole": False, "levels": ("no", "yes")},
    }
    frame = pd.DataFrame({"cost": AGES, "age": AGES})
    assert describe(frame, label="cost").label.levels is None


def test_a_column_that_names_the_site_is_left_out() -> None:
    agreed = agree({"a": site(age=AGES, place=["A"] * 6), "b": site(age=AGES, place=["B"] * 6)})
    assert [column.name for column in agreed.columns] == ["age"]
    assert agreed.notes == ("column 'place' was left out: it only says which site a row is from",)


def with_label(name: str, *labels: object) -> TableSite:
    frame = pd.DataFrame({name: np.resize(np.array(labels, dtype=object), 30), "age": np.arange(30) * 1.5})
    return describe(frame.infer_objects(), label=name)


def test_a_class_that_only_some_sites_have_is_fine() -> None:
    agreed = agree({"a": with_label("y", "no"), "b": with_label("y", "no", "yes"), "c": with_label("y", "maybe", "no")})
    assert agreed.classes == ("maybe", "no", "yes")


@pytest.mark.parametrize(
    ("told", "sites", "phrase"),
    [
        (
            {"a": ("y", "yes", "no"), "b": ("y", "yes", "no"), "zurich": ("y", "Yes", "no")},
            ("zurich",),
            "the label 'y' has the class 'Yes' at 'zurich' and 'yes' at 'a' and 'b'; if these are the same, spell",
        ),
        (
            {"a": ("y", "not sure", "no"), "zurich": ("y", "not_sure", "no")},
            ("a",),
            "the class 'not sure' at 'a' and 'not_sure' at 'zurich'",
        ),
        (
            {"a": ("y", "yes", "no"), "b": ("y", "yes", "no"), "zurich": ("y", "ill", "well")},
            ("zurich",),
            "the label 'y' is 'ill' and 'well' at 'zurich', and no other site knows such a class (there it is 'no' and",
        ),
        (
            {"a": ("y", "yes", "no"), "b": ("y", "yes", "no"), "zurich": ("y", 0, 1)},
            ("zurich",),
            "at 'zurich' the label 'y' is numbers, at 'a' and 'b' the label 'y' is text",
        ),
        (
            {"a": ("y", "yes", "no"), "b": ("y", "yes", "no"), "zurich": ("z", "yes", "no")},
            ("zurich",),
            "at 'zurich' the label is 'z', at 'a' and 'b' the label is 'y'",
        ),
        ({"a": ("y", "no"), "b": ("y", "no")}, (), "the value 'no' at every site"),
    ],
)
def test_labels_that_disagree_are_named(told: dict[str, tuple[Any, ...]], sites: tuple[str, ...], phrase: str) -> None:
    said = conflict({name: with_label(*label) for name, label in told.items()})
    assert phrase in str(said)
    assert said.sites == sites


def test_classes_of_minus_one_and_one_are_two_classes() -> None:
    assert agree({"a": with_label("y", -1, 1), "b": with_label("y", 1, -1)}).classes == ("-1", "1")
    assert agree({"a": with_label("y", "-", "+"), "b": with_label("y", "+")}).classes == ("+", "-")


def test_two_sites_of_one_name_and_small_sites_are_refused() -> None:
    told = site(age=AGES)
    assert "two sites are named 'zurich'" in str(conflict([("zurich", told), ("oslo", told), ("zurich", told)]))
    assert "no site" in str(conflict({}))
    assert "site 'b' has 4 rows" in str(conflict({"a": told, "b": site(age=AGES[:4])}))


def test_a_table_and_images_cannot_train_together() -> None:
    images = ArraySite(
        form="images", rows=9, shape=(3, 64, 64), dtype="uint8", kind="classification", classes=("cat", "dog")
    )
    said = conflict({"a": images, "b": images, "c": site(age=AGES)})
    assert "at 'c' the data is a table, at 'a' and 'b' the data is images" in str(said)
    other = images.model_copy(update={"shape": (3, 32, 32)})
    said = conflict({"a": images, "b": other, "c": images})
    assert str(said).startswith(
        "at 'b' an example has the shape 3 × 32 × 32, at 'a' and 'c' an example has the shape 3 × 64 × 64"
    )
    assert said.sites == ("b",)
    agreed = agree({"b": images.model_copy(update={"classes": ("cow", "dog")}), "a": images})
    assert agreed.classes == ("cat", "cow", "dog")
    assert (agreed.model.outputs, agreed.preparation, tuple(agreed.sites)) == (3, None, ("a", "b"))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 0},
        {"rows": 7},
        {"form": "graph"},
        {"columns": [{"name": "age"}]},
        {"columns": "age"},
        {"label": None},
        {"extra": [30.5, 41.0]},
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(change: dict[str, object]) -> None:
    content = {**json.loads(site(age=AGES).model_dump_json()), **change}
    with pytest.raises(SchemaError, match="a site's schema cannot be read") as caught:
        read_site_schema(content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": []},
        {"shape": [0]},
        {"missing": [True]},
        {"classes": []},
        {"classes": ["0", "0"]},
        {"kind": "regression"},
        {"form": "images"},
        {"form": "task"},
        {"columns": [{"name": "x0", "kind": "number"}]},
        {"dtype": "object"},
    ],
)
def test_a_schema_of_arrays_whose_parts_do_not_fit_is_refused(change: dict[str, object]) -> None:
    content = {
        "form": "arrays",
        "rows": 9,
        "shape": [2],
        "dtype": "float64",
        "kind": "classification",
        "classes": ["0", "1"],
        "missing": [True, False],
    }
    told = read_site_schema(content)
    columns = agree({"a": told, "b": told}).columns
    assert [(column.name, column.missing) for column in columns] == [("x0", True), ("x1", False)]
    with pytest.raises(SchemaError, match="a site's schema cannot be read"):
        read_site_schema({**content, **change})


def test_a_label_that_is_a_name_is_refused_before_it_is_told() -> None:
    frame = pd.DataFrame({"died": [f"case {number}" for number in range(30)], "age": range(30)})
    with pytest.raises(TableError, match="30 classes in 30 rows"):
        describe(frame, label="died")


def test_files_of_sites_agree_like_the_file_of_all(tmp_path: Path) -> None:
    """Through CSV files, whose types pandas tells anew for every one of them."""
    frame = visits(90)
    frame.loc[frame["hospital"] == "west", "pressure"] = np.nan
    frame.loc[frame["hospital"] == "south", "age"] = 50
    told = {}
    for name, part in frame.groupby("hospital"):
        path = write(part.drop(columns="hospital"), tmp_path / f"{name}.csv")
        told[str(name)] = describe(read_frame(path), label="died")
    assert_same(agree(told), joined(read_frame(write(frame, tmp_path / "all.csv"))))


def test_sites_that_only_evaluate_decide_neither_columns_nor_classes() -> None:
    """A gap, a new level, a new class and a further column at such a site leave the schema as it was."""
    frame = visits()
    sites = cut(frame)
    *training, evaluating = sites
    own = {name: sites[name] for name in training}
    odd = frame[frame["hospital"] == evaluating].drop(columns="hospital").infer_objects().reset_index(drop=True)
    odd["ward"] = ["attic", *odd["ward"][1:]]
    odd.loc[1, "age"] = None
    odd["further"] = range(len(odd))
    odd["died"] = ["lost", *odd["died"][1:]]
    agreed = agree(own, {evaluating: describe(odd, label="died")})
    assert agreed.model_copy(update={"sites": agree(own).sites}) == agree(own)
    assert agreed.sites == {name: sites[name].rows for name in sites}


def test_a_site_that_only_evaluates_is_the_one_to_mend_its_data() -> None:
    told = {name: site(age=AGES) for name in "ab"}
    with pytest.raises(SchemaConflict, match="column 'age' is numbers at 'a' and 'b' and text") as conflict:
        agree(told, {"c": site(age=["old"] * 6)})
    assert conflict.value.sites == ("c",)
    with pytest.raises(SchemaConflict, match="site 'c' has no column 'age'") as conflict:
        agree(told, {"c": site(years=AGES)})
    assert conflict.value.sites == ("c",)
