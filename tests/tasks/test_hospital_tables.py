"""The tables of hospitals: small files in the published layout, and the published files where they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from farfield.errors import UserError
from farfield.runs.plan import make_plan
from farfield.runs.run_data import run_data
from farfield.tasks import Domain, Task, describe, load
from farfield.tasks.data_folder.catalogue import data_set
from farfield.tasks.data_folder.importing import import_path
from farfield.tasks.data_folder.store import VARIABLE, MissingData, locate
from farfield.tasks.data_folder.verification import check
from farfield.tasks.data_sets import eicu, image_sets, tcga_brca, wilds
from farfield.tasks.data_sets.heart_disease import IN_ORDER
from farfield.tasks.user_data.bag_of_words import FittedWords, WordPreparation
from farfield.tasks.user_data.preparation import TablePreparation
from farfield.tasks.user_data.table_file import read_frame
from farfield.trained.model_folder import load_model
from farfield.trained.training import train
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
    (target,) = data.targets
    assert isinstance(data.fitted, FittedWords)
    assert [word for word, seen in zip(data.fitted.words, data.fitted.seen, strict=True) if not seen] == ["hicl 77"]
    assert not target.x[:, number].any()
    others = [n for n in range(6) if n != number]
    assert torch.equal(target.x[:, others], task.domain("other hospitals").x[:, others])


def test_a_model_of_medicines_keeps_its_words(folder: Path, tmp_path: Path) -> None:
    _write_eicu(folder / "eicu")
    train(load("eicu"), "fedavg", tmp_path / "model", rounds=1, settings={"model.hidden": [4]})
    path = tmp_path / "model" / "preparation.json"
    content = {name: value for name, value in json.loads(path.read_text()).items() if name != "check"}
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


def _demo(folder: Path, stays: int = 24) -> None:
    """The tables of eICU that `eicu-mortality` is joined from, with the codes that they have."""
    folder.mkdir()
    ids = np.arange(100, 100 + stays)
    pd.DataFrame({"apacheapsvarid": ids, "patientunitstayid": ids[::-1], "intubated": 0, "wbc": -1.0}).assign(
        heartrate=np.where(ids % 3 == 0, -1, 80.0)
    ).to_csv(folder / "apacheApsVar.csv.gz", index=False)
    patient = pd.DataFrame(dict.fromkeys(eicu.JOINED["patient"], "x"), index=range(stays + 5))
    patient = patient.assign(
        patientunitstayid=np.arange(100, 105 + stays),
        hospitalid=np.arange(stays + 5) % 5,
        age=np.where(np.arange(stays + 5) % 4 == 0, "> 89", "61"),
        hospitaldischargestatus=np.array(["Alive", "Alive", "Expired"])[np.arange(stays + 5) // 5 % 3],
        uniquepid=[f"p{number}" for number in range(stays + 5)],
    )
    patient.to_csv(folder / "patient.csv.gz", index=False)
    regions = ["Midwest", "Northeast", "South", "West", None]
    hospital = pd.DataFrame({"hospitalid": range(5), "numbedscategory": "<100", "region": regions})
    hospital.assign(teachingstatus=["t", "f", "True", "False", "f"]).to_csv(folder / "hospital.csv", index=False)
    predictors = pd.DataFrame(dict.fromkeys(eicu.JOINED["apachePredVar"], 0), index=range(stays))
    predictors.assign(patientunitstayid=ids, aids=1, electivesurgery=-1).to_csv(
        folder / "apachePredVar.csv", index=False
    )


def test_eicu_mortality_is_joined_from_the_published_tables(folder: Path) -> None:
    _demo(folder / "eicu_demo")
    assert describe("eicu-mortality").available
    paths = [next((folder / "eicu_demo").glob(f"{name}.csv*")) for name in (eicu.DAY_ONE, *eicu.JOINED)]
    frame = eicu.day_one(*paths)
    assert frame["patientunitstayid"].tolist() == list(range(123, 99, -1))
    assert frame["age"].value_counts().to_dict() == {61.0: 18, 90.0: 6}
    assert int(frame["heartrate"].isna().sum()) == 8
    assert frame["wbc"].isna().all()
    assert frame["electivesurgery"].isna().all()
    assert frame.loc[frame["hospitalid"].isin([0, 2]), "teachingstatus"].all()
    assert not frame.loc[frame["hospitalid"].isin([1, 3, 4]), "teachingstatus"].any()
    assert "apacheapsvarid" not in frame
    task = load("eicu-mortality")
    assert task.domain_names == ("Midwest", "Northeast", "South", "West")
    assert [len(domain) for domain in task.domains] == [5, 5, 5, 5]
    assert task.notes[0] == "4 stays of hospitals without a region were left out"
    load.cache_clear()
    (folder / "eicu_demo" / "hospital.csv").unlink()
    assert not describe("eicu-mortality").available
    with pytest.raises(UserError, match=r"eicu_demo' has no table hospital \(\.csv or \.csv\.gz\)"):
        load("eicu-mortality")


@needs_data("eicu_demo_mortality.csv.gz")
def test_the_tables_of_the_demo_joined_are_the_ready_table() -> None:
    ready, apart = locate(eicu.MORTALITY), locate("eicu_demo")
    assert ready is not None
    assert apart is not None
    joined = eicu.day_one(*(apart / f"{name}.csv.gz" for name in (eicu.DAY_ONE, *eicu.JOINED)))
    pd.testing.assert_frame_equal(joined, read_frame(ready))


def test_the_ready_table_of_eicu_is_listed_imported_and_counted(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _demo(folder / "eicu_demo")
    paths = [next((folder / "eicu_demo").glob(f"{name}.csv*")) for name in (eicu.DAY_ONE, *eicu.JOINED)]
    source = tmp_path_factory.mktemp("downloads") / "eicu_demo_mortality.csv.gz"
    eicu.day_one(*paths).to_csv(source, index=False)
    known = data_set("eicu-mortality")
    assert import_path(source).path == folder / source.name
    assert (check(known).found, check(known).counts) == ({"rows": 24}, "rows 24 of 2,205")
    assert known.terms == "ODbL 1.0"
    assert "apacheApsVar" in known.get


def _flamby(frame: pd.DataFrame, folder: Path) -> Path:
    """The table as FLamby has it: patients without region, and the region of each site."""
    folder.mkdir()
    frame.drop(columns=["region", "tss_code"]).to_csv(folder / "brca.csv", index=False)
    sites = frame[["tss_code", "region"]].drop_duplicates()
    sites = sites.set_axis(["TSS Code", "Region"], axis=1).assign(Country="USA", State="NY", **{"Source Site": "x"})
    sites.to_csv(folder / "centers.csv", index=False)
    return folder


def _brca() -> pd.DataFrame:
    regions = np.array(["Canada", "Europe", "Midwest", "Northeast", "South", "West", "Other"])
    sites = np.array(["C8", "A8", "AR", "BH", "5T", "4H", "JL"])
    number = np.arange(70)
    return pd.DataFrame(
        {
            "pid": [f"TCGA-{sites[i % 7]}-A{i:03d}" for i in number],
            "region": regions[number % 7],
            "tss_code": sites[number % 7],
            "age_at_index": 30 + number % 50,
            "E": (number // 7 % 2).astype(float),
            "T": 100.0 + number,
        }
    )


def test_flambys_two_files_are_joined_by_the_site_in_the_barcode(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = _flamby(_brca(), tmp_path_factory.mktemp("downloads") / "fed_tcga_brca")
    pd.testing.assert_frame_equal(tcga_brca.read(source).reset_index(drop=True), _brca(), check_dtype=False)
    assert import_path(source).path == folder / "tcga_brca"
    assert check(data_set("tcga-brca")).found == {"rows": 60}
    task = load("tcga-brca")
    assert {domain.name: len(domain) for domain in task.domains} == dict.fromkeys(tcga_brca.REGIONS, 10)
    assert task.model.input_shape == (1,)
    assert task.notes[0] == "10 patients of sites outside the six regions were left out"


def test_a_site_without_a_region_is_named(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = _flamby(_brca(), tmp_path_factory.mktemp("downloads") / "flamby")
    centers = pd.read_csv(source / "centers.csv")
    centers[centers["TSS Code"] != "5T"].to_csv(source / "centers.csv", index=False)
    with pytest.raises(UserError, match="has no region for the site of patient 'TCGA-5T-A004'"):
        import_path(source)
    assert not list(folder.iterdir())


@needs_data("tcga_brca.csv")
def test_the_published_tcga_rows_in_flambys_files_are_the_same_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = locate("tcga_brca.csv")
    assert path is not None
    joined = load("tcga-brca")
    _flamby(pd.read_csv(path), tmp_path / "fed_tcga_brca")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    load.cache_clear()
    assert _same(joined, load("tcga-brca"))
    load.cache_clear()


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


def test_inverted_labels_are_found_by_the_class_counts(folder: Path) -> None:
    sick = {"cleveland": (303, 139), "hungarian": (294, 106), "switzerland": (123, 115), "va": (200, 149)}
    frame = _heart(920)
    frame["hospital"] = np.repeat(list(sick), [rows for rows, _ in sick.values()])
    frame["num"] = np.concatenate([np.arange(rows) < ill for rows, ill in sick.values()]).astype(int)
    frame.to_csv(folder / "heart_disease.csv", index=False)
    assert check(data_set("heart-disease")).state == "good"
    frame.assign(num=1 - frame["num"]).to_csv(folder / "heart_disease.csv", index=False)
    checked = check(data_set("heart-disease"))
    assert checked.state == "other"
    assert checked.counts.startswith("labels differ: cleveland healthy 139, published 164; cleveland diseased 164, ")
    assert checked.counts.endswith(" and 4 more")
