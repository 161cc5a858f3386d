"""FedLOE through its classes: both stages, what φ does to the model, and what happens when something is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from farfield.algorithms import AlgorithmError, FedAvg, State, build
from farfield.federation.federation import Replies
from farfield.math import mix_heads
from farfield.models import ModelSpec
from farfield.runs.plan import make_plan
from farfield.runs.settings import PlanError
from farfield.tasks import load
from farfield.tasks.task import Domain, Task
from tests.algorithms.linear import replies
from tests.toy import SPEC, domain, domains, federation, initial, population, task

VARIANTS = ["fedloe-erm", "fedloe-irm", "fedloe-rex", "fedloe-fish"]
variants = pytest.mark.parametrize("name", VARIANTS)
HEAD = 6 * 3 + 3


def fedloe(name: str = "fedloe-irm", rounds: int = 2, **settings: Any) -> FedAvg:
    return build(name, {"lr": 0.1, "batch_size": 8, **settings}, rounds=rounds)


class Watched:
    """A federation that remembers the exchanges, and can lose or change replies."""

    def __init__(self, fed: Any, change: Callable[[str, Replies], Replies] = lambda phase, got: got) -> None:
        self.fed, self.clients, self.change = fed, fed.clients, change
        self.seen: list[tuple[str, Replies, dict[str, Any]]] = []

    def map(self, phase: Any, model: Any, **shared: Any) -> Replies:
        got = self.change(phase.__name__, self.fed.map(phase, model, **shared))
        self.seen.append((phase.__name__, got, shared))
        return got


def second_stage(
    algorithm: FedAvg,
    chosen: Sequence[Domain] | None = None,
    spec: ModelSpec = SPEC,
    change: Callable[[str, Replies], Replies] = lambda phase, got: got,
) -> tuple[State, State, Watched]:
    """The states before and after the one round of stage 2, and what was exchanged in it."""
    with federation(algorithm, chosen or domains(3), spec) as fed:
        watched = Watched(fed, change)
        fed.begin(1, range(fed.clients))
        before = algorithm.round(fed, algorithm.start(initial(spec).state()))
        fed.begin(2, range(fed.clients))
        return before, algorithm.round(watched, before), watched  # type: ignore[arg-type]


@variants
def test_the_new_head_is_the_mixture_and_the_rest_is_untouched_to_the_bit(name: str) -> None:
    before, after, watched = second_stage(fedloe(name))
    assert [phase for phase, _, _ in watched.seen] == ["train_head", "predict_tuning"]
    heads = watched.seen[0][1].stack("head")
    assert tuple(heads.shape) == (3, HEAD)
    phi = torch.tensor([after.diagnostics[f"phi_{c}"] for c in range(3)], dtype=torch.float64)
    assert torch.equal(after.model.parameters[:-HEAD], before.model.parameters[:-HEAD])
    assert torch.equal(after.model.parameters[-HEAD:], mix_heads(heads, phi))
    assert not torch.equal(after.model.parameters[-HEAD:], before.model.parameters[-HEAD:])
    assert after.notes == ()


def test_predictions_are_those_of_every_head_on_the_tuning_rows() -> None:
    before, _, watched = second_stage(fedloe())
    answers, heads = watched.seen[1][1], watched.seen[1][2]["heads"]
    people = population(domains(3))
    model = initial()
    for number, reply in enumerate(answers):
        _, tuning = people.client(number, seed=0, round=2, phase="any", state={}).carve(0.1, "tuning")
        x, y = tuning.take(torch.arange(len(tuning)))
        assert torch.equal(torch.as_tensor(reply.values["labels"]), y)
        for other, head in enumerate(heads):
            model.load(before.model)
            model.vector[-HEAD:] = head
            torch.testing.assert_close(torch.as_tensor(reply.values["predictions"])[:, other], model(x))


@variants
def test_phi_is_no_worse_than_the_shares_by_its_own_objective(name: str) -> None:
    algorithm = fedloe(name)
    _, after, watched = second_stage(algorithm, domains(4))
    shares = watched.seen[0][1].weights("samples")
    problem = algorithm.problem(watched.seen[1][1], shares)  # type: ignore[attr-defined]
    phi = torch.tensor([after.diagnostics[f"phi_{c}"] for c in range(4)], dtype=torch.float64)
    assert float(problem.objective(phi)) < float(problem.objective(shares))
    assert after.diagnostics["tuning_loss_before"] == pytest.approx(float(problem.risk(shares)))
    assert after.diagnostics["tuning_loss"] == pytest.approx(float(problem.risk(phi)))
    assert after.diagnostics["penalty"] == pytest.approx(float(problem.penalty_value(phi)))
    assert after.diagnostics["phi_min"] == float(phi.min())
    assert after.diagnostics["phi_max"] == float(phi.max())


def test_weights_of_many_clients_are_recorded_as_a_range_only() -> None:
    many = [domain(f"site-{i:02}", shift=0.05 * i, rows=30) for i in range(21)]
    _, after, _ = second_stage(fedloe("fedloe-erm"), many)
    assert {k for k in after.diagnostics if k.startswith("phi")} == {"phi_min", "phi_max"}


def test_the_same_rows_are_for_tuning_in_every_phase_and_round_and_never_for_training() -> None:
    people = population(domains(1))
    carved = [people.client(0, seed=0, round=r, phase=p, state={}).carve(0.1, "tuning")
              for r, p in ((1, "train"), (2, "train_head"), (2, "predict_tuning"))]  # fmt: skip
    rows = [tuning.rows_of("a").tolist() for _, tuning in carved]
    assert rows[0] == rows[1] == rows[2]
    clean = domains(1)[0]
    poisoned = Domain("a", clean.x.clone(), clean.y)
    poisoned.x[rows[0]] = float("nan")
    for phase in ("train", "train_head"):
        results = []
        for chosen in (clean, poisoned):
            algorithm = fedloe()
            with federation(algorithm, [chosen]) as fed:
                fed.begin(1, [0])
                (reply,) = fed.map(getattr(algorithm, phase), initial().state())
                results.append(torch.as_tensor(reply.values["update" if phase == "train" else "head"]))
        assert bool(torch.isfinite(results[1]).all())
        assert torch.equal(*results)


@pytest.mark.parametrize("settings", [{}, {"local_epochs": 3}, {"local_steps": 5}, {"batch_size": 0}])
def test_local_steps_are_those_of_fedavg(settings: dict[str, Any]) -> None:
    counted = []
    for name in ("fedavg", *VARIANTS):
        algorithm = fedloe(name, rounds=4, **settings)
        with federation(algorithm, domains(3)) as fed:
            state = algorithm.start(initial().state())
            for number in range(1, 5):
                fed.begin(number, range(3))
                state = algorithm.round(fed, state)
            counted.append(fed.traffic.local_steps)
    assert len(set(counted)) == 1


def test_head_epochs_change_the_steps_of_stage_two_only() -> None:
    def steps(**settings: Any) -> list[int]:
        algorithm = fedloe("fedloe-erm", **settings)
        with federation(algorithm, domains(1)) as fed:
            state, counted = algorithm.start(initial().state()), []
            for number in (1, 2):
                fed.begin(number, [0])
                state = algorithm.round(fed, state)
                counted.append(fed.traffic.local_steps)
        return [counted[0], counted[1] - counted[0]]

    assert steps() == [4, 4]
    assert steps(head_epochs=3) == [4, 12]


def test_the_head_has_its_own_optimizer() -> None:
    _, _, plain = second_stage(fedloe())
    _, _, still = second_stage(fedloe(head_lr=1e-9, head_optimizer="adam"))
    heads, unmoved = plain.seen[0][1].stack("head"), still.seen[0][1].stack("head")
    assert float((unmoved - unmoved[0]).abs().max()) < 1e-6
    assert float((heads - heads[0]).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("rounds", "stage2", "expected"),
    [(2, 0.25, 1), (4, 0.25, 1), (8, 0.25, 2), (12, 1 / 3, 4), (3, 0.9, 2), (30, 0.01, 1), (5, 0.0, 0)],
)
def test_the_last_rounds_are_stage_two(rounds: int, stage2: float, expected: int) -> None:
    algorithm = fedloe(rounds=rounds, stage2=stage2)
    state = algorithm.start(initial().state())
    in_second = [algorithm.in_second_stage(replace(state, round=r)) for r in range(rounds)]  # type: ignore[attr-defined]
    assert in_second == [False] * (rounds - expected) + [True] * expected


@pytest.mark.parametrize("server", [{"server_lr": 0.1}, {"server_optimizer": "adam"}, {"server_momentum": 0.9}])
def test_the_server_optimizer_has_no_part_in_stage_two(server: dict[str, Any]) -> None:
    before, after, watched = second_stage(fedloe("fedloe-erm", **server))
    phi = torch.tensor([after.diagnostics[f"phi_{c}"] for c in range(3)], dtype=torch.float64)
    assert torch.equal(after.model.parameters[-HEAD:], mix_heads(watched.seen[0][1].stack("head"), phi))
    assert after.slots == before.slots


def test_a_server_rule_works_on_stage_one() -> None:
    plain, _, _ = second_stage(fedloe("fedloe-irm"))
    matched, after, _ = second_stage(fedloe("fedloe-irm+fedomg"))
    assert "worst_inner_product" in matched.diagnostics
    assert "worst_inner_product" not in after.diagnostics
    assert not torch.equal(plain.model.parameters, matched.model.parameters)


def test_a_client_lost_between_the_exchanges_keeps_its_head_in_the_mixture() -> None:
    def lose(phase: str, got: Replies) -> Replies:
        return Replies(got.replies[1:], got.registered) if phase == "predict_tuning" else got

    _, after, _ = second_stage(fedloe("fedloe-erm"), change=lose)
    assert {"phi_0", "phi_1", "phi_2"} <= set(after.diagnostics)
    assert after.notes == ()


def test_answers_that_do_not_fit_are_left_out_and_noted() -> None:
    def spoil(phase: str, got: Replies) -> Replies:
        if phase != "predict_tuning":
            return got
        first, second, third = got.replies
        short = {**first.values, "labels": torch.as_tensor(first.values["labels"])[:1]}
        wrong = {**second.values, "labels": torch.full_like(torch.as_tensor(second.values["labels"]), 3)}
        return Replies((replace(first, values=short), replace(second, values=wrong), third), got.registered)

    _, after, _ = second_stage(fedloe("fedloe-erm"), change=spoil)
    assert [note.split("'")[0] for note in after.notes] == ["client 0", "client 1"]
    assert bool(torch.isfinite(after.model.parameters).all())


@variants
def test_without_a_usable_phi_the_heads_are_averaged_and_it_is_noted(name: str) -> None:
    def upside_down(phase: str, got: Replies) -> Replies:
        """Predictions so large that no float64 can square them."""
        if phase != "predict_tuning":
            return got
        huge = [{**r.values, "predictions": torch.as_tensor(r.values["predictions"]).double() * 1e300} for r in got]
        return Replies(tuple(replace(r, values=v) for r, v in zip(got, huge, strict=True)), got.registered)

    _, after, watched = second_stage(fedloe(name), change=upside_down)
    shares = watched.seen[0][1].weights("samples")
    assert "shares were taken" in after.notes[0]
    assert [after.diagnostics[f"phi_{c}"] for c in range(3)] == shares.tolist()
    assert torch.equal(after.model.parameters[-HEAD:], mix_heads(watched.seen[0][1].stack("head"), shares))


def test_a_mixture_that_predicts_nothing_is_refused() -> None:
    """Heads that are right at one client and wrong at the other: IRM and V-REx like φ = 0 best."""
    logits = torch.tensor([[[3.0], [-3.0]]]).repeat(6, 1, 1)
    answers = replies(
        {"predictions": logits, "labels": torch.tensor([1, 1, 1, 1, 1, 0])},
        {"predictions": -0.2 * logits, "labels": torch.tensor([1, 1, 1, 1, 1, 0])},
    )
    algorithm = fedloe("fedloe-rex", lam=1e4)
    shares = torch.tensor([0.9, 0.1], dtype=torch.float64)
    phi, recorded, notes = algorithm.fit(answers, shares)  # type: ignore[attr-defined]
    assert phi.tolist() == [0.9, 0.1]
    assert "next to nothing" in notes[0]
    assert recorded["tuning_loss"] == recorded["tuning_loss_before"]


def test_domains_can_be_the_groups() -> None:
    answers = replies(*({"predictions": torch.randn(2, 3, 3), "labels": torch.tensor([0, 1])} for _ in range(3)))
    both = Replies(tuple(replace(r, domain="photo" if r.client < 2 else "art") for r in answers))
    shares = torch.full((3,), 1 / 3)
    by_client = fedloe(groups="clients").problem(both, shares)  # type: ignore[attr-defined]
    by_domain = fedloe(groups="domains").problem(both, shares)  # type: ignore[attr-defined]
    assert by_client.groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert by_domain.groups.tolist() == [0, 0, 0, 0, 1, 1]
    assert by_domain.weights.tolist() == pytest.approx([2 / 3, 1 / 3])


def test_the_published_variance_and_the_sequential_steps_are_options() -> None:
    results = {}
    for label, algorithm in {
        "between": fedloe("fedloe-rex"),
        "within": fedloe("fedloe-rex", variance="within"),
        "solved": fedloe("fedloe-fish"),
        "steps": fedloe("fedloe-fish", phi_solver="sgd", phi_steps=20, meta_lr=1.0),
    }.items():
        _, after, _ = second_stage(algorithm)
        assert after.notes == ()
        assert after.diagnostics["tuning_loss"] < after.diagnostics["tuning_loss_before"]
        results[label] = after.model.parameters
    assert not torch.equal(results["between"], results["within"])
    assert not torch.equal(results["solved"], results["steps"])


@variants
@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_few_steps_from_the_shares_take_the_published_sizes_unless_told_otherwise(name: str, solver: str) -> None:
    lam = {} if name in ("fedloe-erm", "fedloe-fish") else {"lam": 3.0}
    algorithm = fedloe(name, phi_solver=solver, phi_steps=3, **lam)
    _, after, watched = second_stage(algorithm)
    assert after.notes == ()
    shares = watched.seen[0][1].weights("samples")
    problem = algorithm.problem(watched.seen[1][1], shares)  # type: ignore[attr-defined]
    # Table 5 of the paper, and the published configurations.
    adam = 0.001 if name == "fedloe-rex" else 0.01
    sizes = (0.05, 5e-4) if solver == "sgd" else (adam, 0.0)
    expected = problem.descend(solver, 3, *sizes, 0.05 if name == "fedloe-fish" else 1.0)
    assert [after.diagnostics[f"phi_{c}"] for c in range(3)] == expected.tolist()
    assert expected.tolist() != shares.tolist()


@variants
@pytest.mark.parametrize("setting", [{"phi_steps": 4}, {"phi_lr": 0.02}, {"phi_weight_decay": 0.5}])
def test_each_setting_of_the_steps_changes_the_result(name: str, setting: dict[str, Any]) -> None:
    steps = {"phi_solver": "adam", "phi_steps": 3}
    plain, other = (second_stage(fedloe(name, **{**steps, **more}))[1] for more in ({}, setting))
    assert not torch.equal(plain.model.parameters, other.model.parameters)


def test_steps_that_lead_away_from_the_labels_are_refused() -> None:
    _, after, watched = second_stage(fedloe("fedloe-erm", phi_solver="sgd", phi_lr=1e4, phi_steps=3))
    assert after.notes == ("φ's steps led away from the clients' labels; the heads' shares were taken for φ",)
    shares = watched.seen[0][1].weights("samples")
    assert [after.diagnostics[f"phi_{c}"] for c in range(3)] == shares.tolist()


def test_where_the_shares_lose_to_predicting_nothing_the_least_risk_is_taken_for_a_refused_mixture() -> None:
    """As above, with heads so sure that their mean costs 40; a hundredth of it would cost 0.62."""
    logits = torch.tensor([[[300.0], [-300.0]]]).repeat(6, 1, 1)
    labels = torch.tensor([1, 1, 1, 1, 1, 0])
    answers = replies({"predictions": logits, "labels": labels}, {"predictions": -0.2 * logits, "labels": labels})
    shares = torch.tensor([0.9, 0.1], dtype=torch.float64)
    phi, recorded, notes = fedloe("fedloe-rex", lam=1e4).fit(answers, shares)  # type: ignore[attr-defined]
    least, _, _ = fedloe("fedloe-erm").fit(answers, shares)  # type: ignore[attr-defined]
    assert notes == ["the φ found predicts next to nothing; the φ of least risk was taken for φ"]
    assert phi.tolist() == pytest.approx(least.tolist(), abs=1e-6)
    assert recorded["tuning_loss"] < 0.64
    assert recorded["tuning_loss_before"] == pytest.approx(40.0, rel=0.01)


IDLE = [
    ("fedloe-erm", {}, {"phi_steps", "phi_lr", "phi_weight_decay"}),
    ("fedloe-erm", {"phi_solver": "sgd"}, {"ridge"}),
    ("fedloe-irm", {}, {"phi_steps", "phi_lr", "phi_weight_decay"}),
    ("fedloe-irm", {"lam": 0.0}, {"phi_steps", "phi_lr", "phi_weight_decay", "anneal"}),
    ("fedloe-irm", {"phi_solver": "adam"}, {"ridge", "anneal"}),
    ("fedloe-rex", {"lam": 0.0}, {"phi_steps", "phi_lr", "phi_weight_decay", "anneal", "variance"}),
    ("fedloe-fish", {}, {"phi_steps", "phi_lr", "phi_weight_decay", "meta_lr"}),
    ("fedloe-fish", {"phi_solver": "sgd"}, {"ridge", "anneal", "lam"}),
]


@pytest.mark.parametrize(("name", "settings", "expected"), IDLE)
def test_settings_without_an_effect_are_named_and_have_none(
    name: str, settings: dict[str, Any], expected: set[str]
) -> None:
    idle = fedloe(name, **settings).params.idle()
    assert expected == {key for key in idle if key not in fedloe("fedavg").params.idle()}
    others = {"phi_steps": 7, "phi_lr": 0.3, "phi_weight_decay": 0.2, "ridge": 0.7, "anneal": 3, "variance": "within",
              "meta_lr": 0.9, "lam": 0.7}  # fmt: skip
    plain = second_stage(fedloe(name, **settings))[1].model.parameters
    changed = second_stage(fedloe(name, **settings, **{k: others[k] for k in expected}))[1].model.parameters
    torch.testing.assert_close(changed, plain, rtol=0, atol=1e-6)  # another way to the same optimum rounds differently


def test_without_stage_two_all_its_settings_are_named() -> None:
    idle = fedloe("fedloe-rex", stage2=0.0).params.idle()
    assert {"lam", "variance", "anneal", "ridge", "phi_solver", "head_lr", "groups"} <= set(idle)
    assert not {"tuning", "stage2"} & set(idle)
    assert idle["lam"] == "stage2 is 0"


def test_weight_zero_is_fedloe_erm() -> None:
    plain = second_stage(fedloe("fedloe-erm"))[1].model.parameters
    for name in VARIANTS[1:]:
        torch.testing.assert_close(second_stage(fedloe(name, lam=0.0))[1].model.parameters, plain, rtol=0, atol=0)


@variants
@pytest.mark.parametrize("kind", ["one logit", "squared error"])
def test_one_logit_and_squared_error_work(name: str, kind: str) -> None:
    binary = [Domain(d.name, d.x, (d.y > 0).long()) for d in domains(3)]
    values = [Domain(d.name, d.x, d.x[:, 0] - 0.5 * d.y) for d in domains(3)]
    # Inner products of gradients grow without limit under the squared error: a smaller weight has a minimum.
    settings = {"lam": 0.005} if (name, kind) == ("fedloe-fish", "squared error") else {}
    spec = SPEC.model_copy(update={"outputs": 1})
    _, after, _ = second_stage(fedloe(name, **settings), binary if kind == "one logit" else values, spec)
    assert after.notes == ()
    # Four tuning rows a client: a penalty may cost some risk, the risk alone may not.
    worst = 1.0 if name in ("fedloe-erm", "fedloe-fish") else 1.5
    assert after.diagnostics["tuning_loss"] <= worst * after.diagnostics["tuning_loss_before"]


@pytest.mark.slow
def test_where_fish_has_no_minimum_the_heads_are_averaged_and_it_is_noted() -> None:
    values = [Domain(d.name, d.x, d.x[:, 0] - 0.5 * d.y) for d in domains(3)]
    _, after, _ = second_stage(fedloe("fedloe-fish", lam=5.0), values, SPEC.model_copy(update={"outputs": 1}))
    assert "no minimum in φ was found" in after.notes[0]
    assert after.diagnostics["tuning_loss"] == after.diagnostics["tuning_loss_before"]


@pytest.mark.parametrize("norm", ["average", "local", "freeze"])
def test_stage_two_leaves_running_statistics_alone(norm: str) -> None:
    spec = SPEC.model_copy(update={"norm": norm, "dropout": 0.3})
    before, after, _ = second_stage(fedloe(), spec=spec)
    assert torch.equal(after.model.buffers, before.model.buffers)
    assert torch.equal(after.model.parameters[:-HEAD], before.model.parameters[:-HEAD])


def test_an_mlp_head_is_refused_before_anything_runs() -> None:
    with pytest.raises(PlanError, match="fedloe-irm cannot work with an mlp head"):
        make_plan(task(3), algorithms=["fedavg", "fedloe-irm"], settings={"model.head": "mlp"})


def test_one_round_and_no_tuning_rows_are_refused() -> None:
    with pytest.raises(PlanError, match="at least 2 rounds"):
        make_plan(task(3), algorithms=["fedloe-rex"], rounds=1)
    with pytest.raises(PlanError, match="set tuning over 0"):
        make_plan(task(3), algorithms=["fedloe-rex"], settings={"tuning": 0.0})


def test_without_the_number_of_rounds_it_says_so() -> None:
    algorithm = build("fedloe-irm")
    state = algorithm.start(initial().state())
    with federation(algorithm, domains(1)) as fed, pytest.raises(AlgorithmError, match="number of rounds"):
        algorithm.round(fed, state)


def test_a_client_with_nothing_to_set_aside_is_named() -> None:
    algorithm = fedloe()
    with federation(algorithm, [*domains(2), domain("tiny", rows=2)]) as fed:
        fed.begin(1, range(3))
        algorithm.round(fed, algorithm.start(initial().state()))
        (event,) = fed.events
    assert event.client == 2
    assert "'tiny'" in event.message
    assert "too few to set tuning rows aside" in event.message


def _spread(problem: Task, name: str, **settings: Any) -> tuple[Tensor, Tensor, Any]:
    spec = problem.model
    algorithm = build(name, {"lr": 0.05, "batch_size": 32, **settings}, rounds=2)
    _, after, watched = second_stage(algorithm, problem.domains[:-1], spec)
    shares = watched.seen[0][1].weights("samples")
    phi = torch.tensor([after.diagnostics[f"phi_{r.client}"] for r in watched.seen[0][1]], dtype=torch.float64)
    return phi, shares, algorithm.problem(watched.seen[1][1], shares)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["linear-sem", "rect-4"])
def test_irm_lowers_its_objective_on_the_papers_toy_problems(name: str) -> None:
    phi, shares, problem = _spread(load(name), "fedloe-irm")
    assert float(problem.objective(phi)) < 0.999 * float(problem.objective(shares))
