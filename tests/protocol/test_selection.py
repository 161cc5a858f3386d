from __future__ import annotations

import dataclasses
import inspect
import math
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farfield.protocol import selection
from farfield.protocol.selection import (
    RULES,
    InnerRow,
    SourceRow,
    TargetRow,
    choose,
    choose_oracle,
)


def source(by_round: dict[int, dict[str, float]], metric: str = "accuracy") -> list[SourceRow]:
    return [
        SourceRow(r, {name: {metric: value, "n": 10.0} for name, value in domains.items()})
        for r, domains in by_round.items()
    ]


def inner(by_domain: dict[str, dict[int, float]], metric: str = "accuracy") -> dict[str, list[InnerRow]]:
    return {name: [InnerRow(r, {metric: v}) for r, v in values.items()] for name, values in by_domain.items()}


ROWS = source(
    {
        10: {"art": 0.60, "photo": 0.70},
        20: {"art": 0.80, "photo": 0.75},
        30: {"art": 0.70, "photo": 0.82},
    }
)


def test_last_takes_the_last_round_whatever_its_metrics() -> None:
    assert choose("last", "classification", ROWS) == 30
    assert choose("last", "classification", list(reversed(ROWS))) == 30
    assert choose("last", "classification", [*ROWS, SourceRow(40, {"art": {"accuracy": math.nan}})]) == 40


def test_source_validation_takes_the_best_mean_over_domains() -> None:
    # means .65, .775, .76
    assert choose("source-validation", "classification", ROWS) == 20


def test_source_validation_weighs_domains_equally_whatever_their_size() -> None:
    rows = [
        SourceRow(1, {"big": {"accuracy": 0.9, "n": 1000.0}, "small": {"accuracy": 0.1, "n": 10.0}}),
        SourceRow(2, {"big": {"accuracy": 0.6, "n": 1000.0}, "small": {"accuracy": 0.5, "n": 10.0}}),
    ]
    assert choose("source-validation", "classification", rows) == 2


def test_source_validation_takes_the_lowest_loss_for_regression() -> None:
    rows = source({1: {"a": 3.0, "b": 1.0}, 2: {"a": 1.0, "b": 2.0}, 3: {"a": 2.0, "b": 3.0}}, "loss")
    assert choose("source-validation", "regression", rows) == 2


def test_loss_does_not_choose_a_classifier() -> None:
    rows = [
        SourceRow(1, {"a": {"accuracy": 0.9, "loss": 9.0}}),
        SourceRow(2, {"a": {"accuracy": 0.8, "loss": 0.1}}),
    ]
    assert choose("source-validation", "classification", rows) == 1


def test_the_earliest_of_equal_rounds_wins_in_any_order_of_the_rows() -> None:
    rows = source({1: {"a": 0.5}, 2: {"a": 0.7}, 3: {"a": 0.7}, 4: {"a": 0.6}})
    assert choose("source-validation", "classification", rows) == 2
    assert choose("source-validation", "classification", rows[::-1]) == 2


def test_domains_in_another_order_tie_exactly() -> None:
    # 0.1 + 0.2 + 0.3 depends on the order when added naively, and the later round would win.
    rows = source({1: {"a": 0.3, "b": 0.2, "c": 0.1}, 2: {"a": 0.1, "b": 0.2, "c": 0.3}})
    assert choose("source-validation", "classification", rows) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("kind", "metric"), [("classification", "accuracy"), ("regression", "loss")])
def test_values_that_are_not_finite_never_win(kind: typing.Any, metric: str, bad: float) -> None:
    rows = source({1: {"a": bad, "b": 0.9}, 2: {"a": 0.5, "b": 0.1}, 3: {"a": bad, "b": -bad}}, metric)
    assert choose("source-validation", kind, rows) == 2
    runs = inner({"a": {1: bad, 2: 0.5, 3: bad}, "b": {1: 0.9, 2: 0.1, 3: -bad}}, metric)
    assert choose("leave-one-domain-out", kind, rows, runs) == 2
    assert choose_oracle(kind, [TargetRow(1, {metric: bad}), TargetRow(2, {metric: 0.5})]) == 2


