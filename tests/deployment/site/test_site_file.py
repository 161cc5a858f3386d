"""A site file names a site's data, errors name file and key, and its rows are those of a bench on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch

from farfield.deployment.schema.agreement import agree
from farfield.deployment.schema.conflict import SchemaConflict
from farfield.deployment.schema.site_schema import AgreedSchema, read_agreed_schema, read_site_schema
from farfield.deployment.site.data import SiteData, open_site
from farfield.deployment.site.site_file import SiteFileError, read_site
from farfield.errors import UserError
from farfield.tasks import load, load_folder, load_table, task_from_arrays
from farfield.tasks.clients.partition import Partition, make_clients
from farfield.tasks.task import Task
from farfield.tasks.user_data.preparation import Column, TablePreparation
from tests.tasks.image_files import make_folder
from tests.tasks.real import needs_data
from tests.tasks.tables import visits, write


def site_file(folder: Path, **content: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "site.toml"
    path.write_text(tomli_w.dumps(content))
    return path


def opened(folder: Path, **content: Any) -> SiteData:
    return open_site(read_site(site_file(folder, **content)))


def refused(folder: Path, **content: Any) -> str:
    with pytest.raises(SiteFileError) as caught:
        opened(folder, **content)
    said = str(caught.value)
    assert "\n" not in said
    assert str(folder / "site.toml") in said
    return said


def agreed_by_wire(sites: dict[str, SiteData]) -> AgreedSchema:
    told = {name: read_site_schema(json.loads(data.schema.model_dump_json())) for name, data in sites.items()}
    return read_agreed_schema(json.loads(agree(told).model_dump_json()))


def assert_as_on_one_machine(sites: dict[str, SiteData], task: Task, validation: float = 0.1) -> None:
    """Rows, labels, splits, statistics and prepared rows are those of the joined task, bit by bit."""
    agreed = agreed_by_wire(sites)
    assert (tuple(agreed.sites), agreed.classes, agreed.model) == (task.domain_names, task.classes, task.model)
    clients = make_clients(
        task.domains, partition=Partition(kind="domain"), validation=validation, seed=3, kind=task.kind
    )
    told, parts = [], []
    for name, shard in zip(agreed.sites, clients, strict=True):
        here, there = sites[name].domain(agreed), task.domain(name)
        assert (here.name, sites[name].n) == (name, len(there))
        assert here.x.dtype == there.x.dtype
        assert torch.equal(torch.nan_to_num(here.x, nan=-9e9), torch.nan_to_num(there.x, nan=-9e9))
        assert torch.equal(here.y, there.y)
        train, held = sites[name].split(agreed, seed=3)
        assert torch.equal(train, shard.train[0][1])
        assert torch.equal(held, shard.validation[0][1])
        if agreed.preparation is not None:
            told.append(json.loads(json.dumps(agreed.preparation.statistics(here.x[train], here.y[train]))))
            parts.append((there, train))
    if agreed.preparation is None or task.preparation is None:
        assert agreed.preparation is task.preparation
        return
    fitted, expected = agreed.preparation.merge(told), task.preparation.fit(parts)
    assert fitted == expected
    for name, data in sites.items():
        assert torch.equal(fitted.apply(data.domain(agreed).x), expected.apply(task.domain(name).x))


def table_sites(frame: pd.DataFrame, tmp_path: Path, suffix: str = ".csv", **more: Any) -> dict[str, SiteData]:
    sites = {}
    for name, part in frame.groupby("hospital"):
        (tmp_path / str(name)).mkdir()
        own = part.drop(columns="hospital").reset_index(drop=True)
        write(own, tmp_path / str(name) / f"rows{suffix}")
        sites[str(name)] = opened(tmp_path / str(name), name=name, data=f"rows{suffix}", **{"label": "died", **more})
    return sites


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_at_sites_are_the_table_in_one_place(tmp_path: Path, suffix: str) -> None:
    frame = visits(90).assign(code=np.arange(90) % 3 + 4)
    sites = table_sites(frame, tmp_path, suffix, categorical=["code"], validation=0.2)
    path = write(frame, tmp_path / f"all{suffix}")
    task = load_table(path, label="died", domain="hospital", categorical=["code"])
    assert_as_on_one_machine(sites, task, validation=0.2)


def test_rows_of_one_patient_stay_together_at_a_site_as_in_one_place(tmp_path: Path) -> None:
    """Some patients were in two hospitals, and some rows name none: a site cannot see the other's."""
    patients = pd.Series([f"p{number}" for number in np.random.default_rng(0).integers(0, 25, 90)])
    patients[[5, 40, 77]] = None
    patients[[1, 2, 3]] = ["007", "7", "90071992547409931"]
    frame = visits(90).assign(**{"patient ": patients})  # a blank in the header, as people have them
    sites = table_sites(frame, tmp_path, group="patient", validation=0.3)
    task = load_table(write(frame, tmp_path / "all.csv"), label="died", domain="hospital", group="patient")
    assert_as_on_one_machine(sites, task, validation=0.3)
    name, data = next(iter(sites.items()))
    train, held = data.split(agreed_by_wire(sites), seed=3)
    own = patients[frame["hospital"] == name].reset_index(drop=True)
    assert not set(own[train.tolist()].dropna()) & set(own[held.tolist()].dropna())
    assert "patient" not in data.schema.model_dump_json()


