"""Variants: how they are read, what wins, what a folder says of them, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tomli_w
from pydantic import Field

import farfield as ff
from farfield.algorithms import FedAvg, build, names
from farfield.algorithms import method as class_of
from farfield.algorithms.fedprox import FedProx
from farfield.errors import UserError
from farfield.records import RecordsError
from farfield.report.collect import collect
from farfield.report.page import render_report, write_report
from farfield.runs.plan import Job, folder_name, make_plan
from farfield.runs.presets import with_preset
from farfield.runs.variants import Variant, parse_variants, read_variants
from tests.older_records import without_checksums
from tests.toy import task


def read(given: Any) -> list[tuple[str, str, Mapping[str, Any]]]:
    return [(v.label, v.method, v.settings) for v in read_variants(given)]


def settings_of(plan: Any, key: str) -> dict[str, Any]:
    return {label: plan.settings[label][key] for label in plan.algorithms}


def test_the_command_lines_text_is_read_as_labels_methods_and_settings() -> None:
    text = "fedavg, fedprox:mu=0.1, weak=fedprox:mu=0.001:lr=0.05, fediir+fedomg:kappa=0.2"
    assert read(text) == [
        ("fedavg", "fedavg", {}),
        ("fedprox:mu=0.1", "fedprox", {"mu": 0.1}),
        ("weak", "fedprox", {"mu": 0.001, "lr": 0.05}),
        ("fediir+fedomg:kappa=0.2", "fediir+fedomg", {"kappa": 0.2}),
    ]


def test_a_label_is_the_same_however_the_settings_were_spelt() -> None:
    for spelt in ("fedprox:mu=0.10:lr=1", " fedprox : mu = 1e-1 : lr = 1.0 "):
        assert [v.label for v in parse_variants(spelt)] == ["fedprox:mu=0.1:lr=1"]
    assert ff.method("fedprox", mu=0.1, lr=1).label == "fedprox:mu=0.1:lr=1"


def test_commas_inside_brackets_do_not_separate_and_plain_words_are_text() -> None:
    assert read("fedavg:schedule=[1, 2,3]:weighting=uniform,fedsgd") == [
        ("fedavg:schedule=[1,2,3]:weighting=uniform", "fedavg", {"schedule": (1, 2, 3), "weighting": "uniform"}),
        ("fedsgd", "fedsgd", {}),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "fedprox:mu=0.1",
        "weak=fedprox:mu=0.001",
        "fedavg:schedule=[1,2]",
        "fediir+fedomg",
        "fedavg:clip=none",
        "FedAvg (free)=fedavg:clip=none:lr=1e-05",
        "fedomg:rescale=1+kappa^2",
        "fedomg:rescale=none",
        "fedadam:server_bias_correction=true",
    ],
)
def test_a_variant_as_text_reads_back_as_itself(text: str) -> None:
    (variant,) = parse_variants(text)
    assert str(variant) == text
    assert parse_variants(str(variant)) == [variant]


def test_every_parameter_of_every_method_reads_back_from_its_text() -> None:
    ours = [name for name in names() if class_of(name).__module__.startswith("farfield.algorithms")]
    assert len(ours) > 15
    for name in (*ours, "scaffold+fedadam"):
        variant = ff.method(name, **build(name).params.model_dump())
        assert parse_variants(str(variant)) == [variant]


def test_none_is_typed_as_a_word_where_a_parameter_can_be_none() -> None:
    assert read("fedavg:clip=none") == read([ff.method("fedavg", clip=None)])
    assert parse_variants("fedavg:clip=None")[0].settings == {"clip": None}
    assert parse_variants("fedomg:rescale=none")[0].settings == {"rescale": "none"}  # a choice of its own
    plan = make_plan(task(3), algorithms="fedavg,a=fedavg:clip=2", settings={"clip": "none"})
    assert settings_of(plan, "clip") == {"fedavg": None, "a": 2.0}


def test_a_setting_of_none_is_in_the_folder_and_in_the_table(tmp_path: Path) -> None:
    given = "free=fedavg:clip=none,fedavg"
    options: dict[str, Any] = {"held_out": ["a"], "seeds": 1, "rounds": 1, "settings": {"fedavg.clip": 1}}
    result = ff.bench(task(3), given, **options, out=tmp_path / "b")
    plan = tomllib.loads((tmp_path / "b" / "bench.toml").read_text())
    assert plan["variants"][0] == {"label": "free", "method": "fedavg", "settings": {"clip": "none"}}
    assert "| free fedavg: clip=none |" in str(result)
    assert ff.bench(task(3), given, **options, out=tmp_path / "b", resume=True).rows == result.rows


def test_python_takes_names_methods_labels_classes_instances_and_a_single_one() -> None:
    given = ["fedavg", ff.method("fedprox", mu=0.1), {"weak": ff.method("fedprox", mu=0.001), "text": "fedsgd"}]
    assert [label for label, _, _ in read(given)] == ["fedavg", "fedprox:mu=0.1", "weak", "text"]
    assert read([FedProx, FedProx(FedProx.Params(mu=0.5))]) == [
        ("fedprox", "fedprox", {}),
        ("fedprox:mu=0.5", "fedprox", {"mu": 0.5}),
    ]
    assert read("fedavg") == read(["fedavg"]) == read(FedAvg) == read(FedAvg()) == [("fedavg", "fedavg", {})]
    assert read({"weak": FedProx}) == [("weak", "fedprox", {})]


def test_a_class_that_nobody_registered_is_registered_and_runs(tmp_path: Path) -> None:
    class Scaled(FedAvg):
        """Adds a parameter to FedAvg."""

        name: ClassVar[str] = "scaled-for-a-test"

        class Params(FedAvg.Params):
            scale: float = Field(1.0, description="of nothing")

    assert Scaled.name not in names()
    result = ff.bench(
        task(3), [Scaled, Scaled(Scaled.Params(scale=2.0))], held_out=["a"], seeds=1, rounds=1, out=tmp_path / "b"
    )
    assert Scaled.name in names()
    assert [(r["algorithm"], r["settings"]["scale"]) for r in result.rows] == [
        ("scaled-for-a-test", 1.0),
        ("scaled-for-a-test:scale=2", 2.0),
    ]


class Unnamed(FedAvg):
    """Has the name of FedAvg, which is not its own."""


class Taken(FedAvg):
    """Has the name of another method."""

    name: ClassVar[str] = "fedprox"


class Configured(FedAvg):
    """Takes a value beside its parameters, which no run would keep."""

    name: ClassVar[str] = "configured-for-a-test"

    def __init__(self, params: Any = None, server: Any = None, rounds: int | None = None, k: int = 1) -> None:
        super().__init__(params, server, rounds)
        self.k = k


class Counted(FedAvg):
    """Takes no parameters at all, so that nothing can make it for a run."""

    name: ClassVar[str] = "counted-for-a-test"

    def __init__(self, k: int) -> None:
        super().__init__()


class Replaced(FedAvg):
    """Has an __init__ that keeps nothing beside the parameters."""

    name: ClassVar[str] = "replaced-for-a-test"

    def __init__(self, params: Any = None, server: Any = None, rounds: int | None = None) -> None:
        super().__init__(params, server, rounds)


def marked() -> FedAvg:
    """An instance that was given an attribute afterwards."""
    algorithm = FedAvg()
    algorithm.k = 3  # type: ignore[attr-defined]
    return algorithm


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda: Unnamed, "give Unnamed a name of its own, as in name = 'unnamed': 'fedavg' is taken"),
        (lambda: Unnamed(), "give Unnamed a name of its own"),
        (lambda: Taken, "the name 'fedprox' is taken by farfield"),
        (lambda: Configured(k=7), "put k into Configured.Params"),
        (lambda: Counted(3), "put what it sets into Counted.Params"),
        (lambda: Counted, "Counted cannot be made for a run, which calls Counted(params, server, rounds)"),
        (lambda: Replaced(), "put what it sets into Replaced.Params"),
        (marked, "put k into FedAvg.Params"),
        (lambda: FedAvg({"lr": 0.1}), "FedAvg takes its parameters as FedAvg.Params(…), and this one has {'lr': 0.1}"),
        (lambda: FedAvg(FedProx.Params(mu=1.0)), "this FedAvg has the parameters FedProx.Params"),
        (lambda: FedAvg(rounds=5), "this FedAvg has rounds=5, which the bench decides"),
        (lambda: FedProx(server=build("fedomg")), "give the composition by name: farfield.method"),
        (lambda: build("fedprox+fedadam"), "give the composition by name: farfield.method"),
    ],
)
def test_a_class_or_an_instance_that_a_run_could_not_make_again_gets_a_sentence(
    given: Callable[[], Any], sentence: str
) -> None:
    with pytest.raises(UserError) as error:
        read_variants([given()])
    assert sentence in str(error.value)


def test_a_class_with_an_init_that_can_be_called_by_a_run_is_taken() -> None:
    assert read(Configured) == [("configured-for-a-test", "configured-for-a-test", {})]


def test_a_class_can_stand_for_its_name_in_a_method() -> None:
    assert ff.method(FedProx, mu=0.5) == ff.method("fedprox", mu=0.5)


def test_a_variant_cannot_be_changed_and_can_be_a_key() -> None:
    variant = ff.method("fedavg", schedule=[1, 2], lr=0.5)
    with pytest.raises(TypeError):
        variant.settings["lr"] = 1.0  # type: ignore[index]
    with pytest.raises(AttributeError):
        variant.settings["schedule"].append(3)
    same = ff.method("fedavg", lr=0.5, schedule=(1, 2)).model_copy(update={"label": variant.label})
    assert {variant: 1, same: 2, ff.method("fedavg"): 3} == {variant: 2, ff.method("fedavg"): 3}
    assert pickle.loads(pickle.dumps(variant)) == copy.deepcopy(variant) == variant


def test_a_method_is_frozen_and_shows_how_it_is_made() -> None:
    variant = ff.method("fedprox", mu=0.1)
    assert repr(variant) == "method('fedprox', mu=0.1)"
    assert repr(read_variants({"weak": variant})[0]) == "{'weak': method('fedprox', mu=0.1)}"
    with pytest.raises(ValueError, match="frozen"):
        variant.label = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: ff.method("fedprocks"), "did you mean 'fedprox'"),
        (lambda: ff.method("fedprox", nu=1.0), "fedprox has no parameter 'nu'"),
        (lambda: ff.method("fedprox", mu=-1.0), "fedprox: mu = -1.0: "),
        (lambda: ff.method("fedprox", **{"model.hidden": [4]}), "the model is the same for all variants"),
        (lambda: ff.method("fedprox", mu=True), "fedprox: mu = true: give a number"),
        (lambda: ff.method("fedavg", lr=None), "fedavg: lr = None: "),
        (lambda: ff.method("fedprox:mu=0.1"), "settings are keywords, as in farfield.method('fedprox', mu=0.1)"),
        (lambda: ff.method("fedavg,fedprox"), "'fedavg,fedprox' is more than a method's name"),
        (lambda: ff.method(3), "a method has a name or a class, and 3 is neither"),  # type: ignore[arg-type]
        (lambda: ff.method(""), "a method's name is missing"),
        (lambda: read_variants(3), "3 stands for no method"),  # type: ignore[arg-type]
        (lambda: read_variants([]), "no method is given"),
        (lambda: read_variants({}), "no method is given"),
        (lambda: read_variants(""), "no method is given"),
        (lambda: read_variants(" , "), "no method is given"),
        (lambda: make_plan(task(3), algorithms=[]), "no method is given"),
        (lambda: ff.train(task(3), "", "nowhere"), "no method is given"),
        (lambda: read_variants("fedprox:mu=true"), "fedprox: mu = true: give a number"),
        (
            lambda: read_variants("fedprox.mu=0.2"),
            "'fedprox.mu=0.2' is no variant; a variant is written [label=]method",
        ),
        (lambda: read_variants("fedprox.mu=0.2"), "so here 'fedprox:mu=0.2'"),
        (lambda: read_variants("fedprox;mu=0.2:lr=1"), "so here 'fedprox:mu=0.2:lr=1'"),
        (lambda: read_variants("fedprox(mu=0.2, lr=1)"), "so here 'fedprox:mu=0.2:lr=1'"),
        (lambda: read_variants("fedprox mu=0.2"), "so here 'fedprox:mu=0.2'"),
        (lambda: read_variants("one;mu=0.2"), "'one;mu=0.2' is no variant; a variant is written [label=]method"),
        (lambda: read_variants("weak=fedprocks"), "did you mean 'fedprox'?"),
        (lambda: read_variants("weak="), "'weak=': the method's name is missing"),
        (lambda: read_variants("fedavg+"), "'fedavg+': the method's name is missing"),
        (lambda: read_variants("+fedavg:lr=1"), "'+fedavg:lr=1': the method's name is missing"),
        (lambda: read_variants("weak:fedprox:mu=1"), "a label stands before an equals sign: 'weak=fedprox:mu=1'"),
        (lambda: read_variants("weak=strong=fedavg"), "the label 'weak=strong' of 'fedavg' has a '='"),
        (lambda: read_variants({"fedprox:mu=1": "fedavg"}), "the label 'fedprox:mu=1' of 'fedavg' has a ':'"),
        (lambda: read_variants({"a,b": "fedavg"}), "the label 'a,b' of 'fedavg' has a ','"),
        (lambda: read_variants({"it's": "fedavg"}), "has a quote or a bracket that nothing closes"),
        (lambda: read_variants({"FedProx": "fedavg"}), "the label 'FedProx' of 'fedavg' is the name of another method"),
        (lambda: make_plan(task(3), algorithms="fedprox,q=fedprox:mu=0.1"), "'fedprox' and 'q' are the same variant"),
        (
            lambda: make_plan(task(3), algorithms="a=fedavg,b=fedavg:lr=0.05", settings={"lr": 0.05}),
            "'a' and 'b' are the same variant",
        ),
        (
            lambda: make_plan(task(3), algorithms="a=fedavg,b=fedavg:lr=0.1"),  # what the task sets
            "'a' and 'b' are the same variant, fedavg with the same settings",
        ),
        (
            lambda: make_plan(task(3), algorithms="fedavg,fedprox,fediir", settings={"gama": 1}),
            "fedavg, fedprox and fediir have no parameter 'gama'; did you mean 'gamma'?",
        ),
        (lambda: make_plan(task(3), algorithms="weak=fedavg", settings={"weka.lr": 1}), "did you mean 'weak'?"),
        (
            lambda: make_plan(task(3), algorithms="fedprox:mu=1,fedavg", settings={"fedprox:mu=1.lr": 1}),
            "a setting is for a method or for a label that you typed",
        ),
        (
            lambda: make_plan(task(3), algorithms="fedprox:mu=1,fedavg", settings={"fedprox:mu": "1.lr=1"}),
            "a setting is for a method or for a label that you typed",
        ),
        (lambda: read_variants([3]), "3 stands for no method"),
        (lambda: read_variants("fedprox:0.1"), "'0.1' is none"),
        (lambda: read_variants("fedprox:mu="), "'mu=' is none"),
        (lambda: read_variants("fedprox:mu=1:mu=2"), "sets mu twice"),
        (lambda: read_variants("=fedprox"), "a label must have visible characters"),
        (lambda: read_variants("fedprox:mu=0.1,lr=0.05"), "follows after a colon: 'fedprox:mu=0.1:lr=0.05'"),
        (lambda: read_variants("fedavg=fedprox"), "the label 'fedavg' of 'fedprox' is the name of another method"),
        (lambda: read_variants("erm+fedomg=fedprox"), "is the name of another method"),
        (lambda: read_variants("model=fedprox"), "stands for the model's settings"),
        (lambda: read_variants({"two": "fedavg,fedprox"}), "a label is a text that stands for one variant"),
        (lambda: read_variants("fedavg,fedavg"), "'fedavg' is given twice"),
        (lambda: read_variants("fedprox:mu=1,fedprox:mu=1.0"), "'fedprox:mu=1' is given twice"),
        (lambda: read_variants([ff.method("fedprox", mu=1.0)] * 2), "'fedprox:mu=1' is given twice"),
        (lambda: read_variants("a=fedprox:mu=1,a=fedprox:mu=2"), "two variants have the label 'a'"),
        (lambda: make_plan(task(3), algorithms="a=fedprox:mu=1,b=fedprox:mu=1"), "'a' and 'b' are the same variant"),
        (lambda: make_plan(task(3), algorithms="a=fedavg,fedavg"), "'a' and 'fedavg' are the same variant"),
        (lambda: make_plan(task(3), algorithms="a=fedavg", settings={"b.lr": 1.0}), "'b.lr' is for 'b', which is not"),
        (lambda: make_plan(task(3), algorithms="a=fedavg", settings={"a.mu": 1.0}), "fedavg has no parameter 'mu'"),
    ],
)
def test_a_variant_that_cannot_be_gets_a_sentence(made: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        made()
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_each_level_of_settings_wins_over_the_one_before() -> None:
    variants = "fedavg,fedprox,a=fedprox,b=fedprox:lr=0.6"
    assert task(3).defaults["lr"] == 0.1

    def rates(**settings: float) -> list[float]:
        given = {key.replace("_lr", ".lr"): value for key, value in settings.items()}
        plan = make_plan(task(3), algorithms=variants, settings={"a.mu": 0.5, **given})
        return list(settings_of(plan, "lr").values())

    assert rates() == [0.1, 0.1, 0.1, 0.6]
    assert rates(lr=0.2) == [0.2, 0.2, 0.2, 0.6]
    assert rates(fedprox_lr=0.3, lr=0.2) == [0.2, 0.3, 0.3, 0.6]
    assert rates(a_lr=0.4, fedprox_lr=0.3, lr=0.2) == [0.2, 0.3, 0.4, 0.6]
    assert rates(b_lr=0.4, a_lr=0.4, fedprox_lr=0.3, lr=0.2) == [0.2, 0.3, 0.4, 0.6]


def test_two_labels_of_one_method_differ_by_what_is_set_for_the_labels() -> None:
    plan = make_plan(task(3), algorithms="a=fedavg,b=fedavg", settings={"a.lr": 0.5})
    assert settings_of(plan, "lr") == {"a": 0.5, "b": 0.1}
    with pytest.raises(UserError, match="'a' and 'b' are the same variant"):
        make_plan(task(3), algorithms="a=fedavg,b=fedavg", settings={"fedavg.lr": 0.5})


def test_what_is_set_for_a_label_is_the_variants_own_in_records_and_tables(tmp_path: Path) -> None:
    settings = {"weak.mu": 0.001, "weak.lr": 0.2, "fedprox.lr": 0.3}
    result = ff.bench(
        task(3), "fedprox,weak=fedprox", held_out=["a"], seeds=1, rounds=1, settings=settings, out=tmp_path / "b"
    )
    assert [variant["settings"] for variant in result.sweep.plan["variants"]] == [{}, {"mu": 0.001, "lr": 0.2}]
    assert [row["own_settings"] for row in result.table()] == ["", "mu=0.001, lr=0.2"]
    page = result.report().read_text()
    assert "mu=0.001, lr=0.2" in page[page.index("<caption>Variants</caption>") :].split("</table>")[0]


def test_a_setting_that_others_win_over_everywhere_gets_a_note() -> None:
    def notes(variants: str, **settings: float) -> list[str]:
        given = {key.replace("__", "."): value for key, value in settings.items()}
        return [n for n in make_plan(task(3), algorithms=variants, settings=given).notes if "effect" in n]

    assert notes("fedavg,fedprox:mu=1,weak=fedprox:mu=2", fedprox__mu=0.5) == [
        "fedprox.mu has no effect: every variant sets its own"
    ]
    assert notes("fedavg,fedprox", mu=0.5, fedprox__mu=0.2) == ["mu has no effect: fedprox.mu wins over it"]
    assert notes("a=fedprox,fedprox:mu=1", mu=0.5, a__mu=0.2) == [
        "mu has no effect: a.mu and the variants' own settings win over it"
    ]
    assert notes("fedprox,weak=fedprox:mu=2", fedprox__mu=0.5) == []
    assert notes("fedprox:lr=0.5,fedavg", lr=0.2) == []


def test_a_presets_setting_that_a_variant_has_for_itself_gets_no_note() -> None:
    chosen = with_preset("fediir/pacs", {"algorithms": "strong=fediir:gamma=0.5"}, own_rows=False)
    assert "fediir.gamma" not in chosen.settings
    assert "lr" in chosen.settings


def test_a_part_of_a_composition_is_set_by_its_name_under_any_label() -> None:
    plan = make_plan(task(3), algorithms="mine=fediir+fedomg,fedavg", settings={"fedomg.kappa": 0.25, "mine.lr": 0.5})
    assert plan.settings["mine"]["kappa"] == 0.25
    assert settings_of(plan, "lr") == {"mine": 0.5, "fedavg": 0.1}


def test_variants_with_one_step_a_round_get_their_rounds_by_label() -> None:
    plan = make_plan(task(3), algorithms="fedavg,slow=fedsgd:lr=0.01,fedsgd", held_out=["a"], rounds=2)
    # Domains b and c keep 44 and 51 training rows, 48 on average: six batches of 8 an epoch.
    assert plan.rounds_of == {"fedavg": 2, "slow": 12, "fedsgd": 12}


def test_a_label_decides_the_folder_and_a_plain_name_keeps_its_own() -> None:
    folders = {label: Job(label, "d", 0).folder(Path()).parts[1] for label in ("fedavg", "fediir+fedomg", "a/b: 1")}
    assert folders == {"fedavg": "fedavg", "fediir+fedomg": "fediir+fedomg", "a/b: 1": "a%2Fb%3A 1"}
    assert Job("fedprox:mu=0.1", "d", 0).folder(Path()).parts[1] == "fedprox%3Amu=0.1"
    assert folder_name("../up", keep="+=") == "%2E%2E%2Fup"


def test_a_preset_may_name_variants_and_its_settings_reach_them() -> None:
    given = {"algorithms": "strong=fediir:gamma=0.5,fedavg,fediir"}
    chosen = with_preset("fediir/pacs", given, own_rows=False)
    assert [variant.label for variant in chosen.options["algorithms"]] == ["strong", "fedavg", "fediir"]
    plan = make_plan(task(4), **{**chosen.options, "validation": 0.2, "rounds": 1, "held_out": ["a"]})
    assert plan.settings["strong"]["gamma"] == 0.5  # the variant's own wins over the preset
    assert plan.settings["fediir"]["gamma"] == chosen.settings["fediir.gamma"] != 0.5
    assert settings_of(plan, "lr") == {"strong": 2.5e-3, "fedavg": 2.5e-3, "fediir": 2.5e-3}


class Idle(FedAvg):
    """FedAvg with a parameter that does nothing while another is zero."""

    name: ClassVar[str] = "idle-for-a-test"

    class Params(FedAvg.Params):
        passes: int = Field(0, description="passes")
        meta_lr: float = Field(0.1, description="rate of a pass")

        def idle(self) -> dict[str, str]:
            return {} if self.passes else {"meta_lr": "passes is 0"}


def test_a_setting_that_was_given_and_has_no_effect_gets_a_note() -> None:
    note = "{}: meta_lr has no effect: passes is 0"
    given = {"a": Idle, "b": ff.method(Idle.name if Idle.name in names() else ff.register(Idle).name, meta_lr=0.5)}
    plan = make_plan(task(3), algorithms=[given, {"c": ff.method(Idle.name, meta_lr=0.5, passes=1)}])
    assert [n for n in plan.notes if "effect" in n] == [note.format("b")]
    everywhere = make_plan(task(3), algorithms=[given], settings={"meta_lr": 0.2})
    assert [n for n in everywhere.notes if "effect" in n] == [note.format("a"), note.format("b")]


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> ff.BenchResult:
    """FedAvg under another label, two settings of FedProx and a labelled reference, on two held-out domains."""
    given = [{"base": "fedavg"}, ff.method("fedprox", mu=0.5), {"weak": ff.method("fedprox", mu=0.01)}, {"all": "erm"}]
    out = tmp_path_factory.mktemp("variants") / "b"
    return ff.bench(task(3), given, held_out=["a", "b"], seeds=1, rounds=2, out=out)


def test_rows_go_by_label_and_carry_method_and_settings(benched: ff.BenchResult) -> None:
    rows = [row for row in benched.rows if row["held_out"] == "a"]
    assert [(row["algorithm"], row["method"], row["settings"].get("mu")) for row in rows] == [
        ("base", "fedavg", None),
        ("fedprox:mu=0.5", "fedprox", 0.5),
        ("weak", "fedprox", 0.01),
        ("all", "erm", None),
    ]
    assert len({row["model_sha256"] for row in rows}) == 4


def test_a_variants_model_is_that_of_its_method_with_these_settings(benched: ff.BenchResult, tmp_path: Path) -> None:
    alone = ff.bench(
        task(3), "fedprox", held_out=["a"], seeds=1, rounds=2, settings={"fedprox.mu": 0.01}, out=tmp_path / "b"
    )
    weak = next(row for row in benched.rows if (row["algorithm"], row["held_out"]) == ("weak", "a"))
    assert alone.rows[0]["model_sha256"] == weak["model_sha256"]


def test_the_folder_says_the_variants_and_a_format(benched: ff.BenchResult) -> None:
    plan = tomllib.loads((benched.folder / "bench.toml").read_text())
    assert plan["format"] == 3
    assert plan["variants"][2] == {"label": "weak", "method": "fedprox", "settings": {"mu": 0.01}}
    config = tomllib.loads((benched.folder / "runs" / "weak" / "a" / "seed-0" / "config.toml").read_text())
    assert (config["algorithm"], config["method"], config["settings"]["mu"]) == ("weak", "fedprox", 0.01)


def test_differences_are_to_the_first_variant_of_fedavg_and_references_are_known_by_method(
    benched: ff.BenchResult,
) -> None:
    table = benched.results()
    assert table.baseline == "base"
    assert [(line.algorithm, line.reference) for line in table.lines][2:] == [("weak", False), ("all", True)]
    assert [(r["algorithm"], r["method"], r["own_settings"]) for r in table.to_dicts()][1:3] == [
        ("fedprox:mu=0.5", "fedprox", "mu=0.5"),
        ("weak", "fedprox", "mu=0.01"),
    ]
    text = str(benched)
    assert "vs base" in text
    assert "| weak fedprox: mu=0.01 |" in text


def test_a_variant_labelled_fedavg_is_the_baseline_wherever_it_stands(tmp_path: Path) -> None:
    result = ff.bench(task(3), "a=fedavg:lr=0.5,fedavg", held_out=["a"], seeds=1, rounds=1, out=tmp_path / "b")
    assert result.results().baseline == "fedavg"


def test_rows_are_called_variants_where_a_method_stands_there_twice(benched: ff.BenchResult) -> None:
    page = render_report(benched.sweep, date(2026, 1, 1))
    assert "<span>4 variants of 3 methods</span>" in page
    headings = set(re.findall(r'<th scope="col" class="text"><span>([^<]*)</span>', page))
    assert "variant" in headings
    for words in ("<h3>Parameters of the variants</h3>", "<h4>Where variants differ</h4>", "<dt>variants</dt>"):
        assert words in page
    first = [table.split("</span>")[0].rsplit(">", 1)[1] for table in page.split("<caption>")[1:]]
    assert first.count("variant") >= 5
    assert "method" not in first
    assert "variant minus base" in page
    assert benched.results().grid().columns[0].heading == "variant"


def test_the_report_says_what_each_variant_is(benched: ff.BenchResult) -> None:
    page = render_report(benched.sweep, date(2026, 1, 1))
    rows = page[page.index("<caption>Variants</caption>") :].split("</table>")[0].split("<tr>")[2:]
    cells = [[cell.split("</span>")[0] for cell in row.split("<span>")[1:]] for row in rows]
    assert cells == [
        ["base", "fedavg", "–"],
        ["fedprox:mu=0.5", "fedprox", "mu=0.5"],
        ["weak", "fedprox", "mu=0.01"],
        ["all", "erm", "–"],
    ]
    assert "Differences to base" in page


def old_format(folder: Path) -> None:
    """Turn a bench of plain names into what the version before wrote: no format, no variants, no method."""
    path = without_checksums(folder) / "bench.toml"
    plan = tomllib.loads(path.read_text())
    del plan["format"]
    plan["algorithms"] = [variant["method"] for variant in plan.pop("variants")]
    path.write_text(tomli_w.dumps(plan))
    for path in folder.rglob("config.toml"):
        config = tomllib.loads(path.read_text())
        del config["method"]
        path.write_text(tomli_w.dumps(config))
    for path in folder.rglob("result.json"):
        result = json.loads(path.read_text())
        del result["method"], result["settings"]
        path.write_text(json.dumps(result))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    ff.bench(task(3), ["fedavg", "fedprox"], held_out=["a"], seeds=1, rounds=2, out=tmp_path / "b")
    shutil.copytree(tmp_path / "b", tmp_path / "old")
    old_format(tmp_path / "old")
    return tmp_path / "old"


def test_a_bench_of_the_version_before_is_still_reported(old: Path, tmp_path: Path) -> None:
    new, before = collect(tmp_path / "b", "test"), collect(old, "test")
    assert [(row["method"], row["settings"].get("mu")) for row in before.rows] == [("fedavg", None), ("fedprox", 0.1)]
    # Format 1 says settings in its plan only, and TOML has no null.
    unset = [{**row, "settings": {k: v for k, v in row["settings"].items() if v is not None}} for row in new.rows]
    # The rule that had this name chose by accuracy, and goes by the name that says so.
    chosen = [row["selection"] for row in (*before.rows, *unset)]
    assert [{**row, "selection": None} for row in before.rows] == [{**row, "selection": None} for row in unset]
    assert all(set(of) == {"source-accuracy", "last", "oracle"} for of in chosen[:2])
    assert [of["last"] for of in chosen[:2]] == [of["last"] for of in chosen[2:]]
    assert "fedprox" in write_report(before, tmp_path / "report.html").read_text()


def test_a_bench_of_the_version_before_is_not_gone_on_with(old: Path) -> None:
    with pytest.raises(RecordsError, match=r"holds a bench in format 1, which farfield \d.* cannot go on with"):
        ff.bench(task(3), ["fedavg", "fedprox"], held_out=["a"], seeds=1, rounds=2, out=old, resume=True)


def test_a_bench_of_a_later_version_is_refused_by_its_format(old: Path) -> None:
    path = old / "bench.toml"
    path.write_text(f"format = 4\n{path.read_text()}")
    with pytest.raises(RecordsError, match=r"format 4, of a later version; farfield .* reads formats 1 to 3"):
        collect(old, "test")


@pytest.mark.parametrize("format", ['"x"', "true", "0", "1.5", "1979-05-27"])
def test_a_format_that_is_no_number_is_damage(old: Path, format: str) -> None:
    path = old / "bench.toml"
    path.write_text(f"format = {format}\n{path.read_text()}")
    with pytest.raises(RecordsError, match=r"bench.toml' is damaged: its format is .*, and not a number from 1 on"):
        collect(old, "test")


def test_resuming_with_another_variant_names_what_differs(benched: ff.BenchResult) -> None:
    given = [{"base": "fedavg"}, "fedprox:mu=0.5", "weak=fedprox:mu=0.02", {"all": "erm"}]
    options: dict[str, Any] = {"held_out": ["a", "b"], "seeds": 1, "rounds": 2, "out": benched.folder, "resume": True}
    with pytest.raises(RecordsError, match=r"its variant 'weak' is fedprox:mu=0.01, and here it is fedprox:mu=0.02;"):
        ff.bench(task(3), given, **options)
    with pytest.raises(RecordsError, match=r"its variants are base, fedprox:mu=0.5, weak, all, and here they are base"):
        ff.bench(task(3), given[:1], **{**options, "resume": False})


def test_a_training_takes_a_variant_and_its_folder_says_so(tmp_path: Path) -> None:
    folder = ff.train(task(3), {"weak": ff.method("fedprox", mu=0.01)}, tmp_path / "m", rounds=1)
    about = ff.load_model(folder).about
    assert (about["algorithm"], about["method"], about["settings"]["mu"]) == ("weak", "fedprox", 0.01)
    card = (folder / "README.md").read_text()
    assert card.startswith("# weak on toy")
    assert "--algorithms weak=fedprox:mu=0.01" in card
    with pytest.raises(UserError, match="a training is of one method, and 2 are given"):
        ff.train(task(3), "fedavg,fedprox", tmp_path / "n", rounds=1)


def test_a_training_from_before_variants_goes_on(tmp_path: Path) -> None:
    ff.train(task(3), "fedavg", tmp_path / "m", rounds=1)
    path = tmp_path / "m" / "run" / "config.toml"
    config = tomllib.loads(path.read_text())
    del config["method"]
    path.write_text(tomli_w.dumps(config))
    assert ff.train(task(3), "fedavg", tmp_path / "m", rounds=1, resume=True) == tmp_path / "m"


def test_a_variant_is_data_that_reads_back() -> None:
    variant = ff.method("fedavg", schedule=(1, 2))
    assert Variant.model_validate_json(variant.model_dump_json()) == variant
