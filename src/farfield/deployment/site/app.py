"""The ClientApp of a site: phases go to the same code as on one machine, questions about the site to `DeployedSite`.

It is made in the site's own process from the site's own files. The app that Flower brings along with a run is never
loaded, so a server cannot send code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from farfield.algorithms import build
from farfield.deployment.activity import Activity
from farfield.deployment.schema.site_schema import read_agreed_schema
from farfield.deployment.site.site import DeployedSite, problem_of
from farfield.deployment.site.state_file import load_state, save_state, state_file
from farfield.errors import UserError
from farfield.federation.flower.assignment import Assignment
from farfield.federation.flower.node import Refused, Resident, answer, reply_header
from farfield.federation.flower.packing import pack, packed_bytes, unpack
from farfield.models import ModelState

#: What a server is told when something goes wrong here, other than that it was refused.
FAILED = "it failed at the site, whose own output says why"
#: What a server may say that concerns the site's operator.
NOTICES = ("finished", "failed", "turned-away")


def make_app(site: DeployedSite, folder: Path) -> ClientApp:
    """An app that answers for this site and keeps its state in the folder."""
    app, resident, activity = ClientApp(), Resident(build), Activity(folder)

    @app.query("farfield")
    def run_a_phase(message: Message, context: Context) -> Message:
        header, groups = unpack(message.content)
        path = state_file(folder, str(header.get("run", "")))
        keeping = load_state(path)
        outcome = answer(header, groups, site, resident, keeping)
        if keeping.kept or keeping.staged or path.exists():
            save_state(path, keeping)  # before the reply: what the server counts on is on the disk
        problem, detail = outcome.problem, outcome.detail
        if detail:  # an exception's words may quote a cell: they are for the site's operator alone
            outcome.problem, outcome.detail = FAILED, ""
        content = pack(reply_header(header, outcome), {"values": outcome.values, "state": outcome.state})
        activity.add(
            "refused" if problem else "phase",
            problem or str(header.get("phase")),
            detail=detail,
            round=header.get("round"),
            phase=header.get("phase"),
            seconds=round(outcome.seconds, 3),
            bytes=0 if problem else packed_bytes(content),
        )
        return Message(content, reply_to=message)

    @app.query("site")
    def answer_a_question(message: Message, context: Context) -> Message:
        header, groups = unpack(message.content)
        ask, started = str(header.get("ask", "")), time.perf_counter()
        told = ""
        try:
            said, problem = json.dumps(_answer(site, activity, ask, header, groups)), ""
        except Refused as error:
            said, problem = "null", problem_of(error)
            told = problem
        except Exception as error:
            # Whatever it says may quote a cell or a path; the server learns that it failed, the operator why.
            said, problem = "null", FAILED
            told = problem_of(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if problem:
            activity.add("refused", told)
        elif ask != "notice":
            activity.add("question", ask, seconds=round(time.perf_counter() - started, 3), bytes=len(said))
        return Message(pack({"ask": ask, "answer": said, "problem": problem}, {}), reply_to=message)

    return app


def _answer(
    site: DeployedSite,
    activity: Activity,
    ask: str,
    header: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any]],
) -> Any:
    given = json.loads(str(header["given"]))
    if ask == "describe":
        return site.describe(str(given["algorithm"]), given["settings"], given["rounds"])
    if ask == "statistics":
        return site.statistics(read_agreed_schema(given["schema"]), int(given["seed"]))
    if ask == "measure":
        assignment = Assignment.model_validate(given["assignment"])
        models = [ModelState(**groups[group]) for group in sorted(groups, key=int)]
        return site.measure(assignment, models)
    if ask == "notice":
        kind = str(given["kind"])
        if kind not in NOTICES:
            raise Refused("this site does not know that kind of notice")
        activity.add(kind, _with_cell(site, given))
        return True
    raise Refused(f"this site's version does not know the question '{ask}'")


def _with_cell(site: DeployedSite, given: Mapping[str, Any]) -> str:
    """A notice, with the cell that it is about: which never leaves the site."""
    text, column = str(given["text"]), given.get("column")
    cell = site.data.first_text(str(column)) if column else None
    return f"{text} ({cell})" if cell else text
