"""A whole deployment in this process, in which one site is hostile: its app answers, and its replies are changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from flwr.app import Message

from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.federation_file import read_federation
from farfield.deployment.server.output_folder import FLOWER, RUN
from farfield.deployment.server.run import ServerSettings, _serve
from farfield.federation.engines.flower.packing import pack, unpack
from farfield.records import RunFolder
from farfield.reproducibility.threads import one_thread
from tests.deployment.sites_in_process import Sites
from tests.federation.engines.flower.in_process import answered, rewritten

SITES = ("amber", "birch", "cedar", "dune")
#: Called with the header and the values of a reply to a phase; returns another header and other values.
ChangeReply = Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]
#: Called with a question and the honest answer to it; returns another answer.
ChangeAnswer = Callable[[str, Any], Any]


@dataclass
class Served:
    """What the server has after its run."""

    result: dict[str, Any]
    out: Path

    @property
    def records(self) -> RunFolder:
        return RunFolder(self.out / RUN)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.records.events() if event["kind"] == kind]

    def reported(self, kind: str) -> list[str]:
        lines = (self.out / FLOWER / "activity.jsonl").read_text().splitlines()
        return [row["text"] for row in map(json.loads, lines) if row["kind"] == kind]


class HostileSite:
    """A site's app behind which somebody changes what it says."""

    def __init__(self, app: Any, reply: ChangeReply | None, answer: ChangeAnswer | None) -> None:
        self._app, self._reply, self._answer = app, reply, answer

    def __call__(self, message: Message, context: Any) -> Message:
        honest = self._app(message, context)
        header, groups = unpack(honest.content)
        if "ask" in header:
            if self._answer is None:
                return honest
            changed = self._answer(header["ask"], json.loads(header["answer"]))
            return Message(pack({**header, "answer": json.dumps(changed)}, {}), reply_to=answered(honest))
        if self._reply is None or header["problem"]:
            return honest
        other, values = self._reply(header, groups["values"])
        return rewritten(honest, other, values=values)


def served(
    folder: Path,
    *,
    hostile: str = "dune",
    reply: ChangeReply | None = None,
    answer: ChangeAnswer | None = None,
    evaluating: tuple[str, ...] = (),
    sites: tuple[str, ...] = SITES,
    **federation: Any,
) -> Served:
    """Run a federation to its end; one of its sites may be hostile."""
    folder.mkdir(parents=True, exist_ok=True)
    training = [name for name in sites if name not in evaluating]
    content = {
        "name": "toy",
        "server": "127.0.0.1:9443",
        "algorithm": "fedavg",
        "rounds": 3,
        "sites": len(training),
        "evaluating": len(evaluating),
        **federation,
    }
    (folder / "federation.toml").write_text(tomli_w.dumps(content))
    read = read_federation(folder / "federation.toml")
    made = Sites(folder, read, ())
    for number, name in enumerate(sites, 1):
        made.start(number, name, **({"role": "evaluate"} if name in evaluating else {}))
        if name == hostile:
            made.apps[number] = HostileSite(made.apps[number], reply, answer)
    out = folder / "out"
    (out / FLOWER).mkdir(parents=True)
    settings = ServerSettings(federation=read, run="a-run", wait=0.0, start="1", pid=0)
    with RunFolder(out / RUN).writing(), one_thread():
        result = _serve(made, out, settings, ActivityLog(out / FLOWER))  # type: ignore[arg-type]
    return Served(result, out)
