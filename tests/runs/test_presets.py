"""Presets: each is a plan that can be made, and what is typed wins over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from farfield.errors import UserError
from farfield.models import ModelSpec, ModelState, build_model
from farfield.models.resnet import ResNet
from farfield.runs.plan import Plan, make_plan
from farfield.runs.presets import describe_network, load, names, text_of, with_preset
from farfield.runs.settings import check_weights, model_spec
from farfield.tasks import load as load_task
from farfield.tasks.task import Domain, Task
from farfield.tasks.user_data.folder import image_model


def plan_on_digits(name: str, given: Mapping[str, Any] | None = None) -> Plan:
    """A preset's plan on small data, with the model of that data."""
    return make_plan(digits(), **with_preset(name, given or {}, own_rows=False).options)


def pictures(size: int) -> Task:
    """A task as an image folder gives it, without a file: four domains of black images of two kinds."""
    x, y = torch.zeros((20, 3, size, size), dtype=torch.uint8), torch.arange(20) % 2
    domains = tuple(Domain(name, x, y) for name in "abcd")
    return Task("pictures", "classification", domains, ("x", "y"), image_model(size, 2), {"augment": "standard"})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARFIELD_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    return tmp_path


def digits() -> Task:
    """A task that every preset can stand on: one with an official split, because some presets ask for it."""
    task = load_task("rotated-digits")
    return replace(task, domains=tuple(replace(d, validation=torch.arange(0, len(d), 10)) for d in task.domains))


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_preset_makes_a_plan_in_which_each_of_its_settings_arrives(name: str) -> None:
    preset = load(name)
    plan = plan_on_digits(name, {"held_out": ["0"]})
    assert plan.algorithms == tuple(preset.options["algorithms"])
    assert len(plan.seeds) == preset.options["seeds"]
    assert preset.about.lower().startswith(name.split("/")[0])
    for key, value in preset.settings.items():
        owner, _, field = key.rpartition(".")
        if owner == "model" or key == "augment":
            continue
        having = [a for a in plan.algorithms if field in plan.settings[a] and owner in ("", a)]
        assert having, key
        assert all(plan.settings[a][field] == value for a in having), key


class Network(NamedTuple):
    """A paper's network, typed from METHODS.md; None where a field means nothing for this featurizer."""

    size: int | None
    featurizer: str
    weights: str | None
    norm: str
    hidden: tuple[int, ...] | None
    #: Width of the classifier's hidden layer; None for a linear classifier.
    head: int | None
    augment: str
    outputs: int | None = None
    init: str = "torch"
    head_init: str = "same"


FEDIIR = Network(224, "resnet18", "auto", "freeze", None, 256, "standard", head_init="kaiming")
FEDCIR = Network(128, "resnet18", "none", "average", None, None, "none")
FEDLOE = Network(224, "resnet50", "auto", "freeze", None, None, "standard")
FEDOMG = Network(224, "resnet18", "auto", "freeze", None, None, "standard")
FEDAVG_CNN = Network(None, "fedavg-cnn", None, "none", (32, 64, 512), None, "none")
NETWORKS = {
    "fediir/pacs": FEDIIR,
    "fediir/vlcs": FEDIIR,
    "fediir/office-home": FEDIIR._replace(featurizer="resnet50", head=1024),
    "fediir/rotated-mnist": Network(
        None, "mnist-cnn", None, "group", (64, 128, 128, 128), None, "none", head_init="kaiming"
    ),
    "fedilc/colored-mnist": Network(None, "mlp", None, "none", (390, 390), None, "none", 1, "xavier"),
    "fedilc/rotated-cifar10": Network(None, "fedilc-cnn", None, "group", (64, 128, 128, 128), None, "none"),
    "fedilc/eicu": Network(None, "mlp", None, "none", (1024, 1024, 512), None, "none", 1, "xavier"),
    "fedcir/pacs": FEDCIR,
    "fedcir/domainnet": FEDCIR,
    "fedcir/office-caltech10": FEDCIR,
    "fedcir/camelyon17": FEDCIR,
    "fedcir/iwildcam": FEDCIR,
    "fedloe/pacs": FEDLOE,
    "fedloe/office-home": FEDLOE,
    "fedloe/iwildcam": FEDLOE._replace(size=448),
    "fedomg/pacs": FEDOMG,
    "fedomg/vlcs": FEDOMG,
    "fedomg/office-home": FEDOMG,
    "fedomg/mnist": FEDAVG_CNN,
    "fedomg/emnist": FEDAVG_CNN,
    "fedomg/cifar10": FEDAVG_CNN,
    "fedomg/cifar100": FEDAVG_CNN,
}


