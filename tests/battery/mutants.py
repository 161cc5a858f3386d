"""Mutants: each declared term of each method switched off, negated and doubled. Each must fail its worked example.

    make mutants

Terms are found by a look at the method at work, not by a list:

    weight      a parameter that `penalty_weight` names, changed in the method and not in the example
    parameter   another number among the method's own parameters, likewise; not negated
    count       a whole number among them; doubled only
    adjust      what `adjust` does to the gradient
    prepared    a tensor that `before_training` returns
    sent        a value that a phase sends
    shared      a value that the server shares with the clients
    kept        a tensor that the server keeps between rounds, of its own or of its optimizer
    client      a tensor that a client keeps
    updates     what `updates` makes of the updates that clients sent
    combine     how far `combine` is from the weighted mean
    rule        how far `rule` is from the client method's own direction
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor

from farfield.algorithms import Direction, FedAvg
from farfield.algorithms.worked_examples import WorkedExample, worked_examples
from farfield.federation.federation import Replies
from tests.battery.methods import offered_examples
from tests.battery.worked import Wiring, built, difference, states_of

PARAMETERS = ("weight", "parameter", "count")
MUTATIONS = {"off": 0, "negated": -1, "doubled": 2}
#: The control: with it every mutant must survive, or it dies of the operation and not of the change.
CONTROL = "unchanged"

#: Mutants that cannot matter, with the reason: "method.kind name mutation", where * stands for anything.
HARMLESS = {
    "*.sent loss *": "recorded only",
    "*.sent divergence *": "recorded only",
    "*.sent deviation *": "recorded only: the value of the Fishr penalty",
    "*.sent square *": "recorded only: for the value of the alignment penalty",
    "*.sent geometric_to_arithmetic *": "recorded only",
    "fedilc-geometric.combine *": "the arithmetic mean, which its rule does not look at",
    "fedilc-fishr.combine *": "the arithmetic mean",
    "fedilc-intra-*.combine *": "the arithmetic mean",
    "fedloe-*.count anneal *": "steps towards the minimum; where it is the only one, all ways lead to it",
    "fedloe-*.parameter stage2 doubled": "all rounds but the first are stage 2 already, and the first never is",
    "*+trimmed-mean.parameter trim doubled": "of the toy's three clients one goes at either end already",
    "fedcir-reg.kept class_* *": "for the alignment, which this ablation does not have",
    "fedcir-align.kept generator_statistics *": "for generated features, which this ablation does not share",
    "fedyogi.kept count *": "Yogi has no bias correction that would read it",
    "*+fedyogi.kept count *": "Yogi has no bias correction that would read it",
    "*+fedadam.kept count *": "without bias correction nothing reads it",
}


@dataclass(frozen=True)
class Term:
    """A part of a method that can be switched off: what kind of part, and its name where there are several."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


@dataclass(frozen=True)
class Mutant:
    """A method with one term changed."""

    method: str
    term: Term
    mutation: str

    @property
    def factor(self) -> int:
        return 1 if self.mutation == CONTROL else MUTATIONS[self.mutation]

    def __str__(self) -> str:
        return f"{self.method}.{self.term} {self.mutation}"

    @property
    def harmless(self) -> str:
        """Why this mutant cannot matter; empty where it must."""
        if self.mutation == CONTROL:
            return "nothing was changed"
        return next((why for pattern, why in HARMLESS.items() if fnmatch(str(self), pattern)), "")

    def made(self, example: WorkedExample) -> tuple[FedAvg, Wiring]:
        """The mutated method with the example's settings, and what is changed around it."""
        algorithm, wiring = built(example), Wiring()
        term, times = self.term, self._times
        if term.kind in PARAMETERS:
            weight = getattr(algorithm.params, term.name)
            # None is a default that follows another parameter: an example that leaves it so says nothing of it.
            changed = algorithm.params.model_copy(update={term.name: weight and self.factor * weight})
            for half in filter(None, (algorithm, algorithm.server)):
                half.params = changed
        elif term.kind in HOOKS:
            _override(algorithm, term, self.factor)
        elif term.kind in ("sent", "shared"):
            setattr(wiring, term.kind, lambda phase, name, value: times(value) if name == term.name else value)
        elif term.kind == "client":
            wiring.client_state = lambda name, value: times(value) if name == term.name else value
        else:
            wiring.extras = wiring.slots = lambda name, value: times(value) if name == term.name else value
        return algorithm, wiring

    def _times(self, value: Any) -> Any:
        return value * self.factor

    def killer(self) -> str:
        """What notices the mutant: the first worked example that it fails; empty where it survives."""
        for example in worked_examples(self.method):
            if example.by_hand and self.term.kind not in (*HOOKS, *PARAMETERS):
                continue  # what goes over the wire or is kept has no part in numbers by hand
            try:
                algorithm, wiring = self.made(example)
                off = difference(example, algorithm, wiring)
            except Exception as error:
                return f"{example.function.__name__}: {type(error).__name__}"
            if off > example.tolerance:
                return f"{example.function.__name__}: off by {off:.1e}"
        return ""