def test_a_regression_at_sites_is_the_one_in_one_place(tmp_path: Path) -> None:
    frame = visits(90)
    sites = table_sites(frame, tmp_path, label="age", drop=["died"])
    task = load_table(write(frame, tmp_path / "all.csv"), label="age", domain="hospital", drop=["died"])
    assert task.kind == "regression"
    assert_as_on_one_machine(sites, task)


@needs_data("heart_disease.csv")
def test_heart_disease_at_four_sites_is_the_file_in_one_place(tmp_path: Path) -> None:
    from farfield.tasks.data_folder.store import require
    from farfield.tasks.user_data.table_file import read_frame

    path = require("heart-disease", "heart_disease.csv")
    codes = ["cp", "restecg", "slope", "thal"]
    sites = table_sites(read_frame(path), tmp_path, label="num", categorical=codes)
    assert_as_on_one_machine(sites, load_table(path, label="num", domain="hospital", categorical=codes))


@needs_data("heart_disease.csv")
def test_domains_of_a_registered_table_are_sites(tmp_path: Path) -> None:
    task = load("heart-disease")
    sites = {name: opened(tmp_path / name, task="heart-disease", domain=name) for name in task.domain_names}
    assert_as_on_one_machine(sites, task)


def test_domains_of_a_registered_task_are_sites(tmp_path: Path) -> None:
    task = load("rotated-digits")
    sites = {name: opened(tmp_path / name, task="rotated-digits", domain=name) for name in task.domain_names}
    assert_as_on_one_machine(sites, task)
    renamed = opened(tmp_path / "other", name="oslo", task="rotated-digits", domain="30")
    assert (renamed.domain(agree({"oslo": renamed.schema})).name, renamed.schema) == ("oslo", sites["30"].schema)


def test_sites_with_other_tasks_or_versions_of_one_are_in_conflict(tmp_path: Path) -> None:
    schema = opened(tmp_path / "a", task="rotated-digits", domain="30").schema
    other = schema.model_copy(update={"task": "spun-digits"})
    with pytest.raises(SchemaConflict, match="at 'c' the task is 'spun-digits', at 'a' and 'b' the task is 'rotated"):
        agree({"a": schema, "b": schema, "c": other})
    older = schema.model_copy(update={"classes": tuple("abcdefghij")})
    with pytest.raises(SchemaConflict, match="site 'b' has another version of the task 'rotated-digits' than 'a'"):
        agree({"a": schema, "b": older})


