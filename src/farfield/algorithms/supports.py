"""The declaration of what a method supports: kinds of task, models, clients, rounds, settings of local training.

    supports = Supports(regression=No("imagines the features of each class, and a regression task has no classes"))

Everything is supported unless the declaration says `No`, with the reason and the way out. `FedAvg.check`
and `build` refuse by this declaration, `farfield list algorithms` prints it, and the battery checks it: what is
declared as supported trains on a toy task, and what is not is refused with the declared reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from farfield.algorithms.registry import AlgorithmError
from farfield.models import ModelSpec


class Misfit(AlgorithmError):
    """A method that cannot work with this task, model, number of clients or setting: the reason and the way out."""


@dataclass(frozen=True)
class No:
    """Something that a method does not support. The reason follows the method's name in a sentence."""

    reason: str
    #: What a user can do about it; the aspect's own where it is empty.
    way_out: str = ""


@dataclass(frozen=True)
class AtLeast:
    """The smallest number that a method works with. The reason follows the method's name in a sentence."""

    number: int = 1
    reason: str = ""
    way_out: str = ""


Answer = Literal[True] | No
_OTHERS = "'farfield list algorithms' shows the methods that do"
#: What each aspect is in words, and the way out where a declaration names none.
ASPECTS: Mapping[str, tuple[str, str]] = {
    "classification": ("classification", _OTHERS),
    "regression": ("regression", _OTHERS),
    "one_logit": ("one logit", "set model.outputs=2"),
    "vectors": ("vectors and tables", _OTHERS),
    "images": ("images", "give vectors with --features cached"),
    "norm_average": ("norm average", "use model.norm=group, freeze or none"),
    "norm_local": ("norm local", "use model.norm=group, freeze or none"),
    "norm_freeze": ("norm freeze", "use model.norm=group or none"),
    "norm_group": ("norm group", "use model.norm=none"),
    "mlp_head": ("MLP heads", "set model.head=linear"),
    "momentum": ("momentum", "set momentum=0"),
    "adam": ("local Adam", "set optimizer=sgd"),
    "clip": ("clip", "omit clip"),
    "class_weights": ("class weights", "set class_weights=none"),
    "record_privacy": ("privacy of rows", "set privacy=none, or use fedavg, fedprox, scaffold or fedsgd"),
    "client_privacy": ("privacy of clients", "set privacy=none, or use fedavg, fedprox, fediir or fedsgd"),
    "secure_sums": ("secure sums", "omit secure_sums"),
    "clients": ("clients", "cut the domains into more clients with --clients, or draw a larger --cohort"),
    "rounds": ("rounds", "give more with --rounds"),
}
#: Aspects that are settings of local training, and when such a setting is in use.
_SETTINGS: Mapping[str, Callable[[Any], bool]] = {
    "momentum": lambda p: p.optimizer == "sgd" and p.momentum > 0,
    "adam": lambda p: p.optimizer == "adam",
    "clip": lambda p: p.clip is not None and p.privacy == "none",
    "class_weights": lambda p: p.class_weights != "none",
    "record_privacy": lambda p: p.privacy == "record",
    "client_privacy": lambda p: p.privacy == "client",
    "secure_sums": lambda p: bool(p.secure_sums),
}


def norm_in_privacy(privacy: str, norm: str) -> str | None:
    """As `Supports.of_task`, for the norm policy of a private run."""
    if privacy == "record" and norm in ("average", "local"):
        return (
            f"with privacy=record cuts each row's gradient, and norm={norm} mixes the rows of a batch; "
            "use model.norm=group, freeze or none"
        )
    if privacy == "client" and norm == "average":
        return "with privacy=client sends no running statistics, and norm=average needs them; use another model.norm"
    return None


