"""Messages of the network: how they are unpacked, what a site does with a server's, what a server does with a site's.

An input is a message in JSON: its header, the description of its tensors, and their bytes in base 64. From that a real
message of Flower's is made, which is what the code under test gets.
"""

from __future__ import annotations

import base64
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from tests.fuzz.mutation import Seed
from tests.fuzz.target import Consume, target


class _NoMessage(Exception):
    """An input that Flower itself would not take as a message."""


def _as_json(content: Any) -> bytes:
    """Write the content of a message as JSON."""
    header = dict(content.config_records["header"])
    arrays = {name: base64.b64encode(array.data).decode() for name, array in content.array_records["tensors"].items()}
    described = json.loads(header.pop("tensors"))
    return json.dumps({"header": header, "tensors": described, "arrays": arrays}).encode()


def _as_content(data: bytes) -> Any:
    """Make the content of a message from JSON. Flower's records take texts, numbers, and lists of one kind."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    try:
        given = json.loads(data)
        header = {name: value for name, value in given["header"].items() if _fits(value)}
        tensors = json.dumps(given["tensors"])
        arrays = {}
        for name, text in given["arrays"].items():
            raw = base64.b64decode(text)
            arrays[str(name)] = Array(dtype="uint8", shape=(len(raw),), stype="farfield.packed", data=raw)
        return RecordDict({"header": ConfigRecord({**header, "tensors": tensors}), "tensors": ArrayRecord(arrays)})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _NoMessage from error


def _fits(value: Any) -> bool:
    """Whether Flower's records hold such a value, within the 64 bits of its wire format."""
    if isinstance(value, list):
        return all(_fits(of) and not isinstance(of, list) for of in value) and len({type(of) for of in value}) <= 1
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, str | float | bool)