def _arrays(shape: tuple[int, ...], regression: bool = False) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(1)
    made = {}
    for number, name in enumerate(("a", "b")):
        x = draw.normal(number, 2, (20, *shape))
        made[name] = (x, x.reshape(20, -1).sum(axis=1) if regression else np.arange(20) % (2 + number))
    return made


@pytest.mark.parametrize(("shape", "regression"), [((4,), False), ((4,), True), ((1, 8, 8), False)])
def test_arrays_at_sites_are_the_arrays_in_one_place(tmp_path: Path, shape: tuple[int, ...], regression: bool) -> None:
    pairs = _arrays(shape, regression)
    if len(shape) == 1:
        pairs["b"][0][3, 1] = np.nan
    sites = {}
    for name, (x, y) in pairs.items():
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "rows.npz", x=x, y=y)
        sites[name] = opened(tmp_path / name, name=name, data="rows.npz")
    assert_as_on_one_machine(sites, task_from_arrays("t", pairs))


def test_folders_of_images_at_sites_are_the_folder_in_one_place(tmp_path: Path) -> None:
    counts = {"north": {"cat": 8, "dog": 8}, "south": {"cow": 7, "dog": 6}}
    make_folder(tmp_path / "all", counts)
    sites = {}
    for name in counts:
        path = site_file(tmp_path / f"site-{name}", name=name, data=f"../all/{name}", image_size=16)
        sites[name] = open_site(read_site(path))
    assert_as_on_one_machine(sites, load_folder(tmp_path / "all", size=16))


def test_a_site_that_evaluates_trains_on_nothing_and_measures_on_all(tmp_path: Path) -> None:
    sites = table_sites(visits(), tmp_path, role="evaluate")
    agreed = agreed_by_wire(sites)
    train, held = sites["west"].split(agreed, seed=0)
    assert (len(train), held.tolist()) == (0, list(range(20)))


def test_rows_are_made_once_for_a_schema_and_anew_for_another(tmp_path: Path) -> None:
    sites = table_sites(visits(), tmp_path)
    agreed = agreed_by_wire(sites)
    first = sites["west"].domain(agreed)
    assert sites["west"].domain(agreed_by_wire(sites)) is first
    fewer = agreed.model_copy(update={"columns": agreed.columns[:1], "shape": (1,)})
    assert sites["west"].domain(fewer).x.shape == (len(first), 1)
    assert torch.equal(sites["west"].domain(agreed).x.nan_to_num(), first.x.nan_to_num())