def test_every_preset_has_its_network_in_the_table_below() -> None:
    assert set(NETWORKS) == set(names())


@pytest.mark.parametrize("name", names())
def test_a_preset_resolves_to_the_papers_network(name: str, data: Path) -> None:
    network, chosen = NETWORKS[name], with_preset(name, {})
    # To resolve a network its weights must lie there, but they are not read before it is built.
    (data / "weights" / f"{network.featurizer}.pth").write_bytes(b"weights")
    assert chosen.image_size == network.size
    side = network.size or 28
    task = replace(pictures(8), model=ModelSpec(input_shape=(3, side, side), outputs=2, hidden=(7,)))
    model = {k.removeprefix("model."): v for k, v in chosen.settings.items() if k.startswith("model.")}
    spec = model_spec(task, model)
    assert (spec.featurizer, spec.norm, spec.init) == (network.featurizer, network.norm, network.init)
    assert spec.head_init == network.head_init
    assert spec.input_shape == (3, side, side)
    assert spec.outputs == (network.outputs or 2)
    assert (spec.head, spec.head_hidden if network.head else None) == (
        "mlp" if network.head else "linear",
        network.head,
    )
    if network.hidden is not None:
        assert spec.hidden == network.hidden
    if network.weights is not None:
        assert model["weights"] == network.weights
        assert spec.weights.partition("@")[0] == (f"{network.featurizer}.pth" if network.weights == "auto" else "none")
    assert chosen.settings.get("augment", "none") == network.augment


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "widths", "classes"), [("fediir/pacs", (512, 256), 2), ("fediir/office-home", (2048, 1024), 2)]
)
def test_fediirs_classifier_has_the_published_widths_on_a_network_that_is_built(
    data: Path, name: str, widths: tuple[int, int], classes: int
) -> None:
    depth = 18 if name == "fediir/pacs" else 50
    torch.save(ResNet(depth).state_dict(), data / "weights" / f"resnet{depth}.pth")
    chosen = with_preset(name, {"algorithms": ["fediir"], "seeds": 1}, image_size=32)
    plan = make_plan(pictures(32), **chosen.options)
    model = build_model(plan.model, seed=0)
    shapes = [tuple(shape) for name, shape in model.layout.shapes.items() if name.startswith("head.")]
    assert shapes == [(widths[1], widths[0]), (widths[1],), (classes, widths[1]), (classes,)]
    first = model.head[0].weight.detach()
    assert float(first.var()) == pytest.approx(2 / widths[0], rel=0.05)  # Kaiming's
    assert plan.augment == "standard"
    assert all(not layer.training for layer in model.train()._batch_norms())


def test_features_take_the_place_of_a_presets_network() -> None:
    chosen = with_preset("fediir/pacs", {}, features="cached")
    assert chosen.image_size is None
    assert [key for key in chosen.settings if key.startswith("model.") or key == "augment"] == []
    assert (chosen.settings["lr"], chosen.settings["fediir.gamma"]) == (2.5e-3, 1e-3)
    assert chosen.notes == (
        "preset 'fediir/pacs' has a network for images (resnet18 pretrained, norm freeze, head 256, 224 px), which is "
        "left out because --features gives vectors; the model is that of the features",
    )
    kept = with_preset("fediir/pacs", {"settings": {"model.head": "mlp"}}, features="cached")
    assert kept.settings["model.head"] == "mlp"  # what the user says of the model of the features


def test_features_of_which_a_preset_knows_nothing_need_no_note() -> None:
    assert with_preset(None, {"rounds": 3}, features="cached").options == {"rounds": 3}
    assert with_preset(None, {}, image_size=32).image_size == 32


def test_a_users_size_and_model_win_over_the_presets(data: Path) -> None:
    given = {
        "settings": {"model.featurizer": "resnet50", "model.head": "linear", "model.norm": "local", "augment": "none"}
    }
    chosen = with_preset("fediir/pacs", given, image_size=96)
    assert chosen.image_size == 96
    assert {k: v for k, v in chosen.settings.items() if k.startswith("model.")} == {
        "model.featurizer": "resnet50",
        "model.weights": "auto",
        "model.norm": "local",
        "model.head": "linear",
        "model.head_hidden": 256,
        "model.head_init": "kaiming",
    }
    assert chosen.settings["augment"] == "none"
    assert chosen.notes == ()


