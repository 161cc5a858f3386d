"""The settings that every method has.

A method adds its own to them: `class Params(FedAvg.Params)`. Those of trust are off by default: the length of an update
(`clip` at the client, `bound` at the server), differential privacy (`privacy`, `noise`, `delta`) and secure sums.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from farfield.algorithms.parameters import choices, fixed, linear_range, log_range, parameter
from farfield.federation.bounding import Bound
from farfield.federation.outgoing_updates import Clip, UpdateStep
from farfield.federation.secure_sums.quantise import DEFAULT_RANGE, FixedPoint
from farfield.federation.secure_sums.summing_step import LEAST_CLIENTS, SecureSum
from farfield.privacy.client_level import ClipAndNoise, Withhold

#: `bound=median` cuts an update that is longer than so many times the median of the cohort's.
BOUND_FACTOR = 5.0


def _power_of_two(limit: float | None) -> float | None:
    return limit if limit is None else FixedPoint(limit).limit


class CommonSettings(BaseModel):
    """The settings of local training, of what happens to an update on its way, and of the server's step."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    lr: float = parameter(0.1, "η_l, step size of local training", log_range(1e-4, 1.0), gt=0)
    batch_size: int = parameter(32, "B, rows in a mini-batch; 0 means all of them", choices(8, 16, 32, 64), ge=0)
    local_epochs: int = parameter(1, "E, passes over the client's data in a round", choices(1, 2, 5), ge=1)
    schedule: tuple[int, ...] | None = parameter(
        None, "T, local epochs of each round in turn instead of the same number in all", fixed()
    )
    local_steps: int | None = parameter(None, "K, exactly this many steps instead of epochs", fixed(), ge=1)
    momentum: float = parameter(0.0, "momentum of local SGD, from zero every round", choices(0.0, 0.9), ge=0, lt=1)
    weight_decay: float = parameter(0.0, "coupled L2 weight of local training", log_range(1e-6, 1e-2), ge=0)
    optimizer: Literal["sgd", "adam"] = parameter("sgd", "optimizer of local training")
    weighting: Literal["samples", "uniform"] = parameter(
        "samples", "p_u, weight of a client: its share of the samples, or the same for all"
    )
    class_weights: Literal["none", "balanced"] = parameter(
        "none",
        "weight of a row in local training: the same for all, or more where its class is rare at the client",
        fixed(),
    )
    clip: float | None = parameter(
        None,
        "length to which each update is cut before it leaves a client; with privacy=record each row's gradient; "
        "None for no limit; without noise it is no privacy",
        fixed(),
        gt=0,
    )
    bound: Literal["median"] | Annotated[float, Field(gt=0)] | None = parameter(
        None,
        "length to which the server cuts an update: bound_factor times the cohort's median, or this; None for no limit",
        fixed(),
    )
    bound_factor: float | None = parameter(
        None, f"of bound=median, how many times the median; {BOUND_FACTOR:g} by default", fixed(), ge=1
    )
    privacy: Literal["none", "record", "client"] = parameter(
        "none",
        "what differential privacy protects: nothing, each training row, or each client's whole contribution",
        fixed(),
    )
    noise: float | None = parameter(
        None, "z, noise multiplier of privacy: standard deviation of the noise in lengths of clip", fixed(), ge=0
    )
    delta: float = parameter(1e-5, "δ of privacy, for which ε is told; keep it far below 1 / rows", fixed(), gt=0, lt=1)
    # None and not false where it is off: the settings of a run from before it was there stay the same.
    secure_sums: Annotated[bool | None, AfterValidator(lambda on: on or None)] = parameter(
        None, "whether the server receives only sums over the clients; see docs/secure-sums.md", fixed()
    )
    secure_least: int | None = parameter(
        None, f"fewest clients in a secure sum; None for {LEAST_CLIENTS}", fixed(), ge=LEAST_CLIENTS
    )
    secure_range: Annotated[float | None, AfterValidator(_power_of_two)] = parameter(
        None,
        f"largest number in a secure sum, a power of two, whose step is 2^-52 of it; None for {DEFAULT_RANGE:.0f}",
        fixed(),
        gt=0,
    )
    server_optimizer: Literal["sgd", "adam", "yogi"] = parameter("sgd", "what applies the direction")
    server_lr: float = parameter(
        1.0, "η_g, global step size; 1 with sgd is plain averaging", log_range(1e-3, 2.0), gt=0
    )
    server_momentum: float = parameter(0.0, "β₁ of the server optimizer", linear_range(0.0, 0.99), ge=0, lt=1)
    server_beta2: float = parameter(0.99, "β₂ of server adam and yogi", choices(0.9, 0.99, 0.999), ge=0, lt=1)
    server_epsilon: float = parameter(1e-3, "τ, adaptivity floor of server adam and yogi", log_range(1e-8, 1e-1), gt=0)
    server_bias_correction: bool = parameter(False, "server adam as in torch.optim.Adam")
    server_weight_decay: float = parameter(0.0, "coupled L2 weight at the server", log_range(1e-6, 1e-1), ge=0)

    @model_validator(mode="after")
    def _privacy_is_whole(self) -> Self:
        missing = [name for name in ("clip", "noise") if getattr(self, name) is None]
        if self.privacy != "none" and missing:
            raise ValueError(f"privacy={self.privacy} needs {' and '.join(missing)}; 'farfield privacy' finds a noise")
        if self.privacy == "client" and self.weighting != "uniform":
            raise ValueError("privacy=client gives every client the same weight; set weighting=uniform")
        return self

    @model_validator(mode="after")
    def _bound_sees_updates(self) -> Self:
        if self.secure_sums and self.bound is not None:
            raise ValueError("bound cuts single updates, and secure_sums shows the server none; use clip instead")
        return self

    def idle(self) -> dict[str, str]:
        """Return the settings that have no effect with the others as they are, each with the reason."""
        idle: dict[str, str] = {}
        if self.privacy == "none":
            idle |= dict.fromkeys(("noise", "delta"), "privacy is none")
        else:
            idle["delta"] = "it decides what is told of the privacy, not what is done"
        if self.local_steps is not None:
            idle |= dict.fromkeys(("local_epochs", "schedule"), f"local_steps is {self.local_steps}")
        elif self.schedule is not None:
            idle["local_epochs"] = "schedule says the epochs of each round"
        if self.optimizer == "adam":
            idle["momentum"] = "optimizer is adam, which has moments of its own"
        if self.bound != "median":
            idle["bound_factor"] = "bound is not median"
        if not self.secure_sums:
            given = [name for name in ("secure_least", "secure_range") if getattr(self, name) is not None]
            idle |= dict.fromkeys(given, "secure_sums is not set")
        if self.server_optimizer == "sgd":
            idle |= dict.fromkeys(("server_beta2", "server_epsilon"), "server_optimizer is sgd")
        if self.server_optimizer != "adam":
            idle["server_bias_correction"] = f"server_optimizer is {self.server_optimizer}"
        return idle

    def update_steps(self) -> tuple[UpdateStep, ...]:
        """Return the steps that change a reply before it leaves the client: limits and noise first, then the sum."""
        steps: list[UpdateStep] = []
        if self.privacy != "none":
            assert self.clip is not None, "the parameters have seen to it"
            assert self.noise is not None
            steps.append(
                Withhold(self.clip, self.noise) if self.privacy == "record" else ClipAndNoise(self.clip, self.noise)
            )
        elif self.clip is not None:
            steps.append(Clip(self.clip))
        if self.secure_sums:
            steps.append(
                SecureSum(self.weighting, self.secure_range or DEFAULT_RANGE, self.secure_least or LEAST_CLIENTS)
            )
        return tuple(steps)

    def server_bound(self) -> Bound | None:
        """Return how long a client's update may be before the server cuts it; None for any length."""
        given = self.bound
        if given is None:
            return None
        factor = BOUND_FACTOR if self.bound_factor is None else self.bound_factor
        return Bound(factor=factor) if given == "median" else Bound(length=given)
