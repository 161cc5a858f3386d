"""linear-sem: a regression whose answers are known in closed form (FedLOE, section 3, eq. 5).

    x_I = ξ1,   y = x_I·α_I + ξ2,   x_S = y α_S + ξ3

x_I causes y in every domain alike. x_S is caused by y: it helps to predict y, and by how much depends on the domain's
σ2², so weight on it does not carry over. Domains differ in the variances of ξ1 and ξ2 and share that of ξ3.

The noise is drawn and then made exact: in each domain its columns have mean 0, the variances asked for, and no
correlation with one another. Least squares on the sample therefore gives the closed forms of the population (eq. 22, 27
and 28) up to float32, however few rows there are. This holds for whole domains. A part of the rows, such as a
training split, has moments that are only near.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.models.spec import ModelSpec
from farfield.tasks.registry import register
from farfield.tasks.task import Domain, Task


@dataclass(frozen=True)
class LinearSEM:
    """The parameters of the structural equation model, one entry of `sigma1_sq` and `sigma2_sq` a domain.

        LinearSEM(sigma1_sq=(1, 1), sigma2_sq=(0.1, 3), rows=50).task()

    `alpha_i` and `alpha_s` are the paper's invariant and spurious parameters and may have any length.
    """

    alpha_i: tuple[float, ...] = (1.0, 2.0)
    alpha_s: tuple[float, ...] = (0.5, -1.0)
    sigma1_sq: tuple[float, ...] = (1.0, 2.0, 0.5, 1.5)
    sigma2_sq: tuple[float, ...] = (0.1, 1.0, 4.0, 9.0)
    sigma3_sq: float = 0.5
    #: Rows in each domain; the same in all, as eq. 27 assumes.
    rows: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("alpha_i", "alpha_s", "sigma1_sq", "sigma2_sq"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if not self.alpha_i or not self.alpha_s:
            raise ValueError("alpha_i and alpha_s need at least one entry each")
        if len(self.sigma1_sq) != len(self.sigma2_sq) or not self.sigma1_sq:
            raise ValueError(
                f"sigma1_sq has {len(self.sigma1_sq)} domains and sigma2_sq has {len(self.sigma2_sq)}; "
                "give both one variance a domain"
            )
        variances = (*self.sigma1_sq, *self.sigma2_sq, self.sigma3_sq)
        if not all(isfinite(v) and v > 0 for v in variances):
            raise ValueError(f"variances must be positive numbers, not {variances}")
        if self.rows <= self._noises:
            raise ValueError(
                f"{self.rows} rows cannot hold {self._noises} uncorrelated noise columns of mean 0; "
                f"use at least {self._noises + 1} rows"
            )

    @property
    def sigma1(self) -> tuple[float, ...]:
        """Standard deviation of ξ1 in each domain."""
        return tuple(sqrt(v) for v in self.sigma1_sq)

    @property
    def sigma2(self) -> tuple[float, ...]:
        """Standard deviation of ξ2 in each domain."""
        return tuple(sqrt(v) for v in self.sigma2_sq)

    @property
    def sigma3(self) -> float:
        """Standard deviation of ξ3, the same in all domains."""
        return sqrt(self.sigma3_sq)

    @property
    def domain_names(self) -> tuple[str, ...]:
        """`noise-σ2²`, the number that sets how much a domain tempts; by position where two domains share it."""
        by_noise = tuple(f"noise-{v:g}" for v in self.sigma2_sq)
        if len(set(by_noise)) == len(by_noise):
            return by_noise
        return tuple(f"domain-{i}" for i in range(len(by_noise)))

    @property
    def _noises(self) -> int:
        return len(self.alpha_i) + 1 + len(self.alpha_s)

    def domain(self, number: int) -> Domain:
        """One domain's rows. It does not change when domains are added after it."""
        noise = _exact_noise(self.rows, self._noises, np.random.PCG64([self.seed, number]))
        invariant = len(self.alpha_i)
        x_i = self.sigma1[number] * noise[:, :invariant]
        y = x_i @ np.array(self.alpha_i) + self.sigma2[number] * noise[:, invariant]
        x_s = np.outer(y, self.alpha_s) + self.sigma3 * noise[:, invariant + 1 :]
        x = np.concatenate([x_i, x_s], axis=1)
        return Domain(
            self.domain_names[number],
            torch.from_numpy(x.astype(np.float32)),
            torch.from_numpy(y.astype(np.float32)),
        )

    def task(self, name: str = "linear-sem") -> Task:
        return Task(
            name=name,
            kind="regression",
            domains=tuple(self.domain(i) for i in range(len(self.sigma1_sq))),
            classes=(),
            model=ModelSpec(
                featurizer="identity",
                input_shape=(len(self.alpha_i) + len(self.alpha_s),),
                outputs=1,
                hidden=(),
                head="linear",
                head_bias=False,
            ),
            # Full batches (batch_size 0), one step a round: FedAvg is then gradient descent on the pooled risk.
            defaults={"rounds": 300, "local_epochs": 1, "batch_size": 0, "lr": 0.03, "momentum": 0.0},
            description="Linear regression on invariant and spurious features with exact sample moments.",
            source="FedLOE, section 3, eq. 5; made up, no data",
        )


def _exact_noise(rows: int, columns: int, bits: np.random.PCG64) -> NDArray[np.float64]:
    """Gaussian columns moved to mean exactly 0, mean square exactly 1 and no cross moments."""
    draw = np.random.Generator(bits).standard_normal((rows, columns))
    q, r = np.linalg.qr(draw - draw.mean(axis=0))
    # A factorisation is unique only up to signs; positive diagonals keep each column along its draw.
    return q * np.sign(np.diag(r)) * sqrt(rows)


DEFAULT = LinearSEM()


@register(
    "linear-sem",
    summary="linear regression with spurious features and known closed-form answers",
    domains=DEFAULT.domain_names,
    classes=0,
    kind="regression",
)
def load() -> Task:
    return DEFAULT.task()
