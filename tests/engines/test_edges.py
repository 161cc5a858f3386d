"""Edges that once went wrong: each of these gave a wrong number, a crash, or different bits for one and two workers."""

from __future__ import annotations

from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from farfield.algorithms import FedAvg, build, names, registry, use
from farfield.federation import SCALAR, FederationError, Sends, phase
from farfield.federation.engines.local import LocalFederation
from farfield.federation.engines.shared_memory import Arena, receive, send
from farfield.models import ModelSpec, build_model, task_loss
from farfield.protocol.measurement import HeldOut
from farfield.records import Checkpoint, RunFolder
from farfield.records.sealed import count_look
from tests.toy import SPEC, domain, domains, federation, initial

both = pytest.mark.parametrize("workers", [1, 2])
number = Sends(SCALAR, "a number")


class Probe(FedAvg):
    @phase(gradient=Sends("parameters", "the gradient itself, not a copy"), norm=number)
    def resident(self, client: Any, model: Any) -> Any:
        for x, y in client.batches(0):
            model.backward(task_loss(model(x), y))
        client.state["own"] = model.vector
        return {"gradient": model.gradient, "norm": float(model.gradient.norm())}

    @phase(n=number)
    def meddle(self, client: Any, model: Any, t: Any) -> Any:
        seen = float(t)
        t.add_(1)
        return {"n": seen}

    @phase(n=number)
    def huge(self, client: Any, model: Any) -> Any:
        return {"n": 10**400 if client.id == 0 else 1}

    @phase(n=number)
    def masked(self, client: Any, model: Any, mask: Any) -> Any:
        client.state["mask"] = mask
        return {"n": int(mask.sum())}

    @phase(n=number)
    def keep(self, client: Any, model: Any, forget: int) -> Any:
        if forget:
            client.state.clear()
        else:
            client.state["a"] = torch.ones(1)
        return {"n": 1}

    @phase(u=Sends("parameters", "an update"))
    def double(self, client: Any, model: Any) -> Any:
        return {"u": model.vector.double() if client.id == 0 else model.vector}

    @phase(n=number)
    def leave(self, client: Any, model: Any) -> Any:
        if client.id == 0:
            raise SystemExit(3)
        return {"n": 1}

    @phase(n=number)
    def seven_reply(self, client: Any, model: Any) -> Any:
        if client.id >= 7:
            raise OSError("away")
        return {"n": 1}


def started(workers: int = 1, count: int = 3, **options: Any) -> tuple[Probe, LocalFederation]:
    algorithm = Probe()
    fed = federation(algorithm, domains(count), workers=workers, **options)
    fed.begin(1, range(count))
    return algorithm, fed


@both
def test_a_reply_that_is_the_resident_models_own_tensor_stays_that_clients(workers: int) -> None:
    probe, fed = started(workers)
    with fed:
        replies = fed.map(probe.resident, initial().state())
        for reply in replies:
            assert float(reply.values["gradient"].norm()) == pytest.approx(reply.values["norm"])
        build_model(SPEC, 1)
        for state in fed.states.values():
            assert torch.equal(state["own"], initial().vector)


@both
def test_a_client_that_changes_a_shared_tensor_changes_its_own_copy(workers: int) -> None:
    probe, fed = started(workers, 6)
    shared = torch.zeros(())
    with fed:
        assert [r.values["n"] for r in fed.map(probe.meddle, initial().state(), t=shared)] == [0.0] * 6
    assert float(shared) == 0.0


@both
def test_a_number_too_large_for_any_tensor_is_dropped(workers: int) -> None:
    probe, fed = started(workers)
    with fed:
        assert [r.client for r in fed.map(probe.huge, initial().state())] == [1, 2]
        assert "too large" in fed.events[0].message


@both
def test_masks_can_be_shared_and_kept(workers: int) -> None:
    probe, fed = started(workers)
    with fed:
        replies = fed.map(probe.masked, initial().state(), mask=torch.tensor([True, False, True]))
        assert [r.values["n"] for r in replies] == [2, 2, 2]
        assert fed.states[0]["mask"].tolist() == [True, False, True]


def test_a_dtype_that_no_engine_can_carry_is_refused_before_anything_is_sent() -> None:
    probe, fed = started()
    with fed, pytest.raises(FederationError, match="complex64"):
        fed.map(probe.masked, initial().state(), mask=torch.zeros(2, dtype=torch.complex64))


@both
def test_a_phase_that_ends_the_program_costs_one_client(workers: int) -> None:
    probe, fed = started(workers)
    with fed:
        assert [r.client for r in fed.map(probe.leave, initial().state())] == [1, 2]


@pytest.mark.parametrize("norm", ["average", "local"])
def test_batch_norm_trains_when_the_last_batch_would_have_one_row(norm: str) -> None:
    spec = SPEC.model_copy(update={"norm": norm})
    algorithm = build("fedavg", {"batch_size": 31})  # the client has 32 training rows
    with federation(algorithm, domains(1), spec) as fed:
        fed.begin(1, [0])
        algorithm.round(fed, algorithm.start(initial(spec).state()))
        assert (fed.traffic.local_steps, fed.traffic.examples) == (1, 32)


