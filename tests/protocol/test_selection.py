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


def source(by_round: dict[int, dict[str, float]], metric: str = "loss") -> list[SourceRow]:
    return [
        SourceRow(r, {name: {metric: value, "n": 10.0} for name, value in domains.items()})
        for r, domains in by_round.items()
    ]


def inner(by_domain: dict[str, dict[int, float]], metric: str = "loss") -> dict[str, list[InnerRow]]:
    return {name: [InnerRow(r, {metric: v}) for r, v in values.items()] for name, values in by_domain.items()}


ROWS = source(
    {
        10: {"art": 0.40, "photo": 0.30},
        20: {"art": 0.20, "photo": 0.25},
        30: {"art": 0.30, "photo": 0.18},
    }
)


def test_last_takes_the_last_round_whatever_its_metrics() -> None:
    assert choose("last", "accuracy", ROWS) == 30
    assert choose("last", "accuracy", list(reversed(ROWS))) == 30
    assert choose("last", "accuracy", [*ROWS, SourceRow(40, {"art": {"loss": math.nan}})]) == 40


def test_source_loss_takes_the_lowest_mean_loss_over_domains() -> None:
    # means .35, .225, .24
    assert choose("source-loss", "accuracy", ROWS) == 20


def test_source_validation_takes_the_best_mean_over_domains_whatever_their_size() -> None:
    rows = [
        SourceRow(1, {"big": {"accuracy": 0.9, "loss": 1.0, "n": 1000.0}, "small": {"accuracy": 0.1, "loss": 1.0}}),
        SourceRow(2, {"big": {"accuracy": 0.6, "loss": 2.0, "n": 1000.0}, "small": {"accuracy": 0.5, "loss": 2.0}}),
    ]
    assert choose("source-validation", "accuracy", rows) == 2
    assert choose("source-loss", "accuracy", rows) == 1


#: Accuracy is best in round 1 and again in round 3, AUROC in round 2, the loss in 4, the class-balanced loss in 3.
MANY = [
    SourceRow(1, {"a": {"accuracy": 0.9, "auroc": 0.5, "loss": 0.5, "balanced_loss": 0.9}}),
    SourceRow(2, {"a": {"accuracy": 0.8, "auroc": 0.8, "loss": 0.4, "balanced_loss": 0.6}}),
    SourceRow(3, {"a": {"accuracy": 0.9, "auroc": 0.7, "loss": 0.3, "balanced_loss": 0.4}}),
    SourceRow(4, {"a": {"accuracy": 0.7, "auroc": 0.6, "loss": 0.2, "balanced_loss": 0.5}}),
]


@pytest.mark.parametrize(
    ("rule", "metric", "chosen"),
    [
        ("source-loss", "accuracy", 4),
        ("source-loss", "auroc", 4),
        ("source-loss", "balanced_loss", 3),
        ("source-validation", "accuracy", 3),
        ("source-validation", "auroc", 2),
        ("source-validation", "average_precision", 2),
        ("source-validation", "loss", 4),
        ("source-validation", "brier", 4),
        ("source-accuracy", "accuracy", 1),
        ("source-accuracy", "auroc", 1),
        ("last", "auroc", 4),
    ],
)
def test_the_leading_metric_decides_what_each_rule_looks_at(rule: str, metric: str, chosen: int) -> None:
    assert choose(rule, metric, MANY) == chosen
    assert choose(rule, metric, MANY[::-1]) == chosen


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2", "loss"])
def test_a_regression_is_chosen_by_its_squared_error_under_every_rule(metric: str) -> None:
    rows = source({1: {"a": 3.0, "b": 1.0}, 2: {"a": 1.0, "b": 2.0}, 3: {"a": 2.0, "b": 3.0}})
    assert choose("source-validation", metric, rows) == choose("source-loss", metric, rows) == 2
    if metric != "loss":
        assert choose("source-accuracy", metric, rows) == 2


