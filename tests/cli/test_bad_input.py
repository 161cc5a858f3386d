"""A user's mistake gets one sentence and exit code 2, before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MISTAKES = {
    "a task misspelt": (["bench", "rotated-digit"], "did you mean 'rotated-digits'?"),
    "an algorithm misspelt": (["bench", "rotated-digits", "-a", "fedavg,fedprocks"], "did you mean 'fedprox'?"),
    "a domain that does not exist": (["bench", "rotated-digits", "--held-out", "90"], "no domain '90'"),
    "a cohort larger than the clients": (["bench", "rotated-digits", "--cohort", "9"], "cohort of 9"),
    "fewer clients than domains": (["bench", "rotated-digits", "--clients", "2"], "2 clients are too few"),
    "more clients than rows": (["bench", "rotated-digits", "--clients", "5000"], "5000 clients are too many"),
    "a negative rate": (["bench", "rotated-digits", "--set", "lr=-0.1"], "lr = -0.1"),
    "a zero rate": (["bench", "rotated-digits", "--set", "lr=0"], "lr = 0"),
    "a parameter misspelt": (["bench", "rotated-digits", "--set", "batchsize=4"], "did you mean 'batch_size'?"),
    "a parameter of a method that is not there": (["bench", "rotated-digits", "--set", "fedyogi.lr=1"], "'fedyogi'"),
    "a model setting that does not exist": (
        ["bench", "rotated-digits", "--set", "model.depth=4"],
        "no setting 'depth'",
    ),
    "a setting without a value": (["bench", "rotated-digits", "--set", "lr"], "key=value"),
    "no rounds": (["bench", "rotated-digits", "--rounds", "0"], "rounds must be over 0"),
    "no seeds": (["bench", "rotated-digits", "--seeds", "0"], "seeds must be over 0"),
    "seeds in words": (["bench", "rotated-digits", "--seeds", "three"], "--seeds takes a number"),
    "a rule misspelt": (["bench", "rotated-digits", "--select", "oracel"], "oracle"),
    "a partition misspelt": (["bench", "rotated-digits", "--partition", "dirichle:1"], "did you mean 'dirichlet'?"),
    "a validation share of one": (["bench", "rotated-digits", "--validation", "1"], "between 0 and 1"),
    "a quorum over one": (["bench", "rotated-digits", "--quorum", "2"], "quorum"),
    "no workers": (["bench", "rotated-digits", "--workers", "0"], "workers must be at least 1"),
    "an engine that does not exist": (["bench", "rotated-digits", "--engine", "spark"], "no engine 'spark'; there are"),
    "an engine that is not there yet": (
        ["bench", "rotated-digits", "--engine", "vectorized"],
        "local, batched, batched-func and flower",
    ),
    "a training on no engine": (["train", "rotated-digits", "--engine", "rayy", "--out", "m"], "no engine 'rayy'"),
    "a composition without a server half": (["bench", "rotated-digits", "-a", "fedavg+fedprox"], "no server half"),
    "a composition on a reference": (["bench", "rotated-digits", "-a", "erm+fedadam"], "pools the data"),
    "two optimizers": (["bench", "rotated-digits", "-a", "fedadam+fedyogi"], "both bring the optimizer"),
    "momentum under scaffold": (["bench", "rotated-digits", "-a", "scaffold", "--set", "momentum=0.9"], "momentum=0"),
    "a convnet on vectors": (["bench", "linear-sem", "--set", "model.featurizer=convnet"], "needs images"),
    "resume without a folder": (["bench", "rotated-digits", "--resume"], "--resume needs --out"),
    "resume and fresh": (["bench", "rotated-digits", "--out", "x", "--resume", "--fresh"], "one of the two"),
    "resume of nothing": (["bench", "rotated-digits", "--out", "nowhere", "--resume"], "no bench in 'nowhere'"),
    "a file of methods that is not there": (["bench", "rotated-digits", "--use", "no.py"], "no file 'no.py'"),
    "json to nowhere": (
        ["bench", "rotated-digits", "--json", "no/where.json"],
        "there is no folder 'no' to write 'where.json' into",
    ),
    "the same method twice": (["bench", "rotated-digits", "-a", "fedavg,fedavg"], "'fedavg' is given twice"),
    "one label for two variants": (
        ["bench", "rotated-digits", "-a", "a=fedprox:mu=1,a=fedavg"],
        "two variants have the label 'a', fedprox:mu=1 and fedavg",
    ),
    "the same variant under two labels": (
        ["bench", "rotated-digits", "-a", "a=fedprox:mu=1,b=fedprox:mu=1"],
        "'a' and 'b' are the same variant",
    ),
    "a variant's setting misspelt": (["bench", "rotated-digits", "-a", "fedprox:m=1"], "did you mean 'mu'?"),
    "two methods to train": (["train", "rotated-digits", "-a", "fedavg,fedprox", "--out", "m"], "of one method"),
    "two methods to train, each with its option": (
        ["train", "rotated-digits", "-a", "fedavg", "-a", "fedprox", "--out", "m"],
        "of one method, and 2 are given",
    ),
    "an empty list of methods": (["bench", "rotated-digits", "-a", ""], "--algorithms is empty"),
    "a list of methods that is a comma": (["bench", "rotated-digits", "-a", ","], "--algorithms is empty"),
    "no method to train": (["train", "rotated-digits", "-a", ",", "--out", "m"], "no method is given"),
    "an empty method to train": (["train", "rotated-digits", "-a", "", "--out", "m"], "no method is given"),
    "the default typed out as another variant": (
        ["bench", "rotated-digits", "-a", "fedavg,fedprox,q=fedprox:mu=0.1"],
        "'fedprox' and 'q' are the same variant",
    ),
    "a label that pretends to be two": (["bench", "rotated-digits", "-a", "weak=strong=fedavg"], "has a '='"),
    "a truth value for a number": (["bench", "rotated-digits", "--set", "lr=true"], "lr = true: give a number"),
    "a setting for a label that nobody typed": (
        ["bench", "rotated-digits", "-a", "fedavg,fedprox:mu=1", "--set", "fedprox:mu=1.lr=0.5"],
        "a label that you typed",
    ),
    "a report of nothing": (["report", "nowhere"], "there is no bench in 'nowhere'"),
    "a list of something else": (["list", "methods"], "there is no list of 'methods'"),
    "a card of something unknown": (["show", "fedsrc"], "unknown algorithm 'fedsrc'"),
    "training without a common model": (
        ["train", "rotated-digits", "-a", "local-only", "--out", "m"],
        "one model per client",
    ),
    "predicting with no model": (["predict", "nowhere", "x.npy"], "'nowhere' holds no model"),
}


@pytest.mark.parametrize(("arguments", "phrase"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_gets_one_sentence_and_nothing_is_written(
    farfield: Callable[..., Any], tmp_path: Path, arguments: list[str], phrase: str
) -> None:
    ran = farfield(*arguments)
    assert ran.code == 2
    assert phrase in " ".join(ran.err.split())
    assert ran.err.startswith("error: ")
    assert len(ran.err.strip().splitlines()) == 1
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert list(tmp_path.iterdir()) == []


SMALL = ["bench", "rotated-digits", "-a", "fedavg", "--held-out", "0", "--seeds", "1", "--rounds", "2", "--out", "b"]


def test_a_folder_with_this_bench_is_not_run_over(farfield: Callable[..., Any]) -> None:
    assert farfield(*SMALL).code == 0
    again = farfield(*SMALL)
    assert again.code == 2
    assert "add --resume" in again.err


def test_resuming_with_another_configuration_names_the_difference(farfield: Callable[..., Any], tmp_path: Path) -> None:
    assert farfield(*SMALL).code == 0
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    other = farfield(*SMALL, "--set", "lr=0.01", "--resume")
    assert other.code == 2
    assert "settings.fedavg.lr is" in other.err
    assert "0.01 here" in other.err
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_folder_with_other_things_in_it_is_left_alone(farfield: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("do not touch")
    for more in ([], ["--fresh"]):
        ran = farfield(*SMALL, *more)
        assert ran.code == 2
        assert "holds no bench" in ran.err
    assert (tmp_path / "b" / "thesis.tex").read_text() == "do not touch"


def test_fresh_replaces_a_bench_and_keeps_what_is_not_its_own(farfield: Callable[..., Any], tmp_path: Path) -> None:
    assert farfield(*SMALL).code == 0
    (tmp_path / "b" / "notes.txt").write_text("mine")
    assert farfield(*SMALL, "--set", "lr=0.01", "--fresh").code == 0
    assert (tmp_path / "b" / "notes.txt").read_text() == "mine"
    assert "0.01" in (tmp_path / "b" / "bench.toml").read_text()


def test_a_method_file_that_does_not_import_is_named(farfield: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "broken_method.py").write_text("import nothing_of_that_name\n")
    ran = farfield("bench", "rotated-digits", "--use", "broken_method.py")
    assert ran.code == 2
    assert "broken_method.py" in ran.err
    assert "nothing_of_that_name" in ran.err


def test_a_run_that_diverges_is_reported_as_failed_and_the_others_go_on(farfield: Callable[..., Any]) -> None:
    ran = farfield(
        "bench",
        "linear-sem",
        "-a",
        "fedavg,fedsgd",
        "--held-out",
        "all",
        "--seeds",
        "1",
        "--rounds",
        "3",
        "--set",
        "fedavg.lr=1e30",
        "--out",
        "b",
        "--quiet",
    )
    assert ran.code == 1
    assert "failed fedavg" in ran.err
    assert "is the largest that can be" in ran.err
    assert "failed fedsgd" not in ran.err


def test_a_mistake_in_a_variant_is_found_before_the_data_is_read(farfield: Callable[..., Any]) -> None:
    data = ["--data", "nowhere.csv", "--label", "y", "--domain", "d"]
    mistakes = [
        ["-a", "fedavg,fedavg"],
        ["-a", "a=fedavg,b=fedavg"],
        ["-a", "a=fedavg,b=fedavg:lr=0.05", "--set", "lr=0.05"],
        ["-a", "fedavg", "--set", "fedprox.mu=1"],
        ["-a", "fedavg", "--set", "lr=abc"],
        ["-a", "fedavg", "--set", "model.hidden=abc"],
        ["-a", "fedavg", "--set", "model.hiden=[4]"],
        ["-a", "fedavg", "--set", "augment=everything"],
    ]
    for given in mistakes:
        ran = farfield("bench", *data, *given)
        assert ran.code == 2
        assert "nowhere" not in ran.err
        assert "nowhere" not in farfield("train", *data, "--out", "m", *given).err
    assert "of one method" in farfield("train", *data, "--out", "m", "-a", "fedavg,fedprox").err
    for right in (["-a", "fedavg"], ["-a", "fedavg", "--set", "lr=0.5", "--set", "model.hidden=[4]"]):
        assert "nowhere" in farfield("bench", *data, *right).err


@pytest.mark.slow
def test_methods_can_be_given_one_by_one(farfield: Callable[..., Any], tmp_path: Path) -> None:
    assert farfield(*SMALL, "-a", "weak=fedprox:mu=0.01,fedsgd", "--quiet").code == 0
    runs = {path.parent.parent.name for path in tmp_path.rglob("seed-0")}
    assert runs == {"fedavg", "weak", "fedsgd"}


def test_a_trained_variant_is_named_in_the_bench_command_that_is_offered(farfield: Callable[..., Any]) -> None:
    given = ["-a", "weak=fedprox", "--set", "weak.mu=0.01", "--rounds", "1", "--out", "m"]
    ran = farfield("train", "rotated-digits", *given)
    assert ran.code == 0
    assert "--algorithms weak=fedprox" in ran.out
    assert "--set weak.mu=0.01" in ran.out
    assert farfield("train", "rotated-digits", "--rounds", "1", "--out", "plain").code == 0