@dataclass(frozen=True)
class Supports:
    """The aspects that a method supports: each is True, or `No` with the reason. Numbers are `AtLeast`."""

    classification: Answer = True
    regression: Answer = True
    #: Two classes by one output and binary cross-entropy.
    one_logit: Answer = True
    vectors: Answer = True
    images: Answer = True
    #: The norm policies of a model with BatchNorm or GroupNorm; every method supports a model without.
    norm_average: Answer = True
    norm_local: Answer = True
    norm_freeze: Answer = True
    norm_group: Answer = True
    mlp_head: Answer = True
    #: Settings of local training.
    momentum: Answer = True
    adam: Answer = True
    clip: Answer = True
    #: A local loss in which rare classes weigh more (class_weights=balanced).
    class_weights: Answer = True
    #: Differential privacy of rows (privacy=record) and of clients (privacy=client). Not supported unless said: a
    #: method says it when it is known how much one row, or one client, can change what leaves.
    record_privacy: Answer = No("has a local objective in which one row has no bounded part")
    client_privacy: Answer = No("sends what has no meaning with noise on it")
    #: A server that receives sums over the clients alone (secure_sums=true).
    secure_sums: Answer = True
    #: The fewest clients in a cohort, and the fewest rounds.
    clients: AtLeast = AtLeast()
    rounds: AtLeast = AtLeast()

    def of_task(self, kind: str, spec: ModelSpec, clients: int, rounds: int | None) -> str | None:
        """Return why a method cannot work with a kind of task, a model, so many clients or rounds; None if it can.

        The sentence lacks its subject, the method's name.
        """
        asked = [
            kind,
            *(["one_logit"] if kind == "classification" and spec.outputs == 1 else []),
            "images" if len(spec.input_shape) == 3 else "vectors",
            *([] if spec.norm == "none" else [f"norm_{spec.norm}"]),
            *(["mlp_head"] if spec.head == "mlp" else []),
        ]
        refused = (self._no(aspect) for aspect in asked)
        return next(filter(None, refused), None) or self.of_clients(clients) or self._too_few("rounds", rounds)

    def of_clients(self, clients: int) -> str | None:
        """As `of_task`, for the number of clients alone: all that a server half asks of a federation."""
        return self._too_few("clients", clients)

    def of_settings(self, params: Any) -> str | None:
        """As `of_task`, for the settings of local training."""
        used = (aspect for aspect, in_use in _SETTINGS.items() if in_use(params))
        refused = next(filter(None, map(self._no, used)), None)
        if refused is None and params.privacy == "record" and params.class_weights != "none":
            return "with privacy=record cannot weigh classes by counts of all rows; set class_weights=none"
        return refused

    def _no(self, aspect: str) -> str | None:
        answer: Answer = getattr(self, aspect)
        if answer is True:
            return None
        return f"{answer.reason}; {answer.way_out or ASPECTS[aspect][1]}"

    def _too_few(self, aspect: Literal["clients", "rounds"], number: int | None) -> str | None:
        least: AtLeast = getattr(self, aspect)
        if number is None or number >= least.number:
            return None
        unit = "in a cohort" if aspect == "clients" else f"rounds, not {number}"
        return f"{least.reason} and needs at least {least.number} {unit}; {least.way_out or ASPECTS[aspect][1]}"

    def limits(self) -> Iterator[tuple[str, str, str]]:
        """Yield what is not supported: the aspect in words, the reason, and the way out."""
        for field in fields(self):
            value = getattr(self, field.name)
            words, way_out = ASPECTS[field.name]
            if isinstance(value, No):
                yield f"no {words}", value.reason, value.way_out or way_out
            elif isinstance(value, AtLeast) and value.number > 1:
                yield f"{value.number} {words} or more", value.reason, value.way_out or way_out

    @property
    def short(self) -> str:
        """The limits in a few words, for a column of a table."""
        return ", ".join(words for words, _, _ in self.limits()) or "none"

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as plain values: true or false, or a least number; and the limits with reasons."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **{name: value.number if isinstance(value, AtLeast) else value is True for name, value in values.items()},
            "limits": {
                name: {"reason": value.reason, "way_out": value.way_out or ASPECTS[name][1]}
                for name, value in values.items()
                if value is not True and not (isinstance(value, AtLeast) and value.number == 1)
            },
        }