def test_no_finite_value_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="none of 2 rounds has a finite mean accuracy"):
        choose("source-validation", "classification", source({1: {"a": math.nan}, 2: {"a": math.nan}}))


def test_a_round_without_the_hard_domain_does_not_win() -> None:
    rows = source({1: {"easy": 0.9, "hard": 0.3}, 2: {"easy": 0.9}})
    assert choose("source-validation", "classification", rows) == 1


def test_leave_one_domain_out_takes_the_best_mean_over_inner_domains() -> None:
    # means .55, .60, .65: not what source validation chooses
    runs = inner({"art": {10: 0.5, 20: 0.7, 30: 0.6}, "photo": {10: 0.6, 20: 0.5, 30: 0.7}})
    assert choose("leave-one-domain-out", "classification", ROWS, runs) == 30
    assert choose("source-validation", "classification", ROWS, runs) == 20


def test_leave_one_domain_out_takes_the_lowest_loss_and_the_earliest_tie() -> None:
    rows = source({1: {"a": 1.0, "b": 1.0}, 2: {"a": 1.0, "b": 1.0}, 3: {"a": 1.0, "b": 1.0}}, "loss")
    runs = inner({"a": {3: 0.2, 1: 0.9, 2: 0.1}, "b": {1: 0.9, 2: 0.2, 3: 0.1}}, "loss")
    assert choose("leave-one-domain-out", "regression", rows, runs) == 2


def test_leave_one_domain_out_chooses_among_rounds_that_everyone_has() -> None:
    runs = inner({"art": {20: 0.9, 30: 0.1, 40: 0.95}, "photo": {10: 0.99, 20: 0.2, 30: 0.3, 40: 0.95}})
    assert choose("leave-one-domain-out", "classification", ROWS, runs) == 20


def test_leave_one_domain_out_refuses_an_inner_run_on_anything_but_a_source() -> None:
    runs = inner({"art": {10: 0.5}, "sketch": {10: 0.5}})
    with pytest.raises(ValueError, match=r"inner run 'sketch' did not hold out a source.*\['art', 'photo'\]"):
        choose("leave-one-domain-out", "classification", ROWS, runs)


@pytest.mark.parametrize("runs", [None, {}])
def test_leave_one_domain_out_needs_inner_runs(runs: dict[str, list[InnerRow]] | None) -> None:
    with pytest.raises(ValueError, match="needs inner runs"):
        choose("leave-one-domain-out", "classification", ROWS, runs)


def test_leave_one_domain_out_refuses_runs_without_a_common_round() -> None:
    with pytest.raises(ValueError, match="no round was evaluated both"):
        choose("leave-one-domain-out", "classification", ROWS, inner({"art": {10: 0.5}, "photo": {20: 0.5}}))
    with pytest.raises(ValueError, match="no inner 'photo' rows"):
        choose("leave-one-domain-out", "classification", ROWS, inner({"art": {10: 0.5}, "photo": {}}))


def test_oracle_takes_the_best_on_the_target_and_the_earliest_tie() -> None:
    rows = [TargetRow(r, {"accuracy": a, "loss": b}) for r, a, b in [(3, 0.8, 0.1), (1, 0.5, 0.9), (2, 0.8, 0.1)]]
    assert choose_oracle("classification", rows) == 2
    assert choose_oracle("regression", rows) == 2
    assert choose_oracle("regression", [*rows, TargetRow(4, {"loss": 0.05})]) == 4


def test_oracle_loss_takes_the_lowest_loss_whatever_the_accuracy() -> None:
    rows = [TargetRow(r, {"accuracy": a, "loss": b}) for r, a, b in [(1, 0.7, 0.5), (2, 0.6, 0.4), (3, 0.9, 0.6)]]
    assert choose_oracle("classification", rows) == 3
    assert choose_oracle("classification", rows, "oracle-loss") == 2


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.is_oracle])
def test_a_single_row_is_chosen(rule: str) -> None:
    assert choose(rule, "classification", source({7: {"a": 0.5}}), inner({"a": {7: 0.5}})) == 7
    assert choose_oracle("classification", [TargetRow(7, {"accuracy": 0.5})]) == 7


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.is_oracle])
def test_no_rows_are_refused_in_a_sentence(rule: str) -> None:
    with pytest.raises(ValueError, match="there are no source rows to choose a round from"):
        choose(rule, "classification", [], inner({"a": {1: 0.5}}))
    with pytest.raises(ValueError, match="there are no held-out rows"):
        choose_oracle("classification", [])