def test_ties_in_the_metric_go_to_the_lower_loss_and_then_to_the_later_round() -> None:
    rows = [
        SourceRow(r, {"a": {"accuracy": accuracy, "loss": loss}})
        for r, accuracy, loss in [(1, 0.9, 0.7), (2, 0.9, 0.5), (3, 0.9, 0.5), (4, 0.9, 0.6), (5, 0.8, 0.1)]
    ]
    assert choose("source-validation", "accuracy", rows) == 3
    assert choose("source-accuracy", "accuracy", rows) == 1


def test_the_later_of_equal_losses_wins_in_any_order_of_the_rows() -> None:
    rows = source({1: {"a": 0.5}, 2: {"a": 0.3}, 3: {"a": 0.3}, 4: {"a": 0.4}})
    assert choose("source-loss", "accuracy", rows) == 3
    assert choose("source-loss", "accuracy", rows[::-1]) == 3


def test_domains_in_another_order_tie_exactly() -> None:
    # 0.1 + 0.2 + 0.3 depends on the order when added naively, and the earlier round would win.
    rows = source({1: {"a": 0.1, "b": 0.2, "c": 0.3}, 2: {"a": 0.3, "b": 0.2, "c": 0.1}})
    assert choose("source-validation", "accuracy", rows) == 2
    other = source({1: {"a": 0.3, "b": 0.2, "c": 0.1}, 2: {"a": 0.1, "b": 0.2, "c": 0.3}})
    assert choose("source-validation", "accuracy", other) == 2


def test_a_metric_that_one_domain_cannot_define_is_averaged_over_the_others() -> None:
    rows = [
        SourceRow(1, {"a": {"auroc": 0.6, "loss": 1.0}, "one class": {"loss": 1.0}}),
        SourceRow(2, {"a": {"auroc": 0.8, "loss": 1.0}, "one class": {"loss": 1.0}}),
        SourceRow(3, {"a": {"auroc": 0.7, "loss": 1.0}, "one class": {"loss": 1.0}}),
    ]
    assert choose("source-validation", "auroc", rows) == 2


@pytest.mark.parametrize("diverged", [{"loss": 60.0}, {"auroc": math.nan, "loss": 60.0}])
def test_a_round_without_the_metric_in_a_domain_that_defines_it_elsewhere_does_not_win(
    diverged: dict[str, float],
) -> None:
    figures = {
        1: {"a": {"auroc": 0.8, "loss": 0.5}, "b": {"auroc": 0.6, "loss": 0.7}},
        2: {"a": {"auroc": 0.8, "loss": 0.5}, "b": diverged},  # the mean over the others is .8, above .7
    }
    rows = [SourceRow(r, of) for r, of in figures.items()]
    runs = {name: [InnerRow(r, of[name]) for r, of in figures.items()] for name in ("a", "b")}
    assert choose("source-validation", "auroc", rows) == 1
    assert choose("leave-one-domain-out", "auroc", rows, runs) == 1


def test_a_round_without_the_metric_in_any_domain_does_not_win_by_a_nearer_figure() -> None:
    rows = [
        SourceRow(1, {"a": {"average_precision": 0.6, "auroc": 0.7, "loss": 0.5}}),
        SourceRow(2, {"a": {"auroc": 0.9, "loss": 0.4}}),
    ]
    assert choose("source-validation", "average_precision", rows) == 1


def test_where_no_domain_defines_the_metric_the_loss_chooses() -> None:
    assert choose("source-validation", "auroc", ROWS) == 20
    assert choose("source-loss", "balanced_loss", ROWS) == 20


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("metric", ["accuracy", "rmse"])
def test_values_that_are_not_finite_never_win(metric: str, bad: float) -> None:
    rows = source({1: {"a": bad, "b": 0.1}, 2: {"a": 0.5, "b": 0.9}, 3: {"a": bad, "b": -bad}})
    assert choose("source-validation", metric, rows) == 2
    runs = inner({"a": {1: bad, 2: 0.5, 3: bad}, "b": {1: 0.1, 2: 0.9, 3: -bad}})
    assert choose("leave-one-domain-out", metric, rows, runs) == 2
    assert choose_oracle(metric, [TargetRow(1, {metric: bad}), TargetRow(2, {metric: 0.5})]) == 2