def test_a_site_that_was_not_asked_fits_in_or_is_told_why_not(tmp_path: Path) -> None:
    """A held-out site may come when all is agreed: levels that are new are read as none of the known."""
    frame = visits()
    frame.loc[(frame["hospital"] == "west") & (frame["ward"] == "icu"), "ward"] = "hospice"
    sites = table_sites(frame, tmp_path)
    agreed = agree({name: sites[name].schema for name in ("north", "south")})
    assert isinstance(agreed.preparation, TablePreparation)
    ward = [column.name for column in agreed.columns].index("ward")
    own = sites["west"].domain(agreed)
    assert (own.x[:, ward] == -1).sum() == (frame[frame["hospital"] == "west"]["ward"] == "hospice").sum() > 0
    odd = frame[frame["hospital"] == "west"].drop(columns="hospital")
    write(odd.drop(columns="age"), tmp_path / "west" / "less.csv")
    less = opened(tmp_path / "west", name="west", data="less.csv", label="died")
    with pytest.raises(UserError, match="key 'data': the federation asks for a column 'age', which this site"):
        less.domain(agreed)
    write(odd.assign(died="lost"), tmp_path / "west" / "lost.csv")
    lost = opened(tmp_path / "west", name="west", data="lost.csv", label="died")
    with pytest.raises(UserError, match=r"the label 'died' has 'lost' in rows 1, 2, .* and the classes are no, yes"):
        lost.domain(agreed)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        (Column("died", "category", ("no", "yes")), "asks for a column 'died', which this site did not report"),
        (Column("smokes", "boolean"), "asks for a column 'smokes', which this site did not report; it reported age"),
        (Column("age", "category", ("30", "31")), "takes column 'age' as categories, and here it is number"),
        (Column("patient", "category", ("p1",)), "column 'patient' looks like names or ids here (30 different texts"),
        (Column("ward", "number"), "takes column 'ward' as numbers, and here it is text"),
    ],
)
def test_a_server_that_asks_for_more_than_was_offered_is_refused(tmp_path: Path, change: Column, phrase: str) -> None:
    """What a site drops, or does not tell, must not come out by way of statistics on what the server made up."""
    frame = visits(90).assign(patient=[f"p{row}" for row in range(90)])
    sites = table_sites(frame, tmp_path, drop=["smokes"])
    agreed = agreed_by_wire(sites)
    columns = (*(column for column in agreed.columns if column.name != change.name), change)
    asked = agreed.model_copy(update={"columns": columns})
    with pytest.raises(SiteFileError) as caught:
        sites["west"].domain(asked)
    assert phrase in str(caught.value)


def test_the_row_of_a_text_among_numbers_is_told_at_the_site_only(tmp_path: Path) -> None:
    frame = visits()[["age", "died"]].astype({"age": object})
    frame.loc[2, "age"] = "old"
    write(frame, tmp_path / "rows.csv")
    data = opened(tmp_path, name="zurich", data="rows.csv", label="died")
    assert data.first_text("age") == "first: 'old' in row 3"
    assert data.first_text("died") == f"first: '{frame.loc[0, 'died']}' in row 1"
    assert data.first_text("none") is None
    assert '"old"' not in data.schema.model_dump_json()  # 60 texts in 60 rows: only their number is told


