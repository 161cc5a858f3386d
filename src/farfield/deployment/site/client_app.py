"""The ClientApp of a site: it runs the phases that were approved, and answers questions about the site.

It is made in the site's own process from the site's own files. The app that Flower brings along with a run is never
loaded, so a server cannot send code.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from farfield.algorithms import build
from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.audit.log import AuditLog
from farfield.deployment.audit.site_answers import audited
from farfield.deployment.manifest.privacy_budget import Spent
from farfield.deployment.schema.site_schema import read_agreed_schema
from farfield.deployment.site.deployed_site import DeployedSite
from farfield.deployment.site.state_file import load_state, save_state, state_file
from farfield.deployment.site.sums_file import SumsFolder
from farfield.errors import UserError
from farfield.federation.client_state import SiteState
from farfield.federation.engines.flower.masked_sums import NodeSums, exchange_of
from farfield.federation.engines.flower.node import MethodCache
from farfield.federation.engines.flower.packing import pack, unpack
from farfield.federation.engines.flower.respond import Responder
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.execution import Outcome
from farfield.federation.refusal import Refused
from farfield.federation.secure_sums.members import Identity
from farfield.federation.secure_sums.summing_step import SecureSum
from farfield.models import ModelState

#: What a server reads about anything that goes wrong at a site, other than a refusal.
FAILED = "it failed at the site, whose own output says why"
#: The kinds of notices that a server may send for the site's operator.
NOTICES = ("finished", "failed", "turned-away")


def make_app(site: DeployedSite, folder: Path, identity: Identity | None = None) -> ClientApp:
    """Return an app that answers for this site and keeps its state and its records in the folder.

    With an `identity` the site takes part in secure sums only with sites whose keys it knows.
    """
    app, activity = ClientApp(), ActivityLog(folder)
    site.spent = Spent(folder)
    responder = SiteResponder(site, folder, activity, identity)
    logged = audited(AuditLog(folder, side="site", name=site.name))

    @app.query("farfield")
    @logged
    def run_phase(message: Message, context: Context) -> Message:
        return responder.respond(message)

    @app.query("site")
    @logged
    def answer_question(message: Message, context: Context) -> Message:
        header, groups = unpack(message.content)
        question, started = str(header.get("ask", "")), time.perf_counter()
        answer, problem = "null", ""
        try:
            answer = json.dumps(_answer(site, activity, question, header, groups))
        except Refused as error:
            problem = _one_line(error)
            activity.add("refused", problem)
        except Exception as error:
            # The text may quote a cell or a path: the server learns that it failed, the operator why.
            problem = FAILED
            activity.add(
                "refused", _one_line(error if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
            )
        else:
            if question != "notice":
                seconds = round(time.perf_counter() - started, 3)
                activity.add("question", question, seconds=seconds, bytes=len(answer))
        return Message(pack({"ask": question, "answer": answer, "problem": problem}, {}), reply_to=message)

    return app


class SiteResponder(Responder):
    """Runs phases on a site's rows. The state stays in a file at the site, and so does the reason of a failure."""

    def __init__(
        self, site: DeployedSite, folder: Path, activity: ActivityLog, identity: Identity | None = None
    ) -> None:
        super().__init__(site, MethodCache(build))
        self._folder, self._activity, self._identity = folder, activity, identity
        self._name = site.name

    def open_sums(self, assignment: Assignment, name: str, summing: SecureSum) -> NodeSums:
        if name != self._name:
            raise Refused(f"this is site '{self._name}', and the message is for '{name}'")
        store = SumsFolder(self._folder)
        return NodeSums(store, name, assignment.run, least=summing.least, identity=self._identity)

    @contextlib.contextmanager
    def held_state(self, run: str) -> Iterator[SiteState]:
        path = state_file(self._folder, run)
        state = load_state(path)
        yield state
        if state.kept or state.staged or path.exists():
            save_state(path, state)  # before the reply: what the server counts on is on the disk

    def disclosed(self, outcome: Outcome) -> Outcome:
        """Return the outcome without an exception's text, which may quote a cell: it is for the site's operator."""
        return replace(outcome, problem=FAILED, detail="") if outcome.detail else outcome

    def record(self, header: Mapping[str, Any], outcome: Outcome, bytes_sent: int) -> None:
        self._activity.add(
            "refused" if outcome.problem else "phase",
            outcome.problem or f"{header.get('phase')}{exchange_of(header)}",
            detail=outcome.detail,
            round=header.get("round"),
            phase=header.get("phase"),
            seconds=round(outcome.seconds, 3),
            bytes=0 if outcome.problem else bytes_sent,
        )


def _answer(
    site: DeployedSite,
    activity: ActivityLog,
    question: str,
    header: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any]],
) -> Any:
    given = json.loads(str(header["given"]))
    if question == "describe":
        return site.describe(str(given["algorithm"]), given["settings"], given["rounds"])
    if question == "statistics":
        return site.statistics(read_agreed_schema(given["schema"]), int(given["seed"]))
    if question == "moments":
        agreed = read_agreed_schema(given["schema"])
        return site.moments(agreed, given["fitted"], int(given["seed"]), int(given["width"]))
    if question == "measure":
        assignment = Assignment.model_validate(given["assignment"])
        models = [ModelState(**groups[group]) for group in sorted(groups, key=int)]
        return site.evaluate(assignment, models)
    if question == "notice":
        kind = str(given["kind"])
        if kind not in NOTICES:
            raise Refused("this site does not know that kind of notice")
        activity.add(kind, _with_cell(site, given))
        return True
    raise Refused(f"this site's version does not know the question '{question}'")


def _with_cell(site: DeployedSite, given: Mapping[str, Any]) -> str:
    """Return the text of a notice with the cell that it is about, which never leaves the site."""
    text, column = str(given["text"]), given.get("column")
    cell = site.data.first_text(str(column)) if column else None
    return f"{text} ({cell})" if cell else text


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
