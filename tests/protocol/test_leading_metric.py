from __future__ import annotations

import pytest

from farfield.errors import UserError
from farfield.protocol.leading_metric import check_metric, leading_metric, metric_named


@pytest.mark.parametrize(
    ("counts", "metric", "share"),
    [
        ((50, 50), "accuracy", "50 %"),
        ((25, 75), "accuracy", "75 %"),
        ((24, 76), "auroc", "76 %"),
        ((1, 99), "auroc", "99 %"),
        ((30, 40, 30), "accuracy", "40 %"),
        ((10, 80, 10), "balanced_accuracy", "80 %"),
        ((0, 50, 50, 0), "accuracy", "50 %"),
    ],
)
def test_the_metric_fits_the_balance_of_the_classes(counts: tuple[int, ...], metric: str, share: str) -> None:
    for asked in (None, "auto", "AUTO"):
        leading = leading_metric("classification", asked, counts)
        assert leading.name == metric
        assert share in leading.reason


def test_a_regression_is_led_by_rmse_and_unknown_classes_by_accuracy() -> None:
    assert leading_metric("regression", None).name == "rmse"
    assert leading_metric("classification", None).name == "accuracy"
    assert leading_metric("classification", None, (7, 0)).name == "accuracy"


def test_what_was_asked_for_wins_whatever_the_balance() -> None:
    assert leading_metric("classification", "accuracy", (1, 99)).name == "accuracy"
    assert leading_metric("classification", "AUC", (50, 50)).name == "auroc"
    assert leading_metric("regression", "mse").name == "loss"


def test_a_metric_that_does_not_exist_is_refused_with_the_choice() -> None:
    with pytest.raises(
        UserError, match="no metric 'auroc' for a regression; choose one of rmse, mae, r2, loss, or auto"
    ):
        metric_named("regression", "auroc")
    with pytest.raises(UserError, match="there is no metric 'nice'; choose one of accuracy, balanced_accuracy"):
        check_metric("nice")
    check_metric(None)
    check_metric("Auto")
    check_metric("f1")