GOOD = {"name": "zurich", "data": "rows.csv", "label": "died"}


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        ({**GOOD, "lable": "died"}, "has an unknown key 'lable'; did you mean 'label'?"),
        ({**GOOD, "secret": 1}, "has an unknown key 'secret'; the keys are name, data, label,"),
        ({**GOOD, "path": "x"}, "has an unknown key 'path'; did you mean 'data'?"),
        ({"data": "rows.csv", "label": "died"}, "has no key 'name'"),
        ({**GOOD, "name": " zurich"}, "key 'name': ' zurich' is no name"),
        ({**GOOD, "name": 7}, "key 'name': input should be a valid string"),
        ({**GOOD, "role": "trian"}, "key 'role': there is no role 'trian'; it is 'train' or 'evaluate'"),
        ({**GOOD, "device": "gpu"}, "key 'device': there is no device 'gpu'; say auto, cpu, cuda, cuda:N or mps"),
        ({**GOOD, "device": 1}, "key 'device': input should be a valid string"),
        ({**GOOD, "validation": 1.5}, "key 'validation': 1.5 is no share of the rows"),
        ({**GOOD, "validation": "much"}, "key 'validation': 'much' is no share"),
        ({**GOOD, "validation": "official"}, "key 'validation': only registered tasks have an official split"),
        ({**GOOD, "drop": "id"}, "key 'drop': input should be a valid tuple"),
        ({**GOOD, "task": "rotated-digits"}, "key 'task': the site has 'data' of its own as well"),
        ({**GOOD, "domain": "30"}, "key 'domain': a site's own data is one domain"),
        ({"name": "zurich"}, "key 'data': missing"),
        ({"name": "zurich", "task": "rotated-digits"}, "key 'domain': missing"),
        (
            {"task": "rotated-digit", "domain": "30"},
            "key 'task': unknown task 'rotated-digit'; did you mean 'rotated-di",
        ),
        ({"task": "rotated-digits", "domain": "31"}, "has no domain '31'; there are 0, 15, 30"),
        ({"task": "rotated-digits", "domain": "30", "label": "y"}, "key 'label': this is for data of the site's own"),
        ({**GOOD, "data": "none.csv"}, "key 'data': there is no file or folder"),
        ({**GOOD, "data": "rows.xlsx"}, "key 'data': 'rows.xlsx' is not a workbook that can be read"),
        ({**GOOD, "label": "dead"}, "key 'label': 'rows.csv' has no column 'dead'; "),
        ({**GOOD, "label": "Dieed"}, "did you mean 'died'? there are hospital, age, smokes, ward, pressure, died,"),
        ({"name": "zurich", "data": "rows.csv"}, "key 'label': missing; name the column of 'rows.csv' to predict"),
        ({**GOOD, "drop": ["presure"]}, "key 'drop': 'rows.csv' has no column 'presure'; did you mean 'pressure'?"),
        ({**GOOD, "drop": ["died"]}, "key 'label': 'died' cannot be dropped"),
        ({**GOOD, "categorical": ["x"]}, "key 'categorical': 'rows.csv' has no column 'x'"),
        ({**GOOD, "group": "patient"}, "key 'group': 'rows.csv' has no column 'patient'"),
        ({**GOOD, "group": "same"}, "key 'group': all 60 rows have the same 'same', and two are needed"),
        ({**GOOD, "group": "died"}, "key 'group': 'died' cannot be the group and something else as well"),
        ({**GOOD, "label": "ward"}, "key 'label': the label 'ward' is missing in row"),
        ({**GOOD, "image_size": 32}, "key 'image_size': this is for a folder of images"),
        ({**GOOD, "image_size": 4}, "key 'image_size': input should be greater than or equal to 8"),
        ({**GOOD, "data": "images"}, "key 'label': this is for tables, and 'images' is none"),
        ({"name": "zurich", "data": "images"}, "key 'data': there are no images in"),
        ({"name": "zurich", "data": "half.npz"}, "key 'data': 'half.npz' holds no array 'y'"),
        ({"name": "zurich", "data": "bad.npz"}, "bad.npz' cannot be read as arrays"),
        ({"name": "zurich", "data": "objects.npz"}, "objects.npz' holds an array of Python objects, which is not read"),
        ({"name": "zurich", "data": "below.npz"}, "has the class number -1; they count from 0"),
    ],
)
def test_what_is_wrong_with_a_site_file_is_one_sentence_with_the_key(
    tmp_path: Path, content: dict[str, Any], phrase: str
) -> None:
    write(visits().assign(same="p1"), tmp_path / "rows.csv")
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    (tmp_path / "images").mkdir()
    np.savez(tmp_path / "half.npz", x=np.zeros((3, 2)))
    (tmp_path / "bad.npz").write_bytes(b"no arrays")
    np.savez(tmp_path / "objects.npz", x=np.array([{}, {}], dtype=object), y=np.arange(2))
    np.savez(tmp_path / "below.npz", x=np.zeros((2, 2)), y=np.array([-1, 0]))
    assert phrase in refused(tmp_path, **content)


def test_rows_without_a_label_can_be_left_out(tmp_path: Path) -> None:
    frame = visits()
    frame.loc[[3, 4], "died"] = None
    write(frame, tmp_path / "rows.csv")
    said = refused(tmp_path, **GOOD)
    assert "key 'label': the label 'died' is missing in rows 4 and 5" in said
    assert "drop_missing_labels = true" in said
    assert opened(tmp_path, **GOOD, drop_missing_labels=True).n == 58


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiteFileError, match="there is no site file"):
        read_site(tmp_path / "none.toml")
    (tmp_path / "site.toml").write_text("name = ")
    with pytest.raises(SiteFileError, match="is not TOML"):
        read_site(tmp_path)