def test_rows_without_any_domain_are_refused() -> None:
    with pytest.raises(ValueError, match="hold no domain's validation metrics"):
        choose("source-validation", "classification", [SourceRow(1, {})])


def test_a_round_that_appears_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"source rows have a round twice among \[10, 10, 20, 30\]"):
        choose("source-validation", "classification", [*ROWS, ROWS[0]])


def test_a_missing_metric_is_named() -> None:
    with pytest.raises(ValueError, match=r"round 10, domain 'art' has no 'loss', only \['accuracy', 'n'\]"):
        choose("source-validation", "regression", ROWS)


def test_an_unknown_rule_gets_a_suggestion() -> None:
    with pytest.raises(
        ValueError, match="unknown selection rule 'source_validation'; did you mean 'source-validation'"
    ):
        choose("source_validation", "classification", ROWS)
    with pytest.raises(ValueError, match="there are last, source-validation, leave-one-domain-out, oracle"):
        choose("xyzzy", "classification", ROWS)


def test_choose_refuses_the_oracle_and_only_the_oracle_is_one() -> None:
    for oracle in ("oracle", "oracle-loss"):
        with pytest.raises(ValueError, match=f"'{oracle}' looks at the held-out domain"):
            choose(oracle, "classification", ROWS)
    assert [rule.name for rule in RULES.values() if rule.is_oracle] == ["oracle", "oracle-loss"]
    assert [rule.name for rule in RULES.values() if rule.needs_inner] == ["leave-one-domain-out"]
    assert all(name == rule.name and rule.description for name, rule in RULES.items())


def test_only_the_oracle_function_can_be_given_target_rows() -> None:
    takes_target = {
        name
        for name, function in inspect.getmembers(selection, inspect.isfunction)
        if function.__module__ == selection.__name__
        and not name.startswith("_")
        and any(
            "TargetRow" in str(parameter.annotation) for parameter in inspect.signature(function).parameters.values()
        )
    }
    assert takes_target == {"choose_oracle"}
    assert list(inspect.signature(choose).parameters) == ["rule", "kind", "source_rows", "inner"]
    assert [field.name for field in dataclasses.fields(SourceRow)] == ["round", "domains"]
    assert [field.name for field in dataclasses.fields(InnerRow)] == ["round", "metrics"]


@pytest.mark.parametrize("row", [SourceRow(1, {}), InnerRow(1, {}), TargetRow(1, {})])
def test_rows_take_no_further_fields(row: typing.Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.round = 2
    with pytest.raises(TypeError, match="target"):
        type(row)(round=1, target={"accuracy": 1.0}, **({"domains": {}} if "domains" in vars(row) else {"metrics": {}}))


accuracies = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


@given(validation=accuracies, data=st.data())
def test_permuting_target_values_moves_the_oracle_and_no_other_rule(
    validation: list[float], data: st.DataObject
) -> None:
    rows = source({r: {"a": value, "b": 1.0 - value / 2} for r, value in enumerate(validation)})
    runs = inner({"a": dict(enumerate(validation))})
    target = data.draw(st.lists(st.floats(0.0, 1.0), min_size=len(rows), max_size=len(rows), unique=True))

    def everything(values: list[float]) -> tuple[dict[str, int], int]:
        """What a report does: all rules in one place, the target file open beside them."""
        oracle = choose_oracle("classification", [TargetRow(r, {"accuracy": v}) for r, v in enumerate(values)])
        honest = {name: choose(name, "classification", rows, runs) for name in RULES if not RULES[name].is_oracle}
        return honest, oracle

    shuffled = data.draw(st.permutations(target))
    honest, oracle = everything(target)
    honest_again, oracle_again = everything(shuffled)
    assert honest == honest_again
    assert target[oracle] == shuffled[oracle_again] == max(target)
    assert honest["source-validation"] == min(
        range(len(rows)), key=lambda r: (-math.fsum([validation[r], 1.0 - validation[r] / 2]) / 2, r)
    )
    assert honest["last"] == len(rows) - 1
