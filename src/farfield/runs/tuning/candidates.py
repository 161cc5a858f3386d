"""Which settings a trial tries.

Trial 0 is the setting that the method would have without tuning, so tuning cannot look worse by its own criterion. The
next nine are spread evenly over each range (a Latin hypercube): the draws of a parameter depend on its name and on the
seed alone, so every method tries the same step sizes. From the eleventh trial on Optuna's tree-structured Parzen
estimator proposes settings near the good ones, from a seed and the trials so far, so the same trials come out after a
kill.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from farfield.algorithms.parameters import SearchRange
from farfield.reproducibility.randomness import derive_seed
from farfield.runs.settings import PlanError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

#: Trials before Optuna has something to learn from; its own default.
SPREAD = 10
#: Digits of a value that is tried, so that it can be read and typed.
DIGITS = 4


def check_optuna(trials: int) -> None:
    """Refuse more trials than are spread out without Optuna where it is not installed."""
    if trials > SPREAD and find_spec("optuna") is None:
        raise PlanError(
            f"more than {SPREAD} trials need Optuna, which is not installed: pip install 'farfield[tune]', or give "
            f"--tune {SPREAD}"
        )


def spread(space: Mapping[str, SearchRange], trials: int, seed: int) -> list[dict[str, Any]]:
    """Return the settings of the trials after the first one, up to where Optuna proposes."""
    count = min(trials, SPREAD) - 1
    columns = {name: _column(name, where, count, seed) for name, where in space.items()}
    return [{name: column[number] for name, column in columns.items()} for number in range(count)]


def _column(name: str, where: SearchRange, count: int, seed: int) -> list[Any]:
    """Draw a value from each of `count` equal parts of a range, in random order."""
    draw = random.Random(derive_seed("tuning", seed, name, count))
    parts = list(range(count))
    draw.shuffle(parts)
    return [_value(where, (part + draw.random()) / count) for part in parts]


def _value(where: SearchRange, share: float) -> Any:
    """Return what lies at a share of the way through a range."""
    if where.scale == "choices":
        return where.choices[min(int(share * len(where.choices)), len(where.choices) - 1)]
    if where.scale == "log":
        return _short(where.low * (where.high / where.low) ** share)
    return _short(where.low + (where.high - where.low) * share)


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def propose(
    space: Mapping[str, SearchRange],
    tried: Sequence[tuple[Mapping[str, Any], float | None]],
    seed: int,
) -> dict[str, Any]:
    """Return what Optuna proposes after these trials, each with its criterion, the lower the better.

    None is a trial that came to nothing.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: _distribution(where) for name, where in space.items()}
    # A sampler of its own for this trial: what it proposes depends on the trials so far and on nothing else.
    sampler = optuna.samplers.TPESampler(seed=derive_seed("tuning", seed, len(tried)) % 2**32, n_startup_trials=SPREAD)
    study = optuna.create_study(direction="minimize", sampler=sampler)
    for settings, value in tried:
        if value is not None and all(_inside(distributions[name], of) for name, of in settings.items()):
            study.add_trial(optuna.trial.create_trial(params=dict(settings), distributions=distributions, value=value))
    proposed = study.ask(distributions).params
    return {name: _short(value) if isinstance(value, float) else value for name, value in proposed.items()}


def _distribution(where: SearchRange) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if where.scale == "choices":
        return CategoricalDistribution(where.choices)
    return FloatDistribution(where.low, where.high, log=where.scale == "log")


def _inside(distribution: BaseDistribution, value: Any) -> bool:
    """Whether a value can be told to Optuna; a default may lie outside of the range."""
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (TypeError, ValueError):
        return False