@pytest.mark.parametrize("changed", [{"model.weights": "none"}, {"model.featurizer": "convnet"}])
def test_statistics_are_not_frozen_where_nothing_was_pretrained(changed: dict[str, str]) -> None:
    given = {"algorithms": ["fedavg"], "seeds": 1, "settings": changed}
    chosen = with_preset("fediir/pacs", given, image_size=32)
    plan = make_plan(pictures(32), **chosen.options)
    assert (plan.model.norm, plan.model.weights, plan.model.head_hidden) == ("group", "none", 256)
    assert "freezes the BatchNorm statistics of pretrained weights, and there are none here" in chosen.notes[0]
    asked = with_preset("fediir/pacs", {"settings": {**changed, "model.norm": "freeze"}})
    assert (asked.settings["model.norm"], asked.notes) == ("freeze", ())


def test_other_rows_than_the_presets_keep_their_own_model() -> None:
    chosen = with_preset("fedilc/eicu", {}, own_rows=False)
    assert not any(key.startswith("model.") for key in chosen.settings)
    assert "for task 'eicu' (mlp, 1024-1024-512, init xavier, one output), which is left out" in chosen.notes[0]
    assert plan_on_digits("fedilc/eicu").model == load_task("rotated-digits").model.model_copy(
        update={"weights": "none"}
    )


def test_absent_weights_are_told_before_the_images_are_opened(data: Path) -> None:
    with pytest.raises(UserError) as told:
        check_weights(with_preset("fediir/office-home", {}).settings)
    for part in (
        f"there is no resnet50.safetensors, .pth or .pt in {data / 'weights'};",
        f"download https://download.pytorch.org/models/resnet50-0676ba61.pth to {data / 'weights' / 'resnet50.pth'},",
        "--set model.weights=PATH",
        "--set model.weights=none",
        "--features cached",
    ):
        assert part in str(told.value)
    check_weights(with_preset("fediir/office-home", {"settings": {"model.weights": "none"}}).settings)
    check_weights(with_preset("fedcir/pacs", {}).settings)
    (data / "weights" / "resnet50.pth").write_bytes(b"no weights")
    with pytest.raises(UserError, match="cannot be read as weights"):
        check_weights(with_preset("fediir/office-home", {}).settings)


def test_a_network_is_described_by_what_is_told_of_it() -> None:
    assert describe_network({}) == ""
    assert describe_network({"featurizer": "mlp", "hidden": (64, 32), "norm": "none"}) == "mlp, 64-32, norm none"
    told = {"featurizer": "resnet18", "weights": "resnet18.pth@sha256:ab", "hidden": (64,), "norm": "local"}
    assert describe_network(told, 64) == "resnet18 pretrained, norm local, 64 px"


def test_the_papers_numbers_are_where_they_belong() -> None:
    plan = plan_on_digits("fediir/rotated-mnist")
    assert plan.rounds == 100
    assert plan.cohort == 5
    fediir = plan.settings["fediir"]
    assert (fediir["lr"], fediir["batch_size"], fediir["gamma"], fediir["upsilon"]) == (0.01, 64, 0.01, 0.95)
    assert fediir["half"] is False
    fedilc = plan_on_digits("fedilc/colored-mnist")
    assert fedilc.settings["fedilc-inter-geo"]["fishr"] == 15
    assert fedilc.rounds_of["fedilc-inter-geo"] == 301
    assert fedilc.rules[0] == "oracle-loss"  # the lowest loss on the target, as in the paper's tables


