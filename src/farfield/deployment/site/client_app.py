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

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from farfield.algorithms import build
from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.audit.log import AuditLog
from farfield.deployment.audit.site_answers import audited
from farfield.deployment.manifest.privacy_budget import Spent
from farfield.deployment.schema.site_schema import read_agreed_schema
from farfield.deployment.site.deployed_site import LONGEST_NAME, DeployedSite
from farfield.deployment.site.guard import SiteGuard
from farfield.deployment.site.sizes import check_header_size, message_bytes, most_wire_bytes
from farfield.deployment.site.state_file import load_state, save_state, state_file
from farfield.deployment.site.sums_file import SumsFolder
from farfield.errors import UserError
from farfield.federation.client_state import SiteState
from farfield.federation.engines.flower.masked_sums import NodeSums, exchange_of
from farfield.federation.engines.flower.node import MethodCache
from farfield.federation.engines.flower.packing import BadMessage, pack, unpack
from farfield.federation.engines.flower.respond import Responder
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.execution import Outcome
from farfield.federation.refusal import Refused, read_wire, readable
from farfield.federation.secure_sums.members import Identity
from farfield.federation.secure_sums.summing_step import SecureSum
from farfield.models import ModelState
from farfield.models.model import hash_states

#: What a server learns of anything that goes wrong at a site, other than a refusal.
FAILED = Refused("failed").wire
#: The kinds of notices that a server may send for the site's operator.
NOTICES = ("finished", "failed", "turned-away")


class SiteApp(ClientApp):
    """A ClientApp that never raises: Flower would send the text of the exception to the server."""

    def __init__(self, activity: ActivityLog) -> None:
        super().__init__()
        self._activity = activity

    def __call__(self, message: Message, context: Context) -> Message:
        try:
            return super().__call__(message, context)
        except Exception as error:
            self._activity.add("refused", one_line(f"{type(error).__name__}: {error}"))
            problem = error.wire if isinstance(error, Refused) else Refused("unreadable").wire
            header = {"ask": "", "answer": "null", "problem": problem, "detail": ""}
            return Message(pack(header, {}), reply_to=message)


def make_app(site: DeployedSite, folder: Path, identity: Identity | None = None) -> ClientApp:
    """Return an app that answers for this site and keeps its state and its records in the folder.

    With an `identity` the site takes part in secure sums only with sites whose keys it knows.
    """
    activity = ActivityLog(folder)
    app, guard = SiteApp(activity), SiteGuard(site, folder)
    site.spent = Spent(folder)
    responder = SiteResponder(site, folder, activity, guard, identity)
    logged = audited(AuditLog(folder, side="site", name=site.name))

    @app.query("farfield")
    @logged
    def run_phase(message: Message, context: Context) -> Message:
        return responder.respond(message)

    @app.query("site")
    @logged
    def answer_question(message: Message, context: Context) -> Message:
        question, started = "", time.perf_counter()
        answer, problem = "null", ""
        try:
            check_header_size(message.content)
            check_tensor_size(message.content, site)
            header, groups = unpack(message.content)
            question = str(header.get("ask", ""))
            answer = json.dumps(_answer(site, guard, activity, question, header, groups))
        except Refused as error:
            answer, problem = "null", error.wire
            activity.add("refused", one_line(error))
        except Exception as error:
            # The text may quote a cell or a path: the server learns that it failed, the operator why.
            answer, problem = "null", FAILED
            activity.add(
                "refused", one_line(error if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
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
        self,
        site: DeployedSite,
        folder: Path,
        activity: ActivityLog,
        guard: SiteGuard,
        identity: Identity | None = None,
    ) -> None:
        super().__init__(site, MethodCache(build))
        self._folder, self._activity, self.guard, self._deployed = folder, activity, guard, site
        self._identity = identity

    def open_sums(self, assignment: Assignment, name: str, summing: SecureSum) -> NodeSums:
        if name != self._deployed.name:
            raise Refused("another-site")
        store = SumsFolder(self._folder)
        return NodeSums(store, name, assignment.run, least=summing.least, identity=self._identity)

    def respond(self, message: Message) -> Message:
        """Return the reply to a message; of one that is too large or cannot be read, only that."""
        try:
            check_header_size(message.content)
            check_tensor_size(message.content, self._deployed)
            return super().respond(message)
        except (Refused, BadMessage) as error:
            self._activity.add("refused", one_line(error))
            problem = error.wire if isinstance(error, Refused) else Refused("unreadable").wire
            same = {name: value for name, value in _plain_header(message).items() if name in ANSWERED}
            nothing: dict[str, Any] = {
                "samples": 0,
                "steps": 0,
                "examples": 0,
                "seconds": 0.0,
                "problem": problem,
                "detail": "",
            }
            return Message(pack({**same, **nothing}, {"values": {}, "state": {}}), reply_to=message)

    @contextlib.contextmanager
    def held_state(self, run: str) -> Iterator[SiteState]:
        path = state_file(self._folder, run)
        state = load_state(path)
        yield state
        if state.kept or state.staged or path.exists():
            save_state(path, state)  # before the reply: what the server counts on is on the disk

    def disclosed(self, outcome: Outcome) -> Outcome:
        """Return what may leave of an outcome: approved values, or a code. Texts are for the site's operator."""
        if outcome.problem is None:
            return replace(outcome, state={}, detail="")
        code = outcome.problem if read_wire(outcome.problem) is not None else FAILED
        return replace(outcome, values={}, state={}, problem=code, detail="")

    def record(self, header: Mapping[str, Any], outcome: Outcome, bytes_sent: int) -> None:
        self._activity.add(
            "refused" if outcome.problem else "phase",
            readable(outcome.problem) if outcome.problem else f"{header.get('phase')}{exchange_of(header)}",
            detail=outcome.detail,
            round=header.get("round"),
            phase=header.get("phase"),
            seconds=round(outcome.seconds, 3),
            bytes=0 if outcome.problem else bytes_sent,
        )


#: What a reply repeats of the message that it answers.
ANSWERED = ("run", "round", "attempt", "phase", "client")


def _plain_header(message: Message) -> dict[str, Any]:
    """Return the texts and numbers of a message's header that can be read, each of them short."""
    found: dict[str, Any] = {}
    for record in message.content.config_records.values():
        for name, value in record.items():
            if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= LONGEST_NAME):
                found[name] = value
    return found


