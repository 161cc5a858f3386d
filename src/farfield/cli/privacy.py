"""`farfield privacy`: what a private training costs, or how much noise an ε needs."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from farfield.algorithms import build
from farfield.cli.console import output
from farfield.errors import UserError
from farfield.privacy.accountant import PrivacyError, epsilon_of, noise_for
from farfield.privacy.release import Release, releases_of, uploading_phases
from farfield.privacy.statement import ADJACENCY, NOT_COVERED, epsilon_text, large_delta


def privacy(
    level: Annotated[str, typer.Option(help="What is protected: 'record' (a training row) or 'client'.")] = "record",
    epsilon: Annotated[float | None, typer.Option(help="Find the noise multiplier for this ε.")] = None,
    noise: Annotated[float | None, typer.Option(help="Tell the ε of this noise multiplier.")] = None,
    delta: Annotated[float, typer.Option(help="δ; keep it far below 1 / rows.")] = 1e-5,
    rounds: Annotated[int, typer.Option(help="Rounds in which a client takes part.", min=1)] = 30,
    rows: Annotated[
        int, typer.Option(help="Training rows of the client (the smallest has the largest ε).", min=1)
    ] = 100,
    batch_size: Annotated[int, typer.Option(help="Rows of a batch on average; 0 for all.", min=0)] = 32,
    local_epochs: Annotated[int, typer.Option(help="Passes over the rows in a round.", min=1)] = 1,
    local_steps: Annotated[int | None, typer.Option(help="Local steps in a round instead of epochs.", min=1)] = None,
    algorithm: Annotated[str, typer.Option("--algorithm", "-a", help="The method, for its phases.")] = "fedavg",
) -> None:
    """Tell what a private training costs in ε, or how much noise an ε needs. Nothing is trained."""
    if (epsilon is None) == (noise is None):
        raise PrivacyError("give either --epsilon, to find a noise multiplier, or --noise, to learn its ε")
    if not 0 < delta < 1:
        raise PrivacyError(f"delta = {delta:g}: give a number between 0 and 1")
    settings: dict[str, Any] = {
        "privacy": level,
        "clip": 1.0,
        "delta": delta,
        "batch_size": batch_size,
        "local_epochs": local_epochs,
        "local_steps": local_steps,
        **({"weighting": "uniform"} if level == "client" else {}),
    }

    def releases(multiplier: float) -> dict[Release, int]:
        return releases_of(build(algorithm, {**settings, "noise": multiplier}), rounds, rows)

    if level not in ADJACENCY:
        raise UserError(f"'{level}' is no level of privacy; choose 'record' or 'client'")
    if noise is not None and (noise < 0 or not math.isfinite(noise)):
        raise PrivacyError(f"noise = {noise:g}: give a number from 0 on")
    found = _rounded_up(noise_for(epsilon, delta, releases)) if epsilon is not None else noise or 0.0
    spent = epsilon_of(releases(found), delta)
    method = build(algorithm, {**settings, "noise": found})
    (release, *_), phases = list(releases(found)), uploading_phases(method)
    what = (
        f"{rounds} rounds of {release.steps} steps, each row drawn with probability {release.rate:.4g}"
        if level == "record"
        else f"{rounds} rounds with {len(phases)} upload{'s' * (len(phases) > 1)} each ({', '.join(phases)})"
    )
    for line in (
        f"noise multiplier {found:.4g}: {epsilon_text(spent)} at δ = {delta:g}, privacy={level}",
        what,
        f"neighbouring data sets differ in {ADJACENCY[level]}",
        NOT_COVERED[level],
        *((f"warning: {large}",) if level == "record" and (large := large_delta(delta, rows)) else ()),
    ):
        output.print(line, highlight=False, markup=False, soft_wrap=True)


def _rounded_up(value: float) -> float:
    """Return a number of four digits that is not below this one: what is printed must suffice."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return math.ceil(value / unit) * unit
