"""Rows of a class that no source has are wrong, and have no score."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score

from farfield.protocol.metrics import logit_metrics

SCORES = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7], [0.55, 0.45], [0.05, 0.95]])
LABELS = np.array([0, 1, 1, 2, 3, 2])


def measured(labels: np.ndarray) -> dict[str, float]:
    return logit_metrics(np.log(SCORES), labels)


def test_unseen_rows_count_as_wrong_where_right_answers_are_counted() -> None:
    metrics, predicted = measured(LABELS), SCORES.argmax(axis=1)
    assert metrics["accuracy"] == pytest.approx(accuracy_score(LABELS, predicted))
    present = f1_score(LABELS, predicted, average=None, labels=np.unique(LABELS), zero_division=0)
    assert metrics["macro_f1"] == pytest.approx(present.mean())
    assert metrics["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(LABELS, predicted))


def test_unseen_rows_are_left_out_where_a_score_is_needed() -> None:
    metrics, known = measured(LABELS), logit_metrics(np.log(SCORES[:3]), LABELS[:3])
    for name in ("loss", "auroc", "brier", "ece"):
        assert metrics[name] == known[name]


def test_without_rows_of_a_known_class_there_is_no_loss() -> None:
    assert measured(np.full(6, 2)) == {"accuracy": 0.0, "balanced_accuracy": 0.0, "macro_f1": 0.0}
