"""The tables of hospitals: small files in the published layout, and the published files where they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from farfield.bench import load_model, train
from farfield.bench.plan import make_plan
from farfield.bench.prepare import run_data
from farfield.errors import UserError
from farfield.tasks import Domain, Task, describe, load
from farfield.tasks.data_folder.catalogue import data_set
from farfield.tasks.data_folder.checking import check
from farfield.tasks.data_folder.store import VARIABLE, MissingData, locate
from farfield.tasks.own.preparation import TablePreparation
from farfield.tasks.own.words import FittedWords, WordPreparation
from farfield.tasks.sets import eicu, image_sets, wilds
from farfield.tasks.sets.heart_disease import IN_ORDER
from tests.tasks.real import needs_data

NAMES = ("heart-disease", "eicu", "eicu-mortality", "tcga-brca")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty data folder."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    load.cache_clear()
    yield tmp_path
    load.cache_clear()


def column(task: Task, name: str) -> tuple[int, str]:
    assert isinstance(task.preparation, TablePreparation)
    found = {c.name: (number, c.kind) for number, c in enumerate(task.preparation.columns)}
    return found[name]


@pytest.mark.parametrize("name", NAMES)
def test_without_its_file_a_task_is_listed_and_says_what_is_missing(folder: Path, name: str) -> None:
    assert not describe(name).available
    with pytest.raises(MissingData, match=f"the data of task '{name}' is not here"):
        load(name)


def _heart(rows: int = 40) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"hospital": np.array(["cleveland", "hungarian", "switzerland", "va"])[np.arange(rows) % 4]})
    for name in ("age", "thalach", "oldpeak", "chol", "trestbps"):
        frame[name] = draw.normal(100, 20, rows).round()
    for name in ("sex", "fbs", "exang"):
        frame[name] = draw.integers(0, 2, rows)
    for name in ("cp", "restecg", "slope", "thal", "ca"):
        frame[name] = draw.integers(0, 3, rows)
    frame["num"] = np.arange(rows) // 4 % 5
    return frame


def test_heart_disease_reads_zero_cholesterol_as_missing_and_codes_as_categories(folder: Path) -> None:
    frame = _heart()
    frame.loc[frame["hospital"] == "switzerland", "chol"] = 0
    frame.to_csv(folder / "heart_disease.csv", index=False)
    task = load("heart-disease")
    number, _ = column(task, "chol")
    assert torch.isnan(task.domain("switzerland").x[:, number]).all()
    assert not torch.isnan(task.domain("cleveland").x[:, number]).any()
    assert {name: column(task, name)[1] for name in ("cp", "restecg", "slope", "thal")} == dict.fromkeys(
        ("cp", "restecg", "slope", "thal"), "category"
    )
    # num 0 is healthy, 1 to 4 are diseased
    va = frame[frame["hospital"] == "va"]
    assert task.classes == ("healthy", "diseased")
    assert task.domain("va").y.tolist() == (va["num"] > 0).astype(int).tolist()


def test_heart_disease_without_a_column_is_refused(folder: Path) -> None:
    _heart().drop(columns="thal").to_csv(folder / "heart_disease.csv", index=False)
    with pytest.raises(UserError, match="there is no column 'thal' for data set 'heart-disease'"):
        load("heart-disease")


def _write_uci(frame: pd.DataFrame, folder: Path) -> None:
    """The rows as UCI has them: a file a hospital, no header, a question mark for what is missing."""
    folder.mkdir()
    for hospital, rows in frame.groupby("hospital"):
        rows[list(IN_ORDER)].to_csv(folder / f"processed.{hospital}.data", header=False, index=False, na_rep="?")


def _same(a: Task, b: Task) -> bool:
    return a.preparation == b.preparation and all(
        torch.equal(one.x.nan_to_num(-1), other.x.nan_to_num(-1)) and torch.equal(one.y, other.y)
        for one, other in zip(a.domains, b.domains, strict=True)
    )


def test_the_files_of_uci_are_the_same_task_as_one_table(folder: Path) -> None:
    frame = _heart()
    frame.loc[[1, 6], ["ca", "thal"]] = np.nan
    _write_uci(frame, folder / "heart_disease")
    from_files = load("heart-disease")
    assert check(data_set("heart-disease")).found == {"rows": 40}
    frame.to_csv(folder / "heart_disease.csv", index=False)
    load.cache_clear()
    assert _same(from_files, load("heart-disease"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "is not there"),
        ("1,2,3\n", "should have 14 numbers in each line, and no header"),
        (",".join(IN_ORDER) + "\n" + ",".join("1" * 14) + "\n", "should have 14 numbers in each line, and no header"),
    ],
)
def test_a_file_of_uci_that_is_missing_or_another_one_is_named(folder: Path, content: str | None, says: str) -> None:
    _write_uci(_heart(), folder / "heart_disease")
    path = folder / "heart_disease/processed.va.data"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=rf"processed\.va\.data' .*{says}"):
        load("heart-disease")


def _write_eicu(folder: Path, hospitals: int = 22, packed: bool = True) -> None:
    """Hospital h has 30 − h stays; stay s was given medicine s % 5, and every third died."""
    stays = [(h * 100 + s, h, s) for h in range(1, hospitals + 1) for s in range(30 - h)]
    patient = pd.DataFrame(
        {
            "patientunitstayid": [stay for stay, _, _ in stays],
            "hospitalid": [h for _, h, _ in stays],
            "hospitaldischargestatus": ["Expired" if s % 3 == 0 else "Alive" for _, _, s in stays],
        }
    )
    patient.loc[0, "hospitaldischargestatus"] = None
    medication = pd.DataFrame(
        {
            "patientunitstayid": [stay for stay, _, _ in stays],
            "drugstartoffset": [5000 if s % 5 == 4 else 10 for _, _, s in stays],
            "drugordercancelled": "No",
            "drugname": ["ASPIRIN " if s % 5 == 0 else None for _, _, s in stays],
            "drughiclseqno": [None if s % 5 == 0 else s % 5 for _, _, s in stays],
            "dosage": "1",
        }
    )
    cancelled = medication.iloc[:1].assign(drugordercancelled="Yes", drughiclseqno=99)
    nameless = medication.iloc[:1].assign(drugname=None)
    folder.mkdir(parents=True, exist_ok=True)
    end = ".csv.gz" if packed else ".csv"
    patient.to_csv(folder / f"patient{end}", index=False)
    pd.concat([medication, cancelled, nameless]).to_csv(folder / f"medication{end}", index=False)


@pytest.mark.parametrize(
    ("name", "packed"), [("eicu", False), ("eicu_demo", True), ("eicu-collaborative-research-database-2.0", True)]
)
def test_eicu_trains_on_the_twenty_largest_hospitals_and_holds_out_the_rest(
    folder: Path, name: str, packed: bool
) -> None:
    _write_eicu(folder / name, packed=packed)
    task = load("eicu")
    assert describe("eicu").domains == ()
    assert task.domain_names == (*(f"hospital {h}" for h in range(1, 21)), "other hospitals")
    assert task.held_out == ("other hospitals",)
    # hospital 1 lost the stay without an outcome
    assert [len(task.domain(d)) for d in ("hospital 1", "hospital 2", "other hospitals")] == [28, 28, 9 + 8]
    # aspirin by name, and ingredients 1 to 4; the cancelled one is not there
    assert task.model.input_shape == (5,)
    bag = task.domain("hospital 2")
    assert bag.x.sum(dim=1).tolist() == [255] * 28
    assert bag.x[0].tolist() == [255, 0, 0, 0, 0]
    assert bag.y.tolist() == [int(s % 3 == 0) for s in range(28)]
    assert eicu.medicines(hours=48).model.input_shape == (4,)


def test_a_medicine_that_no_source_hospital_gave_is_not_shown_to_the_model(folder: Path) -> None:
    _write_eicu(folder / "eicu", packed=False)
    orders = pd.read_csv(folder / "eicu" / "medication.csv")
    new = orders[orders["patientunitstayid"] >= 2200].head(3).assign(drughiclseqno=77)  # hospital 22 is held out
    pd.concat([orders, new]).to_csv(folder / "eicu" / "medication.csv", index=False)
    task = load("eicu")
    assert isinstance(task.preparation, WordPreparation)
    number = task.preparation.words.index("hicl 77")
    assert int((task.domain("other hospitals").x[:, number] > 0).sum()) == 3
    plan = make_plan(task, algorithms=["fedavg"], rounds=1, settings={"model.hidden": [4]})
    data = run_data(plan, task, next(plan.jobs(task)))
    assert data.target is not None
    assert isinstance(data.fitted, FittedWords)
    assert [word for word, seen in zip(data.fitted.words, data.fitted.seen, strict=True) if not seen] == ["hicl 77"]
    assert not data.target.x[:, number].any()
    others = [n for n in range(6) if n != number]
    assert torch.equal(data.target.x[:, others], task.domain("other hospitals").x[:, others])


def test_a_model_of_medicines_keeps_its_words(folder: Path, tmp_path: Path) -> None:
    _write_eicu(folder / "eicu")
    train(load("eicu"), "fedavg", tmp_path / "model", rounds=1, settings={"model.hidden": [4]})
    path = tmp_path / "model" / "preparation.json"
    content = json.loads(path.read_text())
    assert (content["kind"], content["seen"]) == ("words", [True] * 5)
    path.write_text(json.dumps({**content, "seen": [True, True, True, True, False]}))
    fitted = load_model(tmp_path / "model").preparation
    assert isinstance(fitted, FittedWords)
    assert fitted.apply(torch.full((2, 5), 255, dtype=torch.uint8)).tolist() == [[255, 255, 255, 255, 0]] * 2
    path.write_text(json.dumps({**content, "seen": [True]}))
    with pytest.raises(UserError, match="is damaged: it has not one mark for each of its words"):
        load_model(tmp_path / "model")


def test_words_are_fitted_on_the_given_rows_alone() -> None:
    x = torch.tensor([[255, 0, 0], [255, 255, 0], [0, 0, 255]], dtype=torch.uint8)
    domain = Domain("d", x, torch.zeros(3, dtype=torch.int64))
    preparation = WordPreparation(("a", "b", "c"))
    fitted = preparation.fit([(domain, torch.tensor([0, 1]))])
    assert fitted.apply(x).tolist() == [[255, 0, 0], [255, 255, 0], [0, 0, 0]]
    assert fitted.apply(x).dtype == torch.uint8
    assert fitted.apply(torch.ones(1, 3)).tolist() == [[1.0, 1.0, 0.0]]
    assert FittedWords.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted
    preparation.check(domain)
    with pytest.raises(ValueError, match="uint8 with 3 columns"):
        preparation.check(Domain("d", x.float(), domain.y))
    with pytest.raises(ValueError, match="at least one row"):
        preparation.fit([(domain, torch.tensor([], dtype=torch.int64))])


def test_stays_of_a_patient_are_grouped_and_patients_in_two_domains_counted(folder: Path) -> None:
    _write_eicu(folder / "eicu", packed=False)
    assert load("eicu").notes == ()
    patient = pd.read_csv(folder / "eicu" / "patient.csv")
    patient["uniquepid"] = [f"p{number}" for number in range(len(patient))]
    in_first, in_second = patient.index[patient["hospitalid"] == 1], patient.index[patient["hospitalid"] == 2]
    patient.loc[in_first[1:4], "uniquepid"] = "twice here"
    patient.loc[[in_first[5], in_second[5]], "uniquepid"] = "moved"
    patient.loc[patient.index[patient["hospitalid"] > 20][:1], "uniquepid"] = "moved"
    patient.to_csv(folder / "eicu" / "patient.csv", index=False)
    load.cache_clear()
    people = len(patient) - 1 - 2 - 2  # without the stay that has no outcome
    task = load("eicu")
    (shared,) = task.notes
    assert shared.startswith(f"1 of {people} patients have stays in two or more domains")
    first = task.domain("hospital 1").groups
    assert first is not None
    assert sorted(first.unique(return_counts=True)[1].tolist())[-2:] == [1, 3]


@pytest.mark.parametrize("name", ["pacs", "vlcs", "office-home", "office-caltech10", "domainnet"])
def test_the_catalogue_looks_for_image_sets_where_their_tasks_do(name: str) -> None:
    (public,) = (public for public in image_sets.SETS if public.name == name)
    assert data_set(name).places == public.folders


def test_the_catalogue_looks_for_other_folders_where_their_tasks_do() -> None:
    places = {name: data_set(name).places for name in ("camelyon17", "iwildcam", "celeba", "eicu")}
    assert places == {
        "camelyon17": wilds.CAMELYON,
        "iwildcam": wilds.IWILDCAM,
        "celeba": wilds.CELEBA,
        "eicu": eicu.FOLDERS,
    }


def test_eicu_without_enough_hospitals_or_with_another_table_is_refused(folder: Path) -> None:
    _write_eicu(folder / "eicu", hospitals=20)
    with pytest.raises(UserError, match="more than 20 hospitals; these tables have 20"):
        load("eicu")
    (folder / "eicu" / "medication.csv.gz").rename(folder / "eicu" / "other.csv.gz")
    assert not describe("eicu").available
    with pytest.raises(UserError, match=r"has no table patient.csv\(.gz\) or none medication.csv"):
        load("eicu")
    (folder / "eicu" / "medication.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"'medication.csv' is not the medication table of eICU"):
        load("eicu")


def test_eicu_mortality_leaves_out_what_is_known_only_afterwards(folder: Path) -> None:
    rows = 48
    frame = pd.DataFrame(
        {
            "patientunitstayid": np.arange(rows),
            "hospitalid": np.arange(rows) % 7,
            "uniquepid": [f"p{i}" if i not in (8, 9, 12) else "same" for i in range(rows)],
            "hospitaldischargestatus": "Alive",
            "unitdischargestatus": "Alive",
            "region": np.array(["Midwest", "Northeast", "South", "West"])[np.arange(rows) % 4],
            "age": np.linspace(20, 90, rows),
            "died_in_hospital": (np.arange(rows) // 4 % 3 == 0).astype(float),
        }
    )
    frame.loc[[0, 1], "region"] = None
    frame.loc[5, "died_in_hospital"] = np.nan
    frame.to_csv(folder / "eicu_demo_mortality.csv.gz", index=False)
    task = load("eicu-mortality")
    assert isinstance(task.preparation, TablePreparation)
    assert [c.name for c in task.preparation.columns] == ["age"]
    assert sum(map(len, task.domains)) == 45
    assert task.notes[0] == "2 stays of hospitals without a region were left out"
    assert task.classes == ("alive", "expired")
    # row 8 is in the first region, as is 12; row 9 is in the second
    assert task.notes[-1].startswith(
        "1 of 43 groups of 'uniquepid' have rows in two or more domains, the first 'same' in 'Midwest' and 'Northeast'"
    )
    midwest = task.domain("Midwest").groups
    assert midwest is not None
    assert len(midwest) - len(midwest.unique()) == 1


@needs_data("heart_disease.csv")
def test_the_published_heart_disease_file() -> None:
    task = load("heart-disease")
    assert [len(d) for d in task.domains] == [303, 294, 123, 200]
    assert [round(float(d.y.float().mean()), 2) for d in task.domains] == [0.46, 0.36, 0.93, 0.75]
    number, _ = column(task, "chol")
    assert [int(torch.isnan(d.x[:, number]).sum()) for d in task.domains] == [0, 23, 123, 56]


@needs_data("heart_disease.csv")
def test_the_published_rows_in_ucis_files_are_the_same_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = locate("heart_disease.csv")
    assert path is not None
    joined = load("heart-disease")
    _write_uci(pd.read_csv(path), tmp_path / "heart+disease")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    load.cache_clear()
    assert _same(joined, load("heart-disease"))
    load.cache_clear()


@needs_data("tcga_brca.csv")
def test_the_published_tcga_table() -> None:
    task = load("tcga-brca")
    assert {d.name: len(d) for d in task.domains} == {
        "Northeast": 311,
        "South": 196,
        "West": 206,
        "Midwest": 162,
        "Europe": 162,
        "Canada": 51,
    }
    assert task.model.input_shape == (39,)
    assert sum(int(d.y.sum()) for d in task.domains) == 151


@needs_data("eicu_demo")
def test_the_open_eicu_demo() -> None:
    task = load("eicu")
    assert len(task.domains) == 21
    assert task.model.input_shape[0] > 1000
    assert min(len(d) for d in task.domains[:20]) >= 16
    assert len(task.domain("other hospitals")) > 1000
