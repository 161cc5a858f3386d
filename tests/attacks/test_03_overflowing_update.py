"""One client sends numbers that are finite and that no computation survives: it is named, and the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from farfield.algorithms import FedAvg, State, build
from farfield.federation.federation import FederationError
from farfield.models import ModelState
from farfield.records import Checkpoint, RunFolder
from farfield.runs.plan import Job, make_plan
from farfield.runs.single_run import run_job
from farfield.runs.sound_rounds import suspect, unsound
from tests.attacks.hostile import HOSTILE, Attacked, Change, attacked, four_domains, honest, task
from tests.toy import initial, lose


def with_entries(name: str, size: float, phase: str = "train", only: int | None = None) -> Change:
    """Replies whose value of that name has entries of that size and of either sign, in every round or in one."""

    def change(at: str, round: int, values: dict[str, Any]) -> dict[str, Any]:
        if at != phase or name not in values or (only is not None and round != only):
            return values
        signs = torch.randn(values[name].shape, generator=torch.Generator().manual_seed(0)).sign()
        return {**values, name: size * (signs.abs() if name == "variance" else signs)}

    return change


def assert_sound(run: Attacked) -> None:
    assert unsound(run.rounds.state) is None
    checkpoints = list(run.records.checkpoints())
    assert checkpoints
    assert all(checkpoint.is_finite for checkpoint in checkpoints)


def test_an_update_of_3e38_is_dropped_and_named_and_the_others_train(tmp_path: Path) -> None:
    run = attacked(tmp_path, with_entries("update", 3e38))
    assert_sound(run)
    dropped = run.events("reply-dropped")
    assert [(e["round"], e["client"]) for e in dropped] == [(number, HOSTILE) for number in (1, 2, 3, 4)]
    assert dropped[0]["message"] == "'update' has an entry of size 3.0e+38, and 1e+18 is the largest that can be"
    losses = [row["loss"] for row in run.records.rounds()]
    assert losses[-1] < 0.9 * losses[0]
    assert run.rounds.sound.left_out == set()


@pytest.mark.parametrize(
    ("name", "output", "phase"),
    [
        ("scaffold", "control_change", "train"),
        ("fediir", "gradient", "head_gradient"),
        ("fedilc-fishr", "variance", "gradient_and_variance"),
        ("fedilc-fishr", "penalty_gradient", "variance_gradient"),
        ("fedilc-inter-geo", "gradient", "gradient_and_variance"),
        ("fedsgd", "gradient", "full_gradient"),
        ("fedcir", "update", "train"),
        ("fedloe-erm", "head", "train_head"),
        ("fedloe-erm", "predictions", "predict_tuning"),
    ],
)
def test_no_message_of_any_method_may_carry_such_a_number(tmp_path: Path, name: str, output: str, phase: str) -> None:
    run = attacked(tmp_path, with_entries(output, 3e38, phase), name)
    assert_sound(run)
    dropped = run.events("reply-dropped")
    assert {e["client"] for e in dropped} == {HOSTILE}
    assert {e["phase"] for e in dropped} == {phase}
    assert f"'{output}' has an entry of size 3.0e+38" in dropped[0]["message"]


def test_buffers_of_that_size_are_dropped_as_well() -> None:
    from farfield.federation.reply_checks import fault
    from farfield.models import build_model
    from tests.toy import SPEC

    images = {"featurizer": "convnet", "input_shape": (1, 8, 8), "hidden": (2,), "norm": "average"}
    layout = build_model(SPEC.model_copy(update=images), 0).layout
    sends = build("fedavg").train.__sends__  # type: ignore[attr-defined]
    values = {"update": torch.zeros(layout.parameters), "loss": 1.0, "buffers": torch.full((layout.buffers,), 3e38)}
    assert "'buffers' has an entry of size 3.0e+38" in str(fault(values, sends, layout))
    assert fault({**values, "buffers": torch.ones(layout.buffers)}, sends, layout) is None


def test_where_accepted_replies_lead_to_no_sound_state_the_one_responsible_is_left_out_and_the_round_repeated(
    tmp_path: Path,
) -> None:
    """Adam keeps squares: an entry of 9e17 may be sent, and its square is no state to go on with."""
    run = attacked(tmp_path, with_entries("update", 9e17), "fedadam")
    assert_sound(run)
    (left,) = run.events("left-out")
    assert (left["round"], left["client"], left["phase"]) == (1, HOSTILE, "train")
    assert left["message"].startswith(
        "'d' is left out of the rest of the run: its 'update' has an entry of size 9.0e+17"
    )
    assert "the server optimizer's 'v' would have an entry of size" in left["message"]
    assert run.events("round-skipped") == []
    assert [row["clients"] for row in run.records.rounds()] == [3, 3, 3, 3]
    without = attacked(tmp_path / "never-there", honest, "fedadam", make_federation=_three_honest)
    assert run.result["model_sha256"] == without.result["model_sha256"]


def _three_honest(algorithm: FedAvg) -> Any:
    """The same clients, of which the last never replies: the others train as if it were not there."""
    from tests.toy import federation

    fed = federation(algorithm, four_domains())
    phases = {phase: {HOSTILE} for phase in ("train", "evaluate")}
    lose(fed, phases)
    return fed


@pytest.mark.parametrize(
    ("name", "output", "phase"),
    [("scaffold", "control_change", "train"), ("fedavg", "update", "train"), ("fediir", "gradient", "head_gradient")],
)
def test_a_model_that_is_finite_and_useless_to_everybody_is_taken_back(
    tmp_path: Path, name: str, output: str, phase: str
) -> None:
    """Just below the limits: nobody can train on the result, so the run steps back and goes on without the client."""
    run = attacked(tmp_path, with_entries(output, 9e17, phase), name, rounds=6)
    assert_sound(run)
    (left,) = run.events("left-out")
    assert left["client"] == HOSTILE
    losses = [row["loss"] for row in run.records.rounds() if row["loss"] is not None]
    assert losses[-1] < 0.9 * losses[0]
    assert run.records.rounds()[-1]["validation"].keys() == {"a", "b", "c"}


def test_an_attack_in_the_last_round_is_taken_back_before_it_is_kept(tmp_path: Path) -> None:
    run = attacked(tmp_path, with_entries("update", 9e17, only=4))
    assert_sound(run)
    assert [e["round"] for e in run.events("stepped-back")] == [4]
    assert run.records.rounds()[-1]["validation"]["a"]["accuracy"] > 0.5


def test_a_round_without_a_sound_state_is_skipped_where_nobody_stands_out(tmp_path: Path) -> None:
    class Infinite(FedAvg):
        name = "infinite-for-a-test"

        def round(self, fed: Any, state: State) -> State:
            after = super().round(fed, state)
            return state.replace_model(ModelState(after.model.parameters * torch.inf, after.model.buffers))

    from farfield.algorithms import registry

    registry.register(Infinite)
    try:
        with pytest.raises(
            FederationError, match=r"no reply stands out: the model's parameters are not finite, 3 rounds"
        ):
            attacked(tmp_path, honest, "infinite-for-a-test")
        assert [e["round"] for e in RunFolder(tmp_path).events() if e["kind"] == "round-skipped"] == [1, 2]
        assert all(checkpoint.is_finite for checkpoint in RunFolder(tmp_path).checkpoints())
    finally:
        registry._METHODS.pop("infinite-for-a-test")


def test_over_flowers_messages_it_is_the_same(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from farfield.federation.engines.flower.packing import unpack
    from tests.federation.engines.flower.in_process import of_client, over_grid, rewritten

    def tamper(size: float) -> Any:
        def change(reply: Any) -> list[Any]:
            if not of_client(reply, str(HOSTILE)):
                return [reply]
            values = unpack(reply.content)[1]["values"]
            return [rewritten(reply, values=with_entries("update", size)("train", 0, values))]

        return change

    def grid(size: float, name: str) -> Any:
        return lambda algorithm: over_grid(name, algorithm, four_domains(), rounds=4, tamper=tamper(size))[0]

    dropped = attacked(tmp_path / "a", honest, make_federation=grid(3e38, "fedavg"))
    assert_sound(dropped)
    assert {e["client"] for e in dropped.events("reply-dropped")} == {HOSTILE}
    local = attacked(tmp_path / "b", with_entries("update", 3e38))
    assert dropped.result["model_sha256"] == local.result["model_sha256"]
    left_out = attacked(tmp_path / "c", honest, "fedadam", make_federation=grid(9e17, "fedadam"))
    assert [e["client"] for e in left_out.events("left-out")] == [HOSTILE]
    local = attacked(tmp_path / "d", with_entries("update", 9e17), "fedadam")
    assert left_out.result["model_sha256"] == local.result["model_sha256"]


def _poison(folder: Path, *rounds: int) -> None:
    """Make checkpoints what a version without these checks has left behind."""
    records = RunFolder(folder)
    for checkpoint in list(records.checkpoints()):
        if checkpoint.round in rounds:
            tensors = {**checkpoint.tensors, "model/parameters": checkpoint.tensors["model/parameters"] * torch.inf}
            records.save_checkpoint(Checkpoint(checkpoint.round, tensors, checkpoint.meta))


@pytest.mark.parametrize(("poisoned", "goes_on"), [((4,), "round 3"), ((3, 4), "its start")])
def test_a_run_steps_back_behind_checkpoints_that_are_poisoned(
    tmp_path: Path, poisoned: tuple[int, ...], goes_on: str
) -> None:
    problem = task()
    job = Job("fedavg", "d", 0)
    plan = make_plan(problem, algorithms=["fedavg"], held_out=["d"], seeds=1, rounds=4)
    whole = run_job(plan, problem, job, tmp_path, checkpoint_every=1)
    (tmp_path / "result.json").unlink()
    _poison(tmp_path, *poisoned)
    again = run_job(plan, problem, job, tmp_path, checkpoint_every=1)
    assert again["model_sha256"] == whole["model_sha256"]
    (event,) = [e for e in RunFolder(tmp_path).events() if e["kind"] == "stepped-back"]
    assert event["message"] == f"the checkpoint of round 4 cannot be used; the run steps back to {goes_on}"


def test_a_client_that_was_left_out_stays_out_when_the_run_is_resumed(tmp_path: Path) -> None:
    run = attacked(tmp_path / "whole", with_entries("update", 9e17), "fedadam", rounds=5)

    class Stop(Exception):
        pass

    def stopping(at: int) -> Change:
        attack = with_entries("update", 9e17)

        def change(phase: str, round: int, values: dict[str, Any]) -> dict[str, Any]:
            return attack(phase, round, values)

        return change

    from farfield.runs import rounds as rounds_module

    made = rounds_module.Rounds.step

    def stop(self: Any) -> None:
        if self.state.round == 3:
            raise Stop
        made(self)

    rounds_module.Rounds.step = stop  # type: ignore[method-assign]
    try:
        with pytest.raises(Stop):
            attacked(tmp_path / "parts", stopping(3), "fedadam", rounds=5)
    finally:
        rounds_module.Rounds.step = made  # type: ignore[method-assign]
    resumed = attacked(tmp_path / "parts", stopping(3), "fedadam", rounds=5)
    assert resumed.rounds.sound.left_out == {HOSTILE}
    assert len(resumed.events("left-out")) == 1
    assert resumed.result["model_sha256"] == run.result["model_sha256"]


def test_who_stands_out_is_the_one_whose_largest_entry_is_a_hundred_times_the_median() -> None:
    sizes = {("train", "update"): {0: 1.0, 1: 2.0, 2: 3.0, 3: 250.0}, ("train", "buffers"): {0: 9.0, 1: 9.0, 2: 9e5}}
    found = suspect(sizes)
    assert found is not None
    assert (found.client, found.name, found.times) == (2, "buffers", 1e5)
    assert suspect({("train", "update"): {0: 1.0, 1: 2.0, 2: 3.0, 3: 199.0}}) is None
    assert suspect({("train", "update"): {0: 1.0, 1: 1e9}}) is None, "of two nobody can say which is wrong"
    assert suspect(sizes, known={2, 3}) is None


def test_a_state_is_unsound_if_any_part_of_it_is() -> None:
    state = build("fedadam").start(initial().state())
    assert unsound(state) is None

    def with_part(**parts: dict[str, Tensor]) -> State:
        from dataclasses import replace

        return replace(state, **parts)  # type: ignore[arg-type]

    assert unsound(with_part(slots={"v": torch.tensor([1.0, torch.nan])})) == "the server optimizer's 'v' is not finite"
    assert unsound(with_part(extras={"target": torch.tensor([torch.inf])})) == "the server's 'target' is not finite"
    assert "an entry of size 1.0e+31" in str(unsound(with_part(extras={"target": torch.tensor([1e31])})))
    assert unsound(with_part(extras={"count": torch.tensor([1 << 60])})) is None