#: What the papers say, typed from them: preset, method, where, value.
FROM_THE_PAPERS = [
    ("fedloe/pacs", "fedloe-irm", "lam", 100),
    ("fedloe/pacs", "fedloe-rex", "lam", 100),
    ("fedloe/pacs", "fedloe-irm", "head_lr", 0.05),
    ("fedloe/pacs", "fedloe-irm", "head_weight_decay", 5e-4),
    ("fedloe/pacs", "fedloe-irm", "lr", 5e-5),
    ("fedloe/pacs", "fedloe-irm", "phi_lr", 0.01),
    ("fedloe/pacs", "fedloe-rex", "phi_lr", 0.001),
    ("fedloe/pacs", "fedloe-fish", "meta_lr", 0.05),
    ("fedloe/office-home", "fedloe-erm", "lr", 3e-5),
    ("fedloe/iwildcam", "fedloe-fish", "meta_lr", 0.01),
    ("fedomg/pacs", "fedomg", "kappa", 0.5),
    ("fedomg/pacs", "fedomg", "solver", "paper"),
    ("fedomg/pacs", "fedomg", "rescale", "1+kappa^2"),
    ("fedomg/vlcs", "fediir+fedomg", "gamma", 1e-4),
    ("fedomg/vlcs", "fediir+fedomg", "kappa", 0.5),
    ("fedomg/pacs", "fedomg", "server_lr", 0.5),
    ("fedomg/pacs", "fedavg", "server_lr", 1.0),
    ("fedomg/cifar10", "fedomg", "server_lr", 1.0),
    ("fedomg/cifar10", "fedavg", "weighting", "samples"),
    ("fedomg/cifar10", "fedomg", "lr", 0.005),
    ("fedilc/eicu", "fedilc-intra-geo", "fishr", 0.1),
    ("fedilc/rotated-cifar10", "fedilc-fishr", "server_lr", 1e-4),
    ("fedcir/pacs", "fedcir", "batch_size", 32),
]


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "method", "field", "value"), FROM_THE_PAPERS)
def test_a_preset_says_what_the_paper_says(preset: str, method: str, field: str, value: object) -> None:
    plan = plan_on_digits(preset)
    assert plan.settings[method][field] == value


#: The rule of all presets: what the published code of a method computes, wherever the method runs.
PUBLISHED = {
    "fediir": {"half": False, "gradient_average": "batches", "weighting": "uniform"},
    "fedomg": {"solver": "paper", "rescale": "1+kappa^2"},
    "fedloe-erm": {"phi_solver": "adam", "groups": "domains"},
    "fedloe-irm": {"phi_solver": "adam", "groups": "domains"},
    "fedloe-rex": {"phi_solver": "adam", "groups": "domains", "variance": "within"},
    "fedloe-fish": {"phi_solver": "adam", "groups": "domains"},
    "fedilc-geometric": {"zeros": "published", "server_optimizer": "adam"},
    "fedilc-inter-geo": {"zeros": "published", "server_optimizer": "adam", "fishr_reduction": "sum"},
    "fedilc-intra-geo": {"zeros": "published", "inner": "batches", "fishr_reduction": "sum"},
    "fedilc-intra-arith": {"server_optimizer": "adam", "fishr_reduction": "sum"},
    "fedilc-fishr": {"server_optimizer": "adam", "fishr_reduction": "sum"},
}
#: Methods whose published code differs from the paper in nothing that is computed, or does not exist.
AS_THE_PAPER = {"fedavg", "fedsgd", "fedprox", "fedcir", "fedcir-reg", "fedcir-align"}


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_preset_computes_what_the_published_code_computes(name: str) -> None:
    preset, plan = load(name), plan_on_digits(name)
    for algorithm in plan.algorithms:
        for part in algorithm.split("+"):
            assert part in PUBLISHED or part in AS_THE_PAPER, f"say in PUBLISHED what {part}'s published code computes"
            for field, value in PUBLISHED.get(part, {}).items():
                assert plan.settings[algorithm][field] == value, (algorithm, field)
    if name.startswith("fediir/"):
        assert preset.options["partition"] == "split-published"
    if name.startswith("fedomg/"):
        # Two published programs: one for unseen domains, one for label skew.
        unseen = preset.options.get("partition") is None
        assert preset.settings["fedomg.hull"] == ("weighted" if unseen else "updates")
        assert plan.settings["fedomg"]["weighting"] == ("samples" if unseen else "uniform")


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_no_preset_sets_what_has_no_effect(name: str) -> None:
    """In at least one of its methods a setting must do something."""
    preset, plan = load(name), plan_on_digits(name)
    for key in preset.settings:
        owner, _, field = key.rpartition(".")
        if owner == "model" or key == "augment":
            continue
        if key == "local_epochs" and "communications" in preset.options:
            continue  # the plan makes the schedule of it
        having = [a for a in plan.algorithms if field in plan.settings[a] and (not owner or owner in a.split("+"))]
        assert any(field not in plan.algorithm(a).params.idle() for a in having), key