@target("messages", share=0.14, short=5000)
def messages(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """Unpack any content; a tensor that comes out has the bytes that it says."""
    import torch

    from farfield.federation.engines.flower.packing import pack, unpack

    def consume(data: bytes) -> None:
        try:
            content = _as_content(data)
        except _NoMessage:
            return
        _, groups = unpack(content)
        for named in groups.values():
            for value in named.values():
                if isinstance(value, torch.Tensor):
                    assert value.numel() == math.prod(value.shape)
                    assert value.nbytes <= len(data)

    header = {"run": "r", "round": 1, "attempt": "a", "phase": "train", "skipped": [1, 2], "travelling": False}
    groups = {"model": {"parameters": torch.arange(6.0), "buffers": torch.zeros(0)}, "shared": {"lr": 0.1, "n": 3}}
    more = {"values": {"update": torch.ones(2, 3), "count": torch.tensor([1, 2])}, "state": {}}
    return [Seed(_as_json(pack(header, of)), "json") for of in (groups, more)], consume


@target("messages to a site", share=0.05, short=1200)
def messages_to_a_site(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """A site's app answers every message: with a reply, or with a refusal in it."""
    import torch
    from flwr.app import Message

    from farfield.federation.engines.flower.packing import BadMessage, pack
    from farfield.models import build_model
    from tests.deployment.sites_in_process import context

    sites, made, assignment = _federation(folder)
    model = build_model(assignment.model, 0).state()
    groups = {"model": {"parameters": model.parameters, "buffers": model.buffers}, "shared": {}}
    groups["shared"] = {"control": torch.zeros_like(model.parameters)}
    header = {
        "run": assignment.run, "round": 1, "attempt": "a", "phase": "train", "client": "amber", "skipped": [],
        "travelling": False, "mark": "m", "accepted": "", "assignment": assignment.model_dump_json(),
    }  # fmt: skip
    schema = made.agreed.model_dump(mode="json")
    questions: dict[str, Any] = {
        "describe": {"algorithm": "scaffold", "settings": assignment.settings, "rounds": 2},
        "statistics": {"schema": schema, "seed": 0},
        "moments": {"schema": schema, "fitted": None, "seed": 0, "width": 4},
        "notice": {"kind": "finished", "text": "done"},
        "measure": {"assignment": assignment.model_dump(mode="json")},
    }
    seeds = [Seed(_as_json(pack(header, groups)), "json", b"f")]
    for question, given in questions.items():
        content = pack({"ask": question, "given": json.dumps(given)}, {"0": groups["model"]})
        seeds.append(Seed(_as_json(content), "json", b"q"))
    state = sites.folder / "amber"

    def consume(data: bytes) -> None:
        try:
            content = _as_content(data[1:])
        except _NoMessage:
            return
        message = Message(content, 1, "query.farfield" if data[:1] == b"f" else "query.site")
        message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        try:
            reply = sites.apps[1](message, context())
        except BadMessage:  # Flower makes an error reply of it
            return
        finally:
            for left in (*state.glob("state-*"), state / "activity.jsonl"):
                left.unlink(missing_ok=True)
        assert reply.has_content() or reply.has_error()

    return seeds, consume


@target("messages to a server", share=0.05, short=1500)
def messages_to_a_server(folder: Path) -> tuple[Sequence[Seed], Consume]:
    """The server reads any reply of a site as an outcome or an answer; a bad one is a problem with a name."""
    import torch
    from flwr.app import Message

    from farfield.algorithms import build
    from farfield.deployment.server import ask_sites
    from farfield.federation.engines.flower.engine import FlowerFederation, Node
    from farfield.federation.engines.flower.packing import pack
    from farfield.federation.phase import declared_phases
    from farfield.models import build_model

    sites, _, assignment = _federation(folder)
    model = build_model(assignment.model, 0)
    engine = FlowerFederation(sites, [Node(1, "amber", "amber")], model.layout, assignment, deadline=1.0)  # type: ignore[arg-type]
    engine._round, engine._attempt = 1, "a"
    declared = declared_phases(build("scaffold", assignment.settings))["train"]
    engine._sends = declared
    header = {
        "run": assignment.run, "round": 1, "attempt": "a", "phase": "train", "client": "amber", "samples": 20,
        "steps": 3, "examples": 60, "seconds": 0.1, "problem": "", "detail": "",
    }  # fmt: skip
    sizes = {name: of.sizes(model.layout) for name, of in declared.items()}
    values = {
        name: torch.zeros([1 if size is None else size for size in of]) if of else 0.5 for name, of in sizes.items()
    }
    answer = pack({"ask": "describe", "answer": json.dumps({"site": "amber", "schema": {}}), "problem": ""}, {})
    asked = Message(pack({}, {}), 1, "query.farfield")
    asked.metadata.__dict__["_message_id"] = str(uuid.uuid4())

    def consume(data: bytes) -> None:
        try:
            content = _as_content(data[1:])
        except _NoMessage:
            return
        reply = Message(content, reply_to=asked)
        if data[:1] == b"o":
            outcome = engine._outcome(reply, 0, "train", None)
            if outcome.problem is None:
                finite = (value for value in outcome.values.values() if isinstance(value, torch.Tensor))
                assert all(bool(torch.isfinite(value).all()) for value in finite if value.is_floating_point())
        else:
            read = ask_sites._read(reply, "describe")
            assert read.problem.isprintable() or not read.problem

    seeds = [Seed(_as_json(pack(header, {"values": values, "state": {}})), "json", b"o")]
    return [*seeds, Seed(_as_json(answer), "json", b"a")], consume


def _federation(folder: Path) -> tuple[Any, Any, Any]:
    """Three real sites in this process, what they agreed on, and the assignment that a server would send."""
    from farfield.deployment.federation_file import read_federation
    from tests.deployment.site.test_client_app import assignment
    from tests.deployment.sites_in_process import Sites, together

    path = folder / "federation.toml"
    content: Mapping[str, Any] = {
        "name": "toy", "server": "127.0.0.1:9443", "algorithm": "scaffold", "rounds": 2, "sites": 3,
    }  # fmt: skip
    path.write_text(tomli_w.dumps(content))
    sites = Sites(folder, read_federation(path))
    made, _ = together(sites)
    return sites, made, assignment(sites, made)