def test_a_held_out_domain_one_row_larger_than_a_batch_can_be_measured_with_local_statistics() -> None:
    spec = SPEC.model_copy(update={"norm": "local"})
    measured = HeldOut(domain("z", rows=1025), "classification", spec).measure([initial(spec).state()])
    assert 0 <= measured["accuracy"] <= 1


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_group_norm_on_a_narrow_mlp_still_sees_its_input(width: int) -> None:
    model = build_model(ModelSpec(input_shape=(4,), outputs=3, hidden=(width,), norm="group"), seed=0)
    out = model(torch.randn(5, 4, generator=torch.Generator().manual_seed(0))).detach()
    assert float((out - out[0]).abs().max()) > 1e-3


def test_fedsgd_keeps_local_statistics() -> None:
    spec = SPEC.model_copy(update={"norm": "local"})
    algorithm = build("fedsgd")
    with federation(algorithm, domains(2), spec) as fed:
        fed.begin(1, [0, 1])
        algorithm.round(fed, algorithm.start(initial(spec).state()))
        assert not torch.equal(fed.states[0]["buffers"], initial(spec).buffer_vector)


def test_fedsgd_with_batch_norm_takes_all_rows_as_one_batch() -> None:
    spec = SPEC.model_copy(update={"norm": "average"})
    states = []
    for name, settings in (("fedsgd", {}), ("fedavg", {"batch_size": 0, "local_steps": 1})):
        algorithm = build(name, settings)
        with federation(algorithm, [domain("a", rows=2000)], spec) as fed:
            fed.begin(1, [0])
            states.append(algorithm.round(fed, algorithm.start(initial(spec).state())).model)
    torch.testing.assert_close(states[0].buffers, states[1].buffers, rtol=0, atol=1e-5)
    torch.testing.assert_close(states[0].parameters, states[1].parameters, rtol=0, atol=1e-5)


def test_a_quorum_that_is_a_whole_number_of_clients_is_met_by_that_many() -> None:
    probe = Probe()
    with federation(probe, [domain(f"d{i:02}", rows=4) for i in range(25)], quorum=0.28) as fed:
        fed.begin(1, range(25))
        assert len(fed.map(probe.seven_reply, initial().state())) == 7


def test_an_empty_cohort_is_named() -> None:
    probe, fed = started()
    with fed:
        fed.begin(1, [])
        with pytest.raises(FederationError, match="no client"):
            fed.map(probe.huge, initial().state())
        with pytest.raises(FederationError, match="no client"):
            fed.map_over([], probe.huge, initial().state())


def test_a_state_that_a_client_clears_is_gone() -> None:
    probe, fed = started()
    with fed:
        fed.map(probe.keep, initial().state(), forget=0)
        assert set(fed.states) == {0, 1, 2}
        fed.map(probe.keep, initial().state(), forget=1)
        assert fed.states == {}


def test_an_update_of_another_precision_is_dropped() -> None:
    probe, fed = started()
    with fed:
        replies = fed.map(probe.double, initial().state())
        assert replies.stack("u").dtype == torch.float32
        assert [r.client for r in replies] == [1, 2]


def test_an_empty_tensor_passes_an_arena_that_is_full() -> None:
    arena = Arena(100)
    near, far = Pipe()
    send(near, arena, {}, {"g": {"x": torch.ones(25), "z": torch.zeros(0)}})
    assert receive(far, arena)[1]["g"]["z"].shape == (0,)


def test_a_look_is_counted_after_a_line_that_a_kill_has_cut(tmp_path: Path) -> None:
    (tmp_path / "looks.jsonl").write_bytes(b'{"time": "x"')
    assert count_look(tmp_path, "report") == 1
    assert count_look(tmp_path, "report") == 2


def test_the_millionth_checkpoint_is_the_latest(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for n in (999_998, 999_999, 1_000_000):
        run.save_checkpoint(Checkpoint(n, {"a": torch.ones(1)}, {}))
    latest = run.latest_checkpoint()
    assert latest is not None
    assert latest.round == 1_000_000


def test_a_checkpoint_with_damaged_metadata_falls_back_to_the_one_before(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for n in (1, 2):
        run.save_checkpoint(Checkpoint(n, {"a": torch.ones(9)}, {"k": 1}))
    path = tmp_path / "checkpoint-000002.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"meta"', b'"mete"'))
    latest = run.latest_checkpoint()
    assert latest is not None
    assert latest.round == 1


def test_two_files_of_the_same_name_in_different_folders_are_both_used(tmp_path: Path) -> None:
    code = "from farfield.algorithms import FedAvg, register\n@register\nclass {0}(FedAvg):\n    name = 'edge-{0}'\n"
    try:
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "mine.py").write_text(code.format(folder))
            use(tmp_path / folder / "mine.py")
        assert {"edge-a", "edge-b"} <= set(names())
    finally:
        for folder in ("a", "b"):
            registry._METHODS.pop(f"edge-{folder}", None)