@pytest.mark.parametrize("name", names())
def test_every_preset_names_the_rule_that_it_follows(name: str) -> None:
    comment = [line for line in text_of(name).splitlines() if line.startswith("#")]
    assert any(
        line.startswith("# A preset follows one rule: the paper's numbers, the published code's") for line in comment
    )


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("fedloe/pacs", (8, 256), (4, 8)),
        ("fedloe/office-home", (8, 256), (4, 8)),
        ("fedloe/iwildcam", (80, 5120), (5, 320)),
    ],
)
def test_fedloes_presets_have_both_stages_of_table_5(
    name: str, first: tuple[int, int], second: tuple[int, int]
) -> None:
    plan = plan_on_digits(name)
    method = plan.algorithm("fedloe-irm")
    start = method.start(ModelState(torch.zeros(1), torch.zeros(0)))
    stages = [method.in_second_stage(replace(start, round=number)) for number in range(plan.rounds)]
    epochs = [method.epochs(r + 1) for r in range(plan.rounds)]
    for stage, (communications, budget) in ((False, first), (True, second)):
        of_stage = [e for e, s in zip(epochs, stages, strict=True) if s is stage]
        assert (len(of_stage), sum(of_stage)) == (communications, budget)


def test_each_paper_has_its_own_iwildcam() -> None:
    assert load("fedcir/iwildcam").task == "iwildcam-10"
    fedloe = load("fedloe/iwildcam")
    assert (fedloe.task, fedloe.options["validation"]) == ("iwildcam-wilds", "official")


def test_what_is_given_wins_over_the_preset() -> None:
    given = {"rounds": 7, "settings": {"lr": 0.5, "fediir.gamma": 3.0}, "seeds": [4]}
    plan = plan_on_digits("fediir/pacs", given)
    assert (plan.rounds, plan.seeds, plan.cohort) == (7, (4,), 3)
    assert (plan.settings["fediir"]["lr"], plan.settings["fediir"]["gamma"]) == (0.5, 3.0)
    assert plan.settings["fediir"]["momentum"] == 0.9


def test_an_unknown_preset_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'fediir/pacs'"):
        load("fediir/pac")


def test_epochs_that_are_asked_for_win_over_a_tasks_own_number_of_steps() -> None:
    task = replace(load_task("rotated-digits"), defaults={"rounds": 2, "local_steps": 5, "batch_size": 16})
    assert make_plan(task, algorithms=["fedavg"]).settings["fedavg"]["local_steps"] == 5
    plan = make_plan(task, algorithms=["fedavg"], settings={"local_epochs": 3})
    assert (plan.settings["fedavg"]["local_steps"], plan.settings["fedavg"]["local_epochs"]) == (None, 3)
    plan = make_plan(task, algorithms=["fedavg"], rounds=4, communications=2)
    assert plan.settings["fedavg"]["schedule"] == [2, 2]


def test_a_tasks_own_partition_comes_with_its_clients_or_not_at_all() -> None:
    own = {"partition": "dirichlet:0.5", "clients": 10, "cohort": 4}
    task = replace(load_task("rotated-digits"), defaults=own, held_out=("75",))
    plan = make_plan(task, algorithms=["fedavg"], rounds=1)
    assert (plan.partition, plan.clients, plan.cohort, plan.held_out) == ("dirichlet:0.5", 10, 4, ("75",))
    plan = make_plan(task, algorithms=["fedavg"], rounds=1, partition="domain", held_out=["all"])
    assert (plan.partition, plan.clients, plan.cohort, len(plan.held_out)) == ("domain", None, None, 6)
    plan = make_plan(task, algorithms=["fedavg"], rounds=1, clients=20)
    assert (plan.partition, plan.clients, plan.cohort) == ("split", 20, None)


def test_some_of_a_presets_methods_run_without_the_settings_of_the_others() -> None:
    plan = plan_on_digits("fediir/pacs", {"algorithms": ["fedavg"]})
    assert plan.algorithms == ("fedavg",)
    assert plan.settings["fedavg"]["lr"] == 2.5e-3
    plan = plan_on_digits("fedcir/pacs", {"algorithms": ["fedavg", "fedcir"]})
    assert plan.settings["fedcir"]["lambda_reg"] == 0.5


def test_every_preset_says_in_a_whole_sentence_what_it_is() -> None:
    for name in names():
        about = load(name).about
        assert about.count("(") == about.count(")")
        assert not about.endswith((",", ";", ":", "see", " al"))