def terms_of(method: str) -> list[Term]:
    """The terms that a method or composition shows while its worked examples run, in order."""
    found: dict[Term, None] = {}

    def see(kind: str, name: str) -> None:
        found.setdefault(Term(kind, name))

    for example in worked_examples(method):
        algorithm = built(example)
        weights = algorithm.penalty_weight or ()
        weights = (weights,) if isinstance(weights, str) else weights
        for weight in weights:
            see("weight", weight)
        for name, value in algorithm.params:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and value and name not in (*FedAvg.Params.model_fields, *weights, *algorithm.params.idle()):
                see("parameter" if isinstance(value, float) else "count", name)
        for hook, host in _hosts(algorithm):
            if hook == "prepared":
                continue
            if getattr(type(host), hook) is not getattr(FedAvg, hook):
                see(hook, "")
        if not example.by_hand:
            _watch(algorithm, see)
    return list(found)


def _watch(algorithm: FedAvg, see: Callable[[str, str], None]) -> None:
    """Run the method once and tell what it prepares, sends, shares and keeps."""

    def seeing(kind: str) -> Callable[..., Any]:
        def seen(*args: Any) -> Any:
            *_, name, value = args
            see(kind, name)
            return value

        return seen

    class Watched(type(algorithm)):  # type: ignore[misc]
        def before_training(self, *args: Any, **shared: Any) -> Any:
            prepared = super().before_training(*args, **shared)
            for name in prepared:
                see("prepared", name)
            return prepared

    algorithm.__class__ = Watched
    kept = seeing("kept")
    states_of(algorithm, Wiring(seeing("sent"), seeing("shared"), seeing("client"), kept, kept))


def _hosts(algorithm: FedAvg) -> Iterator[tuple[str, FedAvg]]:
    """Whose hooks a run calls: the rule is the server half's in a composition."""
    for hook in ("adjust", "updates", "combine", "prepared"):
        yield hook, algorithm
    yield "rule", algorithm.server or algorithm


HOOKS = ("adjust", "updates", "combine", "prepared", "rule")


def _override(algorithm: FedAvg, term: Term, factor: int) -> None:
    """Change what a hook of the method does to what it was given."""
    host = dict(_hosts(algorithm))[term.kind]
    kind: Any = type(host)

    def between(plain: Tensor, with_term: Tensor) -> Tensor:
        return plain + factor * (with_term - plain)

    class Mutated(kind):  # type: ignore[misc]
        def penalty(self, local: Any) -> Tensor:
            value: Tensor = super().penalty(local)  # a class may not have `adjust` alone
            return value

        def adjust(self, gradient: Tensor, local: Any) -> None:
            plain = gradient.clone()
            super().adjust(gradient, local)
            if term.kind == "adjust":
                gradient.copy_(between(plain, gradient))

        def before_training(self, *args: Any, **shared: Any) -> Any:
            prepared = dict(super().before_training(*args, **shared))
            if term.kind == "prepared":
                prepared[term.name] = prepared[term.name] * factor
            return prepared

        def updates(self, replies: Replies) -> Tensor:
            made: Tensor = super().updates(replies)
            if term.kind != "updates":
                return made
            # Where gradients are sent, updates are made of nothing else: there is no plain update to go back to.
            plain = replies.stack("update") if replies.shows("update") else torch.zeros_like(made)
            return between(plain, made)

        def combine(self, updates: Tensor, weights: Tensor) -> Tensor:
            made: Tensor = super().combine(updates, weights)
            return between(FedAvg.combine(self, updates, weights), made) if term.kind == "combine" else made

        def rule(self, updates: Tensor, weights: Tensor, reference: Tensor) -> Any:
            made = super().rule(updates, weights, reference)
            if term.kind != "rule":
                return made
            direction = made.direction if isinstance(made, Direction) else made
            return Direction(between(reference, direction))

    host.__class__ = Mutated


def mutants(short: bool = False) -> list[Mutant]:
    """Every mutant of every method and composition with a worked example, and controls; if short, one per term."""
    return [
        Mutant(method, term, mutation)
        for method in offered_examples()
        for term in terms_of(method)
        for mutation in _mutations(term, short)
    ]


def _mutations(term: Term, short: bool) -> list[str]:
    # A rate has no opposite, and a count cannot be zero.
    kinds = {"parameter": ["doubled", "off"], "count": ["doubled"]}.get(term.kind, ["negated", "off", "doubled"])
    return kinds[:1] if short else [*kinds, CONTROL]


def main() -> int:
    """Print one line per mutant with what killed it, and return 1 if one survives that should not."""
    torch.set_num_threads(1)
    started, wrong, dead = time.perf_counter(), [], 0
    for mutant in mutants(short=bool(os.environ.get("FARFIELD_SHORT"))):
        killer, harmless = mutant.killer(), mutant.harmless
        if bool(killer) == bool(harmless):
            wrong.append(f"{mutant}: killed by {killer}, though {harmless}" if killer else f"{mutant}: survived")
        if mutant.mutation == CONTROL:
            continue
        dead += bool(killer)
        verdict = killer or harmless or "SURVIVED"
        print(f"{mutant.method:26} {mutant.term!s:32} {mutant.mutation:8} {verdict}", flush=True)
    print(f"\n{dead} mutants killed, {len(wrong)} wrong, in {time.perf_counter() - started:.0f} s")
    for each in wrong:
        print(f"  {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
