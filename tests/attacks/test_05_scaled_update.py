"""One client sends its update −1000 times: the server cuts it and names the client, or a robust rule passes it over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from farfield.algorithms import build
from farfield.federation.bounding import Bound, Cut, cut_to_bound
from farfield.federation.execution import Outcome
from farfield.federation.phase import Sends
from farfield.models import ModelState
from tests.attacks.hostile import HOSTILE, Attacked, Change, attacked, honest
from tests.toy import initial

UPDATE = Sends(2, "a change", is_update=True)


def times(factor: float, name: str = "update", phase: str = "train") -> Change:
    """Replies whose value of that name is so many times the honest one."""

    def change(at: str, round: int, values: dict[str, Any]) -> dict[str, Any]:
        return {**values, name: factor * values[name]} if at == phase and name in values else values

    return change


def cut(lengths: Sequence[float], sends: Sends = UPDATE, **bound: Any) -> tuple[list[Tensor], list[Cut]]:
    """Updates along (0.6, −0.8) of these lengths after the bound, and what was cut."""
    replies = [
        Outcome(number, "d", values={"update": torch.tensor([0.6, -0.8], dtype=torch.float64) * length})
        for number, length in enumerate(lengths)
    ]
    cuts = list(cut_to_bound(replies, {"update": sends}, Bound(**bound)))
    return [torch.as_tensor(reply.values["update"]) for reply in replies], cuts


def test_the_bound_is_a_multiple_of_the_lower_median_and_keeps_the_direction() -> None:
    updates, cuts = cut([1.0, 2.0, 3.0, -1000.0], factor=5.0)
    assert [(each.client, each.length, each.limit) for each in cuts] == [(3, 1000.0, 10.0)]
    assert str(cuts[0]) == "'update' was 1e+03 long and was cut to 10"
    torch.testing.assert_close(updates[3], torch.tensor([-6.0, 8.0], dtype=torch.float64), rtol=1e-12, atol=0)
    assert float(updates[3].norm()) <= 10.0
    for number, length in enumerate((1.0, 2.0, 3.0)):
        assert torch.equal(updates[number], torch.tensor([0.6, -0.8], dtype=torch.float64) * length)


def test_a_fixed_bound_is_for_updates_and_gradients_alone() -> None:
    assert [each.client for each in cut([0.5, 7.0], length=1.0)[1]] == [1]
    assert cut([0.5, 7.0], Sends(2, "a head", bounded=1), length=1.0)[1] == []


def test_what_grows_with_the_square_of_a_gradient_has_the_square_of_the_bound() -> None:
    variance = Sends(2, "a variance", bounded=2)
    assert [each.limit for each in cut([1.0, 1.0, 24.0, 26.0], variance, factor=5.0)[1]] == [25.0]


def test_two_clients_have_no_median_and_a_median_of_zero_is_no_scale() -> None:
    assert cut([1.0, 1000.0], factor=5.0)[1] == []
    assert cut([0.0, 0.0, 1000.0], factor=5.0)[1] == []


def after_one_round(folder: Path, change: Change, name: str = "fedavg", **settings: Any) -> ModelState:
    return attacked(folder, change, name, rounds=1, **settings).rounds.state.model


def moved(model: ModelState) -> float:
    return float((model.parameters - initial().state().parameters).norm())


def test_with_the_bound_one_round_moves_the_model_by_no_more_than_the_bound_allows(tmp_path: Path) -> None:
    fair = moved(after_one_round(tmp_path / "fair", honest))
    taken = moved(after_one_round(tmp_path / "taken", times(-1000)))
    bound = moved(after_one_round(tmp_path / "bound", times(-1000), bound="median"))
    assert taken > 100 * fair
    # A quarter of five honest updates' length against three quarters of one, give or take how far these differ.
    assert bound < 3 * fair


def test_who_was_cut_and_by_how_much_is_recorded_in_every_round(tmp_path: Path) -> None:
    run = attacked(tmp_path, times(-1000), bound="median")
    events = run.events("update-bounded")
    assert [(e["round"], e["client"], e["phase"]) for e in events] == [(n, HOSTILE, "train") for n in (1, 2, 3, 4)]
    assert events[0]["message"].startswith("'update' was ")
    assert events[0]["message"].partition("was cut to ")[2]


#: What each method sends that is bounded.
BOUNDED = [
    ("fedavg", "train", "update"),
    ("fedsgd", "full_gradient", "gradient"),
    ("fediir", "head_gradient", "gradient"),
    ("fediir", "train", "update"),
    ("scaffold", "train", "update"),
    ("scaffold", "train", "control_change"),
    ("fedilc-inter-geo", "gradient_and_variance", "gradient"),
    ("fedilc-inter-geo", "gradient_and_variance", "variance"),
    ("fedilc-inter-geo", "variance_gradient", "penalty_gradient"),
    ("fedcir", "train", "update"),
    ("fedloe-erm", "train_head", "head"),
    ("fedprox+fedomg", "train", "update"),
]


@pytest.mark.parametrize(("name", "phase", "output"), BOUNDED)
def test_every_method_is_covered(tmp_path: Path, name: str, phase: str, output: str) -> None:
    factor = 1e6 if output in ("variance", "penalty_gradient") else 1000.0
    run = attacked(tmp_path, times(factor, output, phase), name, bound="median")
    named = {(e["client"], e["phase"], e["message"].split("'")[1]) for e in run.events("update-bounded")}
    assert (HOSTILE, phase, output) in named
    assert {client for client, _, _ in named} == {HOSTILE}
    assert run.events("left-out") == []


@pytest.mark.parametrize("name", [*dict.fromkeys(name for name, _, _ in BOUNDED)])
def test_honest_clients_are_not_touched_to_the_bit(tmp_path: Path, name: str) -> None:
    bound = attacked(tmp_path / "bound", honest, name, bound="median")
    free = attacked(tmp_path / "free", honest, name)
    assert bound.records.events() == []
    assert bound.result["model_sha256"] == free.result["model_sha256"]


def accuracy(run: Attacked) -> float:
    """Mean validation accuracy of the honest clients after the last round."""
    validation = run.records.rounds()[-1]["validation"]
    return sum(validation[name]["accuracy"] for name in "abc") / 3


RULES = ["median", "trimmed-mean", "krum", "multi-krum", "geometric-median"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("client", ["fedavg", "fedprox", "fediir"])
def test_a_robust_rule_learns_in_spite_of_it_where_clients_are_alike(tmp_path: Path, client: str, rule: str) -> None:
    # Four clients allow for f = 0 alone, since Krum needs n ≥ 2f + 3, so Multi-Krum would keep all of them.
    settings = {"keep": 3} if rule == "multi-krum" else {}
    run = attacked(tmp_path, times(-1000), f"{client}+{rule}", rounds=15, **settings)
    assert accuracy(run) > 0.9


def test_the_mean_and_a_multi_krum_that_keeps_everybody_do_not_learn(tmp_path: Path) -> None:
    for name in ("fedavg", "multi-krum"):
        assert accuracy(attacked(tmp_path / name, times(-1000), name, rounds=15)) < 0.7


@pytest.mark.parametrize("rule", RULES)
def test_with_five_updates_every_rule_stays_near_the_honest_ones(rule: str) -> None:
    generator = torch.Generator().manual_seed(0)
    fair = torch.randn(20, generator=generator)
    updates = fair + 0.1 * torch.randn(5, 20, generator=generator)
    updates[4] *= -1000
    algorithm = build(rule, {"f": 1} if "krum" in rule else {})
    shares = torch.full((5,), 0.2, dtype=torch.float64)
    found = algorithm.rule(updates, shares, algorithm.combine(updates, shares))
    direction = torch.as_tensor(getattr(found, "direction", found))
    assert float((direction - fair).norm()) < 0.2 * float(fair.norm())
    assert float((updates.mean(0) - fair).norm()) > 100 * float(fair.norm())


def test_in_a_deployment_the_bound_is_on_without_a_word_and_the_site_is_named(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from tests.attacks.hostile_sites import served

    def scaled(header: dict[str, Any], values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {**values, "update": -1000 * values["update"]} if "update" in values else values

    run = served(tmp_path / "on", reply=scaled)
    assert {(e["client"], e["phase"]) for e in run.events("update-bounded")} == {(3, "train")}
    assert run.result["settings"]["bound"] == "median"
    off = served(tmp_path / "off", reply=scaled, set={"bound": "none"})
    assert off.events("update-bounded") == []
    assert "bound" not in off.result["settings"] or off.result["settings"]["bound"] is None
    with_bound, without = (of.records.rounds()[-1]["validation"]["amber"]["loss"] for of in (run, off))
    assert with_bound < without


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fedavg", "fediir", "fediir+fedomg", "scaffold", "fedilc-inter-geo", "fedcir", "fedloe-irm"]
)
def test_in_a_deployment_honest_sites_are_not_touched(tmp_path: Path, name: str) -> None:
    """The same bits as on one machine, where nothing is bounded."""
    pytest.importorskip("flwr")
    import json

    import numpy as np

    import farfield as ff
    from tests.attacks.hostile_sites import SITES, served

    run = served(tmp_path / "net", algorithm=name)
    assert run.records.events() == []
    assert run.result["settings"]["bound"] == "median"
    rows = {site: np.load(tmp_path / "net" / site / "rows.npz") for site in SITES}
    task = ff.task_from_arrays("toy", {site: (of["x"], of["y"]) for site, of in rows.items()})
    ff.train(task, name, tmp_path / "here", rounds=3)
    here = json.loads((tmp_path / "here" / "run" / "result.json").read_text())
    assert here["settings"].get("bound") is None
    assert run.result["model_sha256"] == here["model_sha256"]


def test_a_site_refuses_a_server_that_asks_for_another_bound_than_it_approved(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from farfield.deployment.manifest.enforce import check_phase, check_proposal
    from farfield.deployment.manifest.manifest import make_manifest
    from farfield.deployment.server.joining import proposal
    from farfield.deployment.site.data import open_site
    from farfield.deployment.site.site_file import read_site
    from farfield.federation.refusal import Refused
    from tests.attacks.hostile_sites import Sites, read_federation, tomli_w

    content = {"name": "toy", "server": "127.0.0.1:9443", "algorithm": "fedavg", "rounds": 2, "sites": 3}
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(content))
    federation = read_federation(tmp_path / "federation.toml")
    Sites(tmp_path, federation)
    schema = open_site(read_site(tmp_path / "amber")).schema
    approved = make_manifest(federation, schema=schema, spec=None, role="train")
    assert approved.settings["bound"] == "median"
    check_proposal(approved, proposal(federation)["settings"], 2)  # type: ignore[arg-type]
    check_phase(approved, algorithm="fedavg", settings=approved.settings, rounds=2, phase="train")
    with pytest.raises(Refused, match="has approved another bound than the server asks for"):
        check_proposal(approved, {"bound": None}, 2)
    settings = {**approved.settings, "bound": None}
    with pytest.raises(Refused, match="has approved another bound than the server asks for"):
        check_phase(approved, algorithm="fedavg", settings=settings, rounds=2, phase="train")
