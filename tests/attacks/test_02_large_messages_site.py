"""A site allocates nothing of a size that a server names, beyond the approved model and the agreed schema."""

from __future__ import annotations

import http.server
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

pytest.importorskip("flwr")
from farfield.deployment.flower.bounded_responses import TooLarge, response_bound
from farfield.deployment.site.sizes import MOST_HEADER, most_wire_bytes
from farfield.models import ModelSpec, build_model
from farfield.models.model import count_numbers
from studies.reconstruction import Victim, write_hospitals


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    write_hospitals(tmp_path, made_up=True)
    return Victim(tmp_path)


def peak() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def refusal(victim: Victim, **model: Any) -> str:
    """Return why a model of other sizes is refused."""
    victim.agreed = victim.agreed.model_copy(update={"model": victim.agreed.model.model_copy(update=model)})
    assert victim.ask("head_gradient", victim.model.vector) == {}
    return victim.refused[-1]


@pytest.mark.parametrize(
    "sizes", [{"outputs": 50_000_000}, {"input_shape": (50_000_000,)}, {"input_shape": (27, 1)}, {"outputs": 3}]
)
def test_a_model_of_other_sizes_than_the_data_gives_is_refused_before_it_is_built(
    victim: Victim, sizes: dict[str, Any]
) -> None:
    victim.ask("evaluate", victim.model.vector)  # warm: imports and the site's own rows
    before = peak()
    assert "inputs or outputs are not those" in refusal(victim, **sizes)
    assert peak() - before < 200 << 20


def test_a_schema_with_endless_levels_or_classes_is_refused(victim: Victim) -> None:
    """A million levels are a model of a million inputs, which the schema itself would justify."""
    agreed = victim.agreed
    levels = tuple(f"l{number}" for number in range(200_000))
    from dataclasses import replace

    columns = tuple(replace(c, levels=levels) if c.kind == "category" else c for c in agreed.columns)
    victim.agreed = agreed.model_copy(update={"columns": columns})
    assert victim.ask("head_gradient", victim.model.vector) == {}
    assert "more columns, levels or classes" in victim.refused[-1]


def test_a_model_that_the_schema_justifies_is_bounded_too(tmp_path: Path) -> None:
    write_hospitals(tmp_path, made_up=True)
    victim = Victim(tmp_path, limits={"limits": {"parameters": 100}})
    assert "head_gradient" not in victim.refused
    victim.agreed = victim.agreed.model_copy(
        update={
            "classes": tuple(map(str, range(60_000))),
            "model": victim.agreed.model.model_copy(update={"outputs": 60_000}),
        }
    )
    assert victim.ask("head_gradient", victim.model.vector) == {}
    assert "parameters, and this site's operator allows" in victim.refused[-1]


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(input_shape=(27,), outputs=2, hidden=(64,)),
        ModelSpec(input_shape=(3, 16, 16), outputs=5, featurizer="convnet", hidden=(8, 16), norm="group"),
        ModelSpec(input_shape=(3, 16, 16), outputs=5, featurizer="convnet", hidden=(8, 16), norm="average"),
        ModelSpec(input_shape=(7,), outputs=3, hidden=(16, 8), representation="gaussian", init="xavier", head="mlp"),
    ],
)
def test_parameters_are_counted_without_building_the_model(spec: ModelSpec) -> None:
    layout = build_model(spec, 0).layout
    assert count_numbers(spec) == (layout.parameters, layout.buffers)


def test_counting_costs_no_memory() -> None:
    before = peak()
    assert count_numbers(ModelSpec(input_shape=(10_000,), outputs=10_000, hidden=(100_000,)))[0] > 10**9
    assert peak() - before < 200 << 20


def test_a_message_with_more_tensors_than_the_model_has_is_refused(victim: Victim) -> None:
    most = most_wire_bytes(victim.site.approved, victim.site.limits)
    assert victim.ask("head_gradient", victim.model.vector, padding=torch.zeros(most // 4 + 1)) == {}
    assert "bytes, and at most" in victim.refused[-1]
    assert victim.ask("head_gradient", victim.model.vector, padding=torch.zeros(100)) == {}
    assert "'padding' with phase 'head_gradient', which fediir does not take" in victim.refused[-1]


def test_a_model_of_another_length_is_refused(victim: Victim) -> None:
    for wrong in (victim.model.vector[:-1], torch.zeros(10**6), victim.model.vector.double().view(1, -1)):
        assert victim.ask("head_gradient", wrong) == {}
        assert "another size than the approved one" in victim.refused[-1]
    assert victim.ask("head_gradient", victim.model.vector * float("nan")) == {}
    assert "not finite" in victim.refused[-1]


def test_a_long_header_is_refused(victim: Victim) -> None:
    assert victim.ask("h" * (MOST_HEADER + 1), victim.model.vector) == {}
    assert "bytes, and at most" in victim.refused[-1]


class Endless(http.server.BaseHTTPRequestHandler):
    """A server that sends a gigabyte, with its length or without, or 400 bytes."""

    def do_POST(self) -> None:
        self.send_response(200)
        if "small" in self.path:
            self.send_header("content-length", "400")
            self.end_headers()
            self.wfile.write(bytes(400))
            return
        if "declared" in self.path:
            self.send_header("content-length", str(1 << 30))
        if "packed" in self.path:
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        try:
            for _ in range(1 << 10):
                self.wfile.write(bytes(1 << 20))
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def endless() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["/declared/v1/fleet/pull-object", "/v1/fleet/pull-object", "/packed/v1/pull-object"])
def test_a_supernode_gives_up_a_message_before_it_is_in_memory(endless: str, path: str) -> None:
    before = peak()
    with httpx.Client(event_hooks={"response": [response_bound(8 << 20)]}) as client, pytest.raises(TooLarge):
        client.post(f"{endless}{path}")
    assert peak() - before < 100 << 20


def test_the_parts_of_one_message_count_together_and_those_of_the_next_anew(endless: str) -> None:
    part, next_message = f"{endless}/small/v1/fleet/pull-object", f"{endless}/small/v1/fleet/pull-messages"
    with httpx.Client(event_hooks={"response": [response_bound(1000)]}) as client:
        for _ in range(2):
            assert len(client.post(part).content) == 400
        with pytest.raises(TooLarge):
            client.post(part)
        client.post(next_message)
        for _ in range(2):
            assert len(client.post(part).content) == 400


def test_flowers_clients_are_bounded(endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.protobuf.client import ProtobufClient

    from farfield.deployment.flower.bounded_responses import bound_responses

    monkeypatch.setattr(ProtobufClient, "__init__", ProtobufClient.__init__)
    bound_responses(1 << 20)
    client = ProtobufClient(endless)
    with pytest.raises(TooLarge):
        client._client.post(f"{endless}/v1/fleet/pull-object")


@pytest.mark.slow
def test_counting_imports_no_compiler() -> None:
    """A site counts for every message, in a process of its own, and torch's compiler takes seconds to import."""
    code = (
        "import sys; from farfield.models import ModelSpec; from farfield.models.model import count_numbers; "
        "print(count_numbers(ModelSpec(input_shape=(7,), outputs=3, hidden=(16,)))); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