def test_no_finite_value_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="none of 2 rounds has a finite mean accuracy"):
        choose("source-validation", "accuracy", source({1: {"a": math.nan}, 2: {"a": math.nan}}))


def test_a_round_without_the_hard_domain_does_not_win() -> None:
    rows = source({1: {"easy": 0.1, "hard": 0.7}, 2: {"easy": 0.1}})
    assert choose("source-validation", "accuracy", rows) == 1


def test_leave_one_domain_out_takes_the_lowest_mean_loss_over_inner_domains() -> None:
    # means .45, .40, .35: not what source validation chooses
    runs = inner({"art": {10: 0.5, 20: 0.3, 30: 0.4}, "photo": {10: 0.4, 20: 0.5, 30: 0.3}})
    assert choose("leave-one-domain-out", "accuracy", ROWS, runs) == 30
    assert choose("source-validation", "accuracy", ROWS, runs) == 20


def test_leave_one_domain_out_takes_the_later_of_equals() -> None:
    rows = source({1: {"a": 1.0, "b": 1.0}, 2: {"a": 1.0, "b": 1.0}, 3: {"a": 1.0, "b": 1.0}})
    runs = inner({"a": {3: 0.2, 1: 0.9, 2: 0.1}, "b": {1: 0.9, 2: 0.2, 3: 0.1}})
    assert choose("leave-one-domain-out", "rmse", rows, runs) == 3


def test_leave_one_domain_out_chooses_among_rounds_that_everyone_has() -> None:
    runs = inner({"art": {20: 0.1, 30: 0.9, 40: 0.05}, "photo": {10: 0.01, 20: 0.8, 30: 0.7, 40: 0.05}})
    assert choose("leave-one-domain-out", "accuracy", ROWS, runs) == 20


def test_leave_one_domain_out_refuses_an_inner_run_on_anything_but_a_source() -> None:
    runs = inner({"art": {10: 0.5}, "sketch": {10: 0.5}})
    with pytest.raises(ValueError, match=r"inner run 'sketch' did not hold out a source.*\['art', 'photo'\]"):
        choose("leave-one-domain-out", "accuracy", ROWS, runs)


@pytest.mark.parametrize("runs", [None, {}])
def test_leave_one_domain_out_needs_inner_runs(runs: dict[str, list[InnerRow]] | None) -> None:
    with pytest.raises(ValueError, match="needs inner runs"):
        choose("leave-one-domain-out", "accuracy", ROWS, runs)


def test_leave_one_domain_out_refuses_runs_without_a_common_round() -> None:
    with pytest.raises(ValueError, match="no round was evaluated both"):
        choose("leave-one-domain-out", "accuracy", ROWS, inner({"art": {10: 0.5}, "photo": {20: 0.5}}))
    with pytest.raises(ValueError, match="no inner 'photo' rows"):
        choose("leave-one-domain-out", "accuracy", ROWS, inner({"art": {10: 0.5}, "photo": {}}))


def test_oracle_takes_the_best_on_the_target_and_the_latest_of_equals() -> None:
    rows = [TargetRow(r, {"accuracy": a, "loss": b}) for r, a, b in [(3, 0.8, 0.1), (1, 0.5, 0.9), (2, 0.8, 0.1)]]
    assert choose_oracle("accuracy", rows) == 3
    assert choose_oracle("loss", rows) == 3
    assert choose_oracle("auroc", rows) == 3  # not defined there, so the loss chooses
    assert choose_oracle("loss", [*rows, TargetRow(4, {"loss": 0.05})]) == 4


def test_oracle_loss_takes_the_lowest_loss_whatever_the_accuracy() -> None:
    rows = [TargetRow(r, {"accuracy": a, "loss": b}) for r, a, b in [(1, 0.7, 0.5), (2, 0.6, 0.4), (3, 0.9, 0.6)]]
    assert choose_oracle("accuracy", rows) == 3
    assert choose_oracle("accuracy", rows, "oracle-loss") == 2


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.is_oracle])
def test_a_single_row_is_chosen(rule: str) -> None:
    row = SourceRow(7, {"a": {"accuracy": 0.5, "loss": 0.7}})
    assert choose(rule, "accuracy", [row], inner({"a": {7: 0.5}})) == 7
    assert choose_oracle("accuracy", [TargetRow(7, {"accuracy": 0.5})]) == 7


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.is_oracle])
def test_no_rows_are_refused_in_a_sentence(rule: str) -> None:
    with pytest.raises(ValueError, match="there are no source rows to choose a round from"):
        choose(rule, "accuracy", [], inner({"a": {1: 0.5}}))
    with pytest.raises(ValueError, match="there are no held-out rows"):
        choose_oracle("accuracy", [])