def check_tensor_size(content: RecordDict, site: DeployedSite) -> None:
    """Refuse more bytes than the largest model that was approved, before they are copied."""
    tensors, _ = message_bytes(content)
    most = most_wire_bytes(site.approved, site.limits)
    if tensors > most:
        raise Refused("message-size", bytes=tensors, most=most)


def _answer(
    site: DeployedSite,
    guard: SiteGuard,
    activity: ActivityLog,
    question: str,
    header: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any]],
) -> Any:
    given = json.loads(str(header["given"]))
    if question == "describe":
        return site.describe(str(given["algorithm"]), given["settings"], given["rounds"])
    if question == "statistics":
        agreed, seed = read_agreed_schema(given["schema"]), int(given["seed"])
        told = site.statistics(agreed, seed)
        # One answer per run: statistics of two sets of columns or splits differ by single rows.
        guard.question(question, agreed.model_dump_json(exclude={"notes"}), seed)
        return told
    if question == "moments":
        agreed, seed, width = read_agreed_schema(given["schema"]), int(given["seed"]), int(given["width"])
        found = site.moments(agreed, given["fitted"], seed, width)
        guard.question(question, agreed.model_dump_json(exclude={"notes"}), json.dumps(given["fitted"]), seed, width)
        return found
    if question == "measure":
        assignment = Assignment.model_validate(given["assignment"])
        models = [ModelState(**groups[group]) for group in sorted(groups, key=int)]
        metrics = site.evaluate(assignment, models)
        guard.question(question, assignment.model_dump_json(exclude={"run"}), hash_states(models))
        return metrics
    if question == "notice":
        kind = str(given["kind"])
        if kind not in NOTICES:
            raise Refused("notice")
        activity.add(kind, _with_cell(site, given))
        return True
    raise Refused("question")


def _with_cell(site: DeployedSite, given: Mapping[str, Any]) -> str:
    """Return the text of a notice with the cell that it is about, which never leaves the site."""
    text, column = str(given["text"]), given.get("column")
    cell = site.data.first_text(str(column)) if column else None
    return f"{text} ({cell})" if cell else text


def one_line(text: object) -> str:
    return " ".join(str(text).split())
