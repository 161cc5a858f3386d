"""When something goes wrong at a site, a code leaves it: no text, no path, no cell."""

from __future__ import annotations

import gc
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from farfield.federation.refusal import SENTENCES, Refused, read_wire, readable
from studies.reconstruction import Victim, write_hospitals
from tests.deployment.sites_in_process import context

SECRET = "patient-4711 of /srv/hospital/rows.csv"


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    write_hospitals(tmp_path, made_up=True)
    return Victim(tmp_path)


def raw_reply(victim: Victim, content: RecordDict, kind: str = "query.farfield") -> str:
    """Return everything that leaves the site in the reply to a message, as one text."""
    message = Message(content, 1, kind)
    message.metadata.__dict__["_message_id"] = "m"
    reply = victim.app(message, context())
    assert not reply.has_error(), "an error reply has the text of an exception"
    told = {name: dict(record) for name, record in reply.content.config_records.items()}
    return json.dumps(told, default=str)


def test_an_exception_in_a_phase_leaves_as_a_code(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    from farfield.algorithms import FedAvg

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(FedAvg, "evaluate", fails)
    fails.__sends__ = {}  # type: ignore[attr-defined]
    fails.__name__ = "evaluate"
    assert victim.ask("evaluate", victim.model.vector) == {}
    assert SECRET not in victim.refused[-1]
    log = (victim.state / "activity.jsonl").read_text()
    assert victim.refused[-1] in SENTENCES.values()
    assert "patient-4711" in log, "the site's operator reads why"


def test_the_reader_of_the_rows_complains_to_the_operator_alone(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farfield.deployment.site.data import SiteData

    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError(SECRET)

    monkeypatch.setattr(SiteData, "domain", fails)
    assert victim.ask("head_gradient", victim.model.vector) == {}
    assert victim.refused[-1] == SENTENCES["failed"]
    log = (victim.state / "activity.jsonl").read_text()
    assert SECRET in log, "the operator reads why"


@pytest.mark.parametrize("kind", ["query.farfield", "query.site", "query.other", "train", "evaluate"])
@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"header": ConfigRecord({"tensors": "not json", "groups": ["a"]})}),
        RecordDict({"header": ConfigRecord({"tensors": "[]", "groups": [], "ask": "describe", "given": "{"})}),
        RecordDict({"header": ConfigRecord({"ask": "x" * 5000, "given": "{}"}), "tensors": ArrayRecord()}),
        RecordDict({"header": ConfigRecord({"tensors": '[[0,"a","b","torch.float32",[3]]]', "groups": ["a"]})}),
    ],
    ids=["empty", "no json", "cut", "long", "no bytes"],
)
def test_a_message_that_cannot_be_read_gets_a_code(victim: Victim, content: RecordDict, kind: str) -> None:
    told = raw_reply(victim, content, kind)
    problems = re.findall(r'"problem": "((?:[^"\\]|\\.)*)"', told)
    assert problems
    for problem in problems:
        assert read_wire(json.loads(f'"{problem}"')) is not None
    assert "Error" not in told
    assert "/" not in told.replace("query/", "")


def test_a_field_is_a_number_or_a_word_of_the_program() -> None:
    refused = Refused("setting-value", key="batch_size", approved=64, asked=SECRET)
    assert SECRET not in refused.wire
    assert read_wire(refused.wire) == ("setting-value", {"key": "batch_size", "approved": 64, "asked": "?"})
    assert Refused("first-model", change=float("nan")).fields == {"change": None}
    with pytest.raises(TypeError):
        Refused("seed", approved=1, text="x")
    with pytest.raises(KeyError):
        Refused(SECRET)


@pytest.mark.parametrize("code", list(SENTENCES))
def test_every_code_has_a_sentence_at_the_server(code: str) -> None:
    import string

    fields = {name: 3 for _, name, _, _ in string.Formatter().parse(SENTENCES[code]) if name}
    refused = Refused(code, **fields)
    assert readable(refused.wire) == str(refused)
    assert "{" not in str(refused)


def test_a_server_reads_a_sentence_and_takes_no_harm_from_a_strange_one() -> None:
    assert readable('["seed", {"approved": 0, "asked": 7}]') == (
        "this site has approved the seed 0, and the server asks for 7"
    )
    for strange in ("plain text", "[]", "[1, 2]", '["seed"]', '["nothing", {}]', '["seed", []]', "[" * 5000):
        assert readable(strange) == strange
    assert "__class__" not in readable('["seed", {"approved": {"__class__": 1}, "asked": null}]')


def test_flowers_own_error_reply_has_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes an error reply of an exception that comes before or after the site's app."""
    from flwr.supernode.runtime import run_clientapp as flower

    from farfield.deployment.flower import fork_executor

    made: list[Any] = []

    def run_clientapp(
        runtime_api_address: Any, token: Any, insecure: Any, certificates: Any, parent_pid: Any,
        runtime_dependency_install: Any,
    ) -> None:  # fmt: skip
        made.append(flower.Error(code=4, reason=SECRET))  # type: ignore[attr-defined]

    replaced = ("run_clientapp", "install_from_fab", "get_load_client_app_fn", "Error")
    before = {name: getattr(flower, name) for name in replaced}
    try:
        flower.run_clientapp = run_clientapp

        class Spec:
            runtime_api_address, token, insecure, parent_pid = "a", "t", True, None

        monkeypatch.setattr(fork_executor, "shorten_object_polling", lambda longest: None)
        fork_executor.ForkExecutor(None)._client(Spec())  # type: ignore[arg-type]
    finally:
        gc.unfreeze()
        for name, value in before.items():
            setattr(flower, name, value)
    (error,) = made
    assert (error.code, error.reason) == (4, "")


def test_why_a_run_failed_is_not_told_to_the_other_sites(tmp_path: Path) -> None:
    """The server's sentence names what one site sent, and the notice goes to all."""
    from farfield.deployment.server.output_folder import FLOWER, SETTINGS
    from farfield.deployment.server.run import ServerSettings, serve
    from tests.deployment.hospitals_in_process import Hospitals

    hospitals = Hospitals(tmp_path, "fedavg", rounds=2)
    more = hospitals.federation.model_copy(update={"sites": 4})
    settings = ServerSettings(federation=more, run="r", wait=0.0, start="s", pid=os.getpid())
    (tmp_path / "out" / FLOWER).mkdir(parents=True)
    (tmp_path / "out" / FLOWER / SETTINGS).write_text(settings.model_dump_json())
    serve(hospitals, tmp_path / "out")  # type: ignore[arg-type]
    assert "'hungarian'" in (tmp_path / "out" / FLOWER / "activity.jsonl").read_text(), "its operator reads why"
    (notice,) = hospitals.notices("cleveland")
    assert notice == "the run has failed at the server; its operator can read why"


def test_a_phase_that_makes_something_infinite_sends_a_code(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    from farfield.algorithms.fediir import FedIIR

    true = FedIIR._of_head

    def infinite(*args: Any) -> torch.Tensor:
        return true(*args) * float("inf")

    monkeypatch.setattr(FedIIR, "_of_head", infinite)
    assert victim.ask("head_gradient", victim.model.vector) == {}
    assert victim.refused[-1] == SENTENCES["failed"]