def test_rows_without_any_domain_are_refused() -> None:
    with pytest.raises(ValueError, match="hold no domain's validation metrics"):
        choose("source-validation", "accuracy", [SourceRow(1, {})])


def test_a_round_that_appears_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"source rows have a round twice among \[10, 10, 20, 30\]"):
        choose("source-validation", "accuracy", [*ROWS, ROWS[0]])


def test_a_missing_figure_is_named() -> None:
    with pytest.raises(ValueError, match="none of 3 rounds has a finite mean accuracy over all domains"):
        choose("source-accuracy", "accuracy", ROWS)


def test_an_unknown_rule_gets_a_suggestion() -> None:
    with pytest.raises(
        ValueError, match="unknown selection rule 'source_validation'; did you mean 'source-validation'"
    ):
        choose("source_validation", "accuracy", ROWS)
    with pytest.raises(ValueError, match="there are last, source-validation, source-loss, source-accuracy, "):
        choose("xyzzy", "accuracy", ROWS)


def test_choose_refuses_the_oracle_and_only_the_oracle_is_one() -> None:
    for oracle in ("oracle", "oracle-loss"):
        with pytest.raises(ValueError, match=f"'{oracle}' looks at the held-out domain"):
            choose(oracle, "accuracy", ROWS)
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
    assert list(inspect.signature(choose).parameters) == ["rule", "metric", "source_rows", "inner"]
    assert [field.name for field in dataclasses.fields(SourceRow)] == ["round", "domains"]
    assert [field.name for field in dataclasses.fields(InnerRow)] == ["round", "metrics"]


@pytest.mark.parametrize("row", [SourceRow(1, {}), InnerRow(1, {}), TargetRow(1, {})])
def test_rows_take_no_further_fields(row: typing.Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.round = 2
    with pytest.raises(TypeError, match="target"):
        type(row)(round=1, target={"accuracy": 1.0}, **({"domains": {}} if "domains" in vars(row) else {"metrics": {}}))


# Parts of a power of two: sums and means are exact, so equal losses go with equal accuracies.
accuracies = st.lists(st.integers(0, 1024).map(lambda k: k / 1024), min_size=1, max_size=8)


@given(validation=accuracies, data=st.data())
def test_permuting_target_values_moves_the_oracle_and_no_other_rule(
    validation: list[float], data: st.DataObject
) -> None:
    rows = [
        SourceRow(r, {d: {"loss": v, "accuracy": 1.0 - v} for d, v in (("a", value), ("b", 1.0 - value / 2))})
        for r, value in enumerate(validation)
    ]
    runs = inner({"a": dict(enumerate(validation))})
    target = data.draw(st.lists(st.floats(0.0, 1.0), min_size=len(rows), max_size=len(rows), unique=True))

    def everything(values: list[float]) -> tuple[dict[str, int], int]:
        """What a report does: all rules in one place, the target file open beside them."""
        oracle = choose_oracle("accuracy", [TargetRow(r, {"accuracy": v}) for r, v in enumerate(values)])
        honest = {name: choose(name, "accuracy", rows, runs) for name in RULES if not RULES[name].is_oracle}
        return honest, oracle

    shuffled = data.draw(st.permutations(target))
    honest, oracle = everything(target)
    honest_again, oracle_again = everything(shuffled)
    assert honest == honest_again
    assert target[oracle] == shuffled[oracle_again] == max(target)
    assert honest["source-validation"] == min(
        range(len(rows)), key=lambda r: (math.fsum([validation[r], 1.0 - validation[r] / 2]) / 2, -r)
    )
    assert honest["last"] == len(rows) - 1
