"""A malicious server gets no row back with approved messages: one question per round, and only plausible models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")
from farfield.deployment.site.ledger import Ledger
from farfield.deployment.site.shown_rows import MEMORY, shown_before, shown_rows
from farfield.federation.refusal import Refused
from farfield.models import ModelSpec, build_model
from studies.reconstruction import Allowed, Victim, attack, crafted, write_hospitals


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    write_hospitals(tmp_path, made_up=True)
    return tmp_path


def test_without_a_guard_the_attack_gets_the_rows(hospitals: Path) -> None:
    """The attack works; what stops it is the guard."""
    loot = attack(Victim(hospitals, guarded=False), "repeats", questions=12)
    assert int(loot.found.sum()) > 40, "of 54"


@pytest.mark.parametrize("way", ["repeats", "runs", "rounds"])
def test_the_guard_leaves_nothing_to_the_attack(hospitals: Path, way: str) -> None:
    loot = attack(Victim(hospitals), way, questions=10)
    assert int(loot.found.sum()) == 0


@pytest.mark.parametrize(("way", "most"), [("few-units", 3), ("patient", 6), ("few-rows", 9), ("average", 5)])
def test_what_remains_is_a_few_rows_in_ten_rounds(hospitals: Path, way: str, most: int) -> None:
    """An honest update shows single rows as well, now and then; with `shown_rows = 0` a site does not send it."""
    assert 0 < int(attack(Victim(hospitals), way, questions=10).found.sum()) <= most


@pytest.mark.parametrize("way", ["few-units", "patient", "few-rows", "average"])
def test_no_row_is_shown_where_the_operator_allows_none(hospitals: Path, way: str) -> None:
    strict = Victim(hospitals, limits={"limits": {"shown_rows": 0}})
    assert int(attack(strict, way, questions=10).found.sum()) == 0


def test_a_server_that_takes_few_rows_at_a_time_gets_few_in_all(hospitals: Path) -> None:
    """The site remembers which rows it has shown, also when its process is started again."""
    limited = Victim(hospitals, limits={"limits": {"shown_rows": 2, "shown_in_all": 3}}, rounds=30)
    assert 0 < int(attack(limited, "few-rows", questions=30).found.sum()) <= 3
    assert any("more than 3 different rows" in reason for reason in limited.refused)
    memory = hospitals / "cleveland" / "state" / MEMORY
    assert memory.stat().st_mode & 0o077 == 0
    kept = json.loads(memory.read_text())["rows"]
    assert len(kept) == 3
    assert shown_before(memory.parent) == frozenset(kept)
    memory.write_text(memory.read_text().replace(kept[0], "0" * 32))
    with pytest.raises(Refused, match="cannot be read"):
        shown_before(memory.parent)


@pytest.mark.slow
def test_over_many_rounds_the_defaults_leave_ten_rows(hospitals: Path) -> None:
    found = {}
    for most in (10, 54):
        folder = hospitals / str(most)
        write_hospitals(folder, made_up=True)
        victim = Victim(folder, limits={"limits": {"shown_in_all": most}}, rounds=60)
        found[most] = int(attack(victim, "few-rows", questions=60).found.sum())
    assert found[10] <= 10 < 20 < found[54]


@pytest.mark.slow
def test_the_last_look_stops_a_patient_server_without_the_bound_and_the_bound_hinders_it_without_the_look(
    tmp_path: Path,
) -> None:
    """The bound alone grows with the rounds, because honest models do: within it some rows come back."""
    found = {}
    for number, limits in enumerate(
        ({"model_change": 30.0, "shown_rows": 54}, {"model_change": 30.0}, {"shown_rows": 54})
    ):
        folder = tmp_path / str(number)
        write_hospitals(folder, made_up=True)
        found[number] = int(attack(Victim(folder, limits={"limits": limits}), "patient", questions=10).found.sum())
    assert found[0] > 30, "without both"
    assert found[1] == 0, "the bound is off, the last look is on"
    assert 0 < found[2] < 15, "the bound is on, the last look is off"


def test_the_rows_that_an_update_shows_are_counted() -> None:
    """By hand: three rows, and three units that are active for the first, for the first two and for all of them."""
    rows = torch.tensor([[1.0, 2.0], [-3.0, 0.5], [0.25, -1.0]])
    model = build_model(ModelSpec(input_shape=(2,), outputs=2, hidden=(3,)), 0)
    first, bias = list(model.layout.slices)[:2]
    weights = torch.tensor([[0.3, 0.0, 0.0], [0.3, -0.2, 0.0], [0.3, -0.2, 0.7]])
    update = torch.zeros_like(model.vector)
    update[model.layout.slices[first]] = (weights @ rows).reshape(-1)
    update[model.layout.slices[bias]] = weights.sum(dim=1)
    assert torch.equal(shown_rows({"update": update}, model.vector, model.layout, rows), rows)
    mixed = torch.tensor([[0.3, -0.2, 0.7], [0.1, 0.5, 0.3], [-0.4, 0.2, 0.9]])
    update[model.layout.slices[first]] = (mixed @ rows).reshape(-1)
    update[model.layout.slices[bias]] = mixed.sum(dim=1)
    assert len(shown_rows({"update": update, "loss": 0.1}, model.vector, model.layout, rows)) == 0
    assert len(shown_rows({"update": update}, model.vector, model.layout, torch.zeros(3, 1, 2))) == 0


def ask(victim: Victim, parameters: torch.Tensor, round: int = 1, run: str = "run") -> str:
    """Return the refusal of a question of phase 'head_gradient'; empty if it is answered."""
    before = len(victim.refused)
    answer = victim.ask("head_gradient", parameters, round, run)
    assert bool(answer) == (len(victim.refused) == before)
    return "" if answer else victim.refused[-1]


def nudged(victim: Victim, size: float) -> torch.Tensor:
    return victim.model.vector + size


def test_a_second_question_is_refused_and_the_same_one_answered_again_with_the_same_answer(hospitals: Path) -> None:
    victim = Victim(hospitals)
    first = victim.model.vector
    one, again = (victim.ask("head_gradient", first) for _ in range(2))
    assert torch.equal(one["gradient"], again["gradient"])
    assert "another question for phase 'head_gradient' of round 1" in ask(victim, nudged(victim, 1e-6))
    target = one["gradient"]
    trained, repeated = (victim.ask("train", first, target=target) for _ in range(2))
    assert torch.equal(trained["update"], repeated["update"])
    assert victim.ask("train", first, target=target * 0.5) == {}
    assert "another question for phase 'train'" in victim.refused[-1]


def test_the_ledger_outlives_the_sites_process(hospitals: Path) -> None:
    victim = Victim(hospitals)
    assert ask(victim, victim.model.vector) == ""
    back = Victim(hospitals)
    assert "another question" in ask(back, nudged(back, 1e-6))
    assert ask(back, back.model.vector) == ""


def test_a_new_name_of_a_run_is_a_new_run_and_needs_the_operator(hospitals: Path) -> None:
    victim = Victim(hospitals)
    assert ask(victim, victim.model.vector, run="a") == ""
    assert "takes part in 1 runs" in ask(victim, victim.model.vector, run="b")
    Ledger(victim.state).allow_another_run()
    assert ask(victim, victim.model.vector, run="b") == ""
    assert "takes part in 2 runs" in ask(victim, victim.model.vector, run="c")
    assert ask(victim, victim.model.vector, run="a") == "", "the earlier run goes on"


def test_the_first_model_is_that_of_the_seed(hospitals: Path) -> None:
    victim = Victim(hospitals)
    assert "not the one that the approved seed makes" in ask(victim, crafted(victim, 0))
    assert "not the one that the approved seed makes" in ask(victim, nudged(victim, 1e-3))
    assert ask(victim, nudged(victim, 1e-7)) == "", "another machine's last digits"


def test_a_model_that_jumps_is_refused_and_the_refusal_says_the_way_out(hospitals: Path) -> None:
    victim = Victim(hospitals)
    assert ask(victim, victim.model.vector) == ""
    why = ask(victim, crafted(victim, 0), round=2)
    assert "limits.model_change = " in why
    needed = int(why.split("limits.model_change = ")[1].split()[0])
    wider = Victim(hospitals, limits={"limits": {"model_change": float(needed)}})
    assert ask(wider, crafted(victim, 0), round=2) == ""


def test_a_refused_question_does_not_use_up_the_round(hospitals: Path) -> None:
    victim = Victim(hospitals)
    assert ask(victim, crafted(victim, 0)) != ""
    assert ask(victim, victim.model.vector) == ""


def test_a_damaged_ledger_answers_nothing_more(hospitals: Path) -> None:
    victim = Victim(hospitals)
    assert ask(victim, victim.model.vector) == ""
    path = victim.state / "ledger.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0][:20], *lines[1:]]) + "\n")
    assert "cannot be read" in ask(victim, victim.model.vector)


def test_a_changed_byte_in_the_remembered_model_answers_nothing_more(hospitals: Path) -> None:
    victim = Victim(hospitals)
    assert ask(victim, victim.model.vector) == ""
    (path,) = victim.state.glob("model-*.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # within the last weight, by which the next model is judged
    path.write_bytes(content)
    assert "cannot be read" in ask(victim, victim.model.vector, round=2)


def test_a_line_that_a_kill_has_cut_is_no_damage(hospitals: Path) -> None:
    victim = Victim(hospitals)
    assert ask(victim, victim.model.vector) == ""
    path = victim.state / "ledger.jsonl"
    path.write_text(path.read_text() + '{"kind": "pha')
    for _ in range(3):  # what is added after it must not make it damage
        assert ask(victim, victim.model.vector) == ""


def test_the_ledger_says_what_was_asked_and_answered(hospitals: Path) -> None:
    victim = Victim(hospitals)
    victim.ask("head_gradient", victim.model.vector)
    rows = [json.loads(line) for line in (victim.state / "ledger.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["run", "phase", "answer"]
    assert (rows[1]["run"], rows[1]["round"], rows[1]["phase"]) == ("run", 1, "head_gradient")
    assert len(rows[2]["answer"]) == 64


@pytest.mark.parametrize(
    ("limit", "why"), [({"rows": 60}, "54 training rows"), ({"update_rows": 60}, "the update would be of 54 rows")]
)
def test_too_few_rows_send_nothing(hospitals: Path, limit: dict[str, int], why: str) -> None:
    victim = Victim(hospitals, limits={"limits": limit})
    victim.ask("head_gradient", victim.model.vector)
    assert why in victim.refused[-1]


def test_an_update_of_few_rows_is_not_sent_whatever_the_settings_are(hospitals: Path) -> None:
    """One step of two rows is an update of two rows, although the site has 54."""
    victim = Victim(hospitals, settings={"batch_size": 2, "local_steps": 1})
    told = victim.ask("head_gradient", victim.model.vector)
    assert victim.ask("train", victim.model.vector, target=told["gradient"]) == {}
    assert "the update would be of 2 rows, and this site's operator asks for at least 8" in victim.refused[-1]


def test_validation_figures_of_few_rows_are_not_sent(hospitals: Path) -> None:
    victim = Victim(hospitals, limits={"limits": {"validation_rows": 7}})
    assert victim.ask("evaluate", victim.model.vector) == {}
    assert "6 validation rows" in victim.refused[-1]


def test_a_preparation_that_stretches_or_hides_columns_is_refused(hospitals: Path) -> None:
    victim = Victim(hospitals)
    honest = victim.fitted.to_json()
    for change in (
        {"scale": 1e-3},
        {"mean": 1e4},
        {"live": [False] * len(honest["columns"][0]["live"])},
    ):
        content = json.loads(json.dumps(honest))
        content["columns"][0] |= change
        victim.fitted = type(victim.fitted).from_json(content)  # type: ignore[attr-defined]
        assert "preparation of the columns" in ask(victim, victim.model.vector), change
    victim.fitted = type(victim.fitted).from_json(honest)  # type: ignore[attr-defined]
    assert ask(victim, victim.model.vector) == ""


def test_shared_values_are_those_that_the_method_declares_and_not_too_long(hospitals: Path) -> None:
    victim = Victim(hospitals)
    told = victim.ask("head_gradient", victim.model.vector)
    weights = torch.tensor([0.0, 1.0])
    assert victim.ask("train", victim.model.vector, target=told["gradient"], class_weights=weights) == {}
    assert "'class_weights' with phase 'train', which fediir does not take" in victim.refused[-1]
    for bad in (told["gradient"] * 1e6, told["gradient"] * float("nan"), told["gradient"][:3]):
        assert victim.ask("train", victim.model.vector, target=bad) == {}
        assert "'target' is not finite" in victim.refused[-1]
    assert "update" in victim.ask("train", victim.model.vector, target=told["gradient"])


def test_a_site_that_missed_rounds_accepts_the_change_of_as_many(hospitals: Path) -> None:
    """The bound grows with the rounds in between, so that a site that was away can come back."""
    victim = Victim(hospitals)
    direction = torch.randn(len(victim.model.vector), generator=torch.Generator().manual_seed(0))
    far = victim.model.vector + direction / direction.norm() * Allowed(victim).change(3)
    assert "the approved method can change it" in ask(victim, far, round=2)
    assert ask(victim, far, round=6) == ""
