"""How a model does at the sites that only evaluate, told once the model is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farfield.records.sealed import count_look, open_sealed
from farfield.trained.model_folder import load_model

#: These are told, in this order, where they were measured; the records have the rest.
TOLD = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "loss": "loss",
    "r2": "R²",
    "mae": "mean absolute error",
}


def measured_elsewhere(out: Path, sites: Sequence[str]) -> list[str]:
    """A sentence a site, about the round that was kept.

    The figures are opened after the last round, when nothing can be chosen by them any more, and the look is counted.
    """
    if not sites:
        return []
    kept = int(load_model(out).about["round"])
    count_look(out / "run", "the model card of a deployment")
    figures = dict(open_sealed(out / "run")).get(kept, {})
    sentences = []
    for site in sites:
        prefix = "" if len(sites) == 1 else f"{site}: "
        of_site = {word: figures.get(f"{prefix}{name}") for name, word in TOLD.items()}
        told = [f"{word} {value:.4f}" for word, value in of_site.items() if value is not None]
        if told:
            sentences.append(f"at '{site}', which took no part in the training, round {kept} has {', '.join(told)}")
    return sentences
