"""The metrics of the kept model at the sites that only evaluate, reported once the model is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farfield.records.sealed import count_look, open_sealed
from farfield.trained.model_folder import load_model

#: The metrics that are reported, in this order, with their names in a sentence; the records have the others.
REPORTED = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "loss": "loss",
    "rmse": "RMSE",
    "r2": "R²",
    "mae": "mean absolute error",
}


def evaluation_sentences(out: Path, sites: Sequence[str]) -> list[str]:
    """Return one sentence per site about the model of the round that was kept.

    The sealed metrics are opened after the last round, when no choice can depend on them, and the look is counted.
    """
    if not sites:
        return []
    kept = int(load_model(out).about["round"])
    count_look(out / "run", "the model card of a deployment")
    figures = dict(open_sealed(out / "run")).get(kept, {})
    sentences = []
    for site in sites:
        prefix = "" if len(sites) == 1 else f"{site}: "
        of_site = {word: figures.get(f"{prefix}{name}") for name, word in REPORTED.items()}
        metrics = [f"{word} {value:.4f}" for word, value in of_site.items() if value is not None]
        if metrics:
            sentences.append(f"at '{site}', which took no part in the training, round {kept} has {', '.join(metrics)}")
    return sentences
