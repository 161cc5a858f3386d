"""What a site checks of every question before it answers, and of every answer before it leaves.

The approval says what may be computed at all (see `manifest.enforce`). The guard decides about one question: that there
is only one per round and phase (`ledger`), that its model is one that the approved method can have made
(`plausible_model`), and that the answer is of enough rows and has nothing but the approved values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from farfield.deployment.manifest.manifest import Manifest
from farfield.deployment.schema.site_schema import AgreedSchema, read_agreed_schema
from farfield.deployment.site.deployed_site import REFERENCE, DeployedSite
from farfield.deployment.site.ledger import Ledger, fingerprint
from farfield.deployment.site.plausible_model import (
    Anchor,
    Reference,
    change_per_round,
    check_buffers,
    check_change,
    check_first,
    check_shared,
    check_sound,
    first_model,
    load_anchor,
    measure_reference,
    memory_file,
    private_reference,
    save_anchor,
    steps_ratio,
)
from farfield.deployment.site.shown_rows import hashes_of, remember, shown_before, shown_rows
from farfield.federation.client import Client
from farfield.federation.engines.flower.node import Guard, Question
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.execution import Outcome
from farfield.federation.phase import declared_phases
from farfield.federation.refusal import Refused
from farfield.federation.reply_checks import fault

EVALUATE = "evaluate"


class SiteGuard(Guard):
    """The guard of one deployed site, with its ledger and its memory of models in the state folder."""

    state_travels = False

    def __init__(self, site: DeployedSite, folder: Path) -> None:
        self._site, self._folder, self.ledger = site, folder, Ledger(folder)

    def before(self, question: Question) -> None:
        run, phase, round = question.assignment.run, question.phase, question.round
        content = _content(question)
        check_sound(question.broadcast, question.model.layout)
        with self.ledger.open_book() as book:
            # Whatever is checked below depends on what is hashed here: it need not be checked twice.
            if book.has(phase, run, round, content):
                return
            book.check_run(run, _of_run(question.assignment), self._site.limits.runs)
            book.check_phase(phase, run, round, content)
            anchor = self._plausible(question)
            book.begin_run(run, _of_run(question.assignment), self._site.limits.runs)
            book.enter(phase, run, round, content)
            if anchor is not None:
                save_anchor(memory_file(self._folder, question.assignment.run), anchor)

    def after(self, question: Question, outcome: Outcome) -> None:
        check_outgoing(self._site.approved, question, outcome)
        rows = min(outcome.samples, outcome.examples) if outcome.examples else outcome.samples
        if question.phase != EVALUATE and rows < self._site.limits.update_rows:
            raise Refused("few-update-rows", rows=rows, least=self._site.limits.update_rows)
        with self.ledger.open_book() as book:
            if question.phase != EVALUATE:
                self._need_hidden_rows(question, outcome)
            book.note_answer(question.phase, _content(question), fingerprint(dict(outcome.values)))

    def _need_hidden_rows(self, question: Question, outcome: Outcome) -> None:
        """Refuse an answer that shows more single rows than the limits allow, by itself or with all answers before."""
        limits, x = self._site.limits, question.client.training.all().x
        rows = shown_rows(outcome.values, question.broadcast.parameters, question.model.layout, x)
        if len(rows) > limits.shown_rows:
            raise Refused("shows-rows", most=limits.shown_rows)
        before = shown_before(self._folder)
        together = before | hashes_of(rows)
        if together == before:
            return
        if len(together) > limits.most_shown:
            raise Refused("shows-rows-in-all", most=limits.most_shown)
        remember(self._folder, together)

    def question(self, exchange: str, *content: Any) -> None:
        """Enter a question outside the rounds. Refuses more different ones than there are runs, or rounds in them."""
        with self.ledger.open_book() as book:
            most = book.allowed_runs(self._site.limits.runs)
            if exchange == "measure":
                most *= self._site.approved.rounds or 1
            book.enter_question(exchange, fingerprint(exchange, *content), most)

    def _plausible(self, question: Question) -> Anchor | None:
        """Refuse a model or shared values that cannot be honest. Returns the model to remember, if it is a new one."""
        algorithm, model, assignment = question.algorithm, question.model, question.assignment
        factor = self._site.limits.model_change
        training = question.phase != EVALUATE
        made = question.round - 1 if training else question.round
        known = load_anchor(memory_file(self._folder, assignment.run))
        first = first_model(model, assignment.seed)
        length = float(torch.linalg.vector_norm(first.parameters, dtype=torch.float64))
        if made == 0:
            check_first(question.broadcast, first)
        elif model.spec.norm == "freeze":
            check_buffers(question.broadcast, first)
        anchor = known
        if anchor is None:
            anchor = Anchor(0, first.parameters, self._reference(question, length))
        if made and algorithm.trains:
            ratio = rows_ratio(algorithm, question.client.samples, self._agreed(assignment))
            for rounds, before in ((abs(made - anchor.made), anchor.parameters), (made, first.parameters)):
                per_round = change_per_round(algorithm, anchor.reference, before, model.layout, ratio)
                check_change(question.broadcast, before, rounds, per_round, factor, length)
        check_shared(algorithm, question.phase, question.shared, model.layout, anchor.reference, factor)
        if training and (known is None or made > known.made):
            return Anchor(made, question.broadcast.parameters, anchor.reference)
        return None

    def _reference(self, question: Question, first_length: float) -> Reference:
        """Return how far local training leads from the first model: measured, or with noise by the settings."""
        algorithm, model = question.algorithm, question.model
        if algorithm.params.privacy != "none" and algorithm.params.noise:
            return private_reference(algorithm, question.client.samples, model.layout, first_length)
        return measure_reference(algorithm, self._own_client(question), model.spec, question.assignment.seed)

    def _own_client(self, question: Question) -> Client:
        """Return the site's client with draws of its own, so that measuring changes nothing in the phase itself."""
        return self._site.client(question.assignment, self._site.name, round=0, phase=REFERENCE, state={})

    def _agreed(self, assignment: Assignment) -> AgreedSchema:
        return read_agreed_schema(assignment.data.get("schema"))


def rows_ratio(algorithm: Any, own_rows: int, agreed: AgreedSchema) -> float:
    """Return how many times more local steps the largest site makes than this one, as the agreed schema says."""
    return steps_ratio(algorithm, own_rows, list(agreed.sites.values()))


def check_outgoing(approved: Manifest, question: Question, outcome: Outcome) -> None:
    """Refuse an answer that has anything but the values that were approved for the phase, in their sizes."""
    agreed = {entry.name for entry in approved.entries if entry.exchange == question.phase}
    for name in outcome.values:
        if name not in agreed:
            raise Refused("output-beyond", name=name, phase=question.phase)
    sends = declared_phases(question.algorithm)[question.phase]
    if fault(outcome.values, sends, question.model.layout) is not None:
        raise Refused("reply-unsound")


def _content(question: Question) -> str:
    """Return the hash of all that an answer depends on but the site's rows. The attempt at a round is not in it."""
    broadcast = {"parameters": question.broadcast.parameters, "buffers": question.broadcast.buffers}
    return fingerprint(
        _of_run(question.assignment),
        question.phase,
        question.round,
        broadcast,
        dict(question.shared),
        dict(question.client.state),
    )


def _of_run(assignment: Assignment) -> str:
    return fingerprint(json.dumps(assignment.model_dump(mode="json", exclude={"run"}), sort_keys=True))
