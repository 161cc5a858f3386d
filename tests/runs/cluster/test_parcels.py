"""What travels to a node and back arrives unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
import torch

pytest.importorskip("ray", reason="needs farfield[sim]")

import farfield as ff
from farfield.algorithms import registry
from farfield.models import BACKBONES, ModelSpec, build_model, pin, weights
from farfield.models.resnet import ResNet
from farfield.models.weights import file_of
from farfield.records import RecordsError, RunFolder
from farfield.runs.cluster.driver import _Sending
from farfield.runs.cluster.mailbox import Mailbox
from farfield.runs.cluster.node import make_runs
from farfield.runs.cluster.parcels import (
    Packed,
    import_methods,
    look_for_weights,
    method_sources,
    pack,
    read_files,
    unpack,
    write_files,
)
from farfield.runs.cluster.versions import version_conflict
from farfield.runs.plan import Job, make_plan
from farfield.runs.processes import Silent
from farfield.runs.single_run import run_job
from tests.toy import task

METHOD = """
from farfield.algorithms import FedAvg, register

@register
class Travels(FedAvg):
    name = "travels-for-a-test"
"""


def test_rows_arrive_with_the_same_bits_and_outside_the_pickle() -> None:
    sent = task()
    packed = pack(sent)
    arrived = unpack(Packed(packed.content, [array.copy() for array in packed.arrays]))
    assert [d.name for d in arrived.domains] == ["a", "b", "c"]
    for there, here in zip(arrived.domains, sent.domains, strict=True):
        assert torch.equal(there.x, here.x)
        assert torch.equal(there.y, here.y)
    assert arrived.data_hash == sent.data_hash
    assert sum(array.nbytes for array in packed.arrays) == sum(d.x.nbytes + d.y.nbytes for d in sent.domains)
    assert len(packed.content) < 4000


def test_a_table_arrives_with_its_cells_and_its_preparation(tmp_path: Path) -> None:
    cells = pd.DataFrame({
        "site": ["p", "q", "r"] * 12, "age": range(36), "kind": ["u", "v"] * 18, "died": [0, 1, 1, 0] * 9,
    })  # fmt: skip
    cells.to_csv(tmp_path / "rows.csv", index=False)
    sent = ff.read_table(tmp_path / "rows.csv", label="died", domain="site")
    arrived = unpack(pack(sent))
    assert arrived.data_hash == sent.data_hash
    plan = make_plan(sent, algorithms=["fedavg"], held_out=["q"], seeds=1, rounds=2)
    results = [
        run_job(plan, of, Job("fedavg", "q", 0), tmp_path / str(n))["model_sha256"]
        for n, of in enumerate((sent, arrived))
    ]
    assert results[0] == results[1]


def finished(folder: Path, rounds: int = 4) -> None:
    plan = make_plan(task(), algorithms=["scaffold"], held_out=["c"], seeds=1, rounds=rounds)
    run_job(plan, task(), Job("scaffold", "c", 0), folder, checkpoint_every=1)


def test_a_run_that_came_back_is_the_run_that_was_made(tmp_path: Path) -> None:
    finished(tmp_path / "node")
    files = read_files(tmp_path / "node")
    assert {"config.toml", "rounds.jsonl", "target.sealed.jsonl", "result.json", "checkpoint-000004.safetensors"} <= {
        *files
    }
    back = tmp_path / "bench" / "runs" / "seed-0"
    write_files(back, files)
    assert read_files(back) == files
    there, here = RunFolder(tmp_path / "node"), RunFolder(back)
    assert (here.result, here.rounds(), here.config) == (there.result, there.rounds(), there.config)
    first, second = there.latest_checkpoint(), here.latest_checkpoint()
    assert first is not None
    assert second is not None
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


def test_what_an_earlier_start_has_left_goes(tmp_path: Path) -> None:
    finished(tmp_path / "node")
    files = read_files(tmp_path / "node")
    back = tmp_path / "back"
    back.mkdir()
    (back / "checkpoint-000001.safetensors").write_bytes(b"old")
    (back / "failure.json").write_text("{}")
    write_files(back, files)
    assert read_files(back) == files


def test_a_name_that_is_no_file_of_a_run_is_refused(tmp_path: Path) -> None:
    for name in ("../bench.toml", "/etc/x", ".lock", "a/b"):
        with pytest.raises(ValueError, match="no file of a run"):
            write_files(tmp_path / "run", {name: b""})
    assert not (tmp_path / "bench.toml").exists()


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert read_files(tmp_path / "nothing") == {}


def test_a_method_arrives_as_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))  # other tests go through all methods
    path = tmp_path / "own.py"
    path.write_text(METHOD)
    where = method_sources({"travels-for-a-test": {"module": "no_module_of_this_name", "file": str(path)}})
    path.unlink()
    import_methods(where)
    assert ff.algorithms.build("travels-for-a-test", {}, 1).name == "travels-for-a-test"
    with pytest.raises(ff.algorithms.AlgorithmError, match="does not register 'another'"):
        import_methods({"another": {**where["travels-for-a-test"], "source": "registers = None"}})


def test_a_method_that_is_another_one_on_the_node_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "module_of_a_test_of_methods.py"
    path.write_text(METHOD.replace("travels", "stays"))
    where = method_sources({"stays-for-a-test": {"module": path.stem, "file": str(path)}})
    import_methods(where)
    import_methods(where)  # the next task of the process
    newer = {"stays-for-a-test": {**where["stays-for-a-test"], "source": METHOD + "# newer"}}
    with pytest.raises(ff.algorithms.AlgorithmError, match=r"'stays-for-a-test' is another one on this node"):
        import_methods(newer)
    two = METHOD + METHOD.replace("Travels", "Returns").replace("travels", "returns")
    text = {"module": "no_module_of_this_name", "file": "own.py", "source": two}
    for _ in range(2):
        import_methods({"travels-for-a-test": text, "returns-for-a-test": text})
    for name in ("travels-for-a-test", "returns-for-a-test"):
        with pytest.raises(ff.algorithms.AlgorithmError, match=f"'{name}' is another one on this node"):
            import_methods({name: {**text, "source": f"{two}# newer"}})


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (
            ModuleNotFoundError("No module named 'timm'"),
            r"No module named 'timm'; install farfield\[sim\] 0.9 on every",
        ),
        (RecordsError("another process is writing"), "cannot make runs: another process is writing$"),
        (OSError(28, "No space left on device"), "No space left on device; give the same command with --resume"),
    ],
)
def test_what_keeps_a_node_from_making_runs_comes_with_its_own_way_out(cause: Exception, sentence: str) -> None:
    common = {"versions": {"farfield": "0.9"}}
    sending = _Sending(Path(), (), None, common, None, Silent(), lambda _: None)
    assert re.search(sentence, sending._why_no_runs(cause))


def test_weights_that_are_named_by_a_path_are_found_on_a_node_that_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.pth"
    torch.save(ResNet(18).state_dict(), path)
    asked = ModelSpec(featurizer="resnet18", input_shape=(3, 32, 32), outputs=2, norm="freeze", weights=str(path))
    pinned = pin(asked, BACKBONES)
    file = file_of(pinned)
    assert (file, file_of(asked.model_copy(update={"weights": "none"}))) == (path, None)
    monkeypatch.setattr(weights, "_SEEN", {})  # as in the process of a node
    with pytest.raises(weights.WeightsError, match=r"'mine.pth' with sha256 .* are not here"):
        build_model(pinned, seed=0)
    look_for_weights(pinned, None)
    look_for_weights(pinned, tmp_path / "elsewhere.pth")
    look_for_weights(pinned, file)
    assert file_of(pinned) == path
    build_model(pinned, seed=0)


def test_other_versions_are_named() -> None:
    here = {"farfield": "0.1.0", "torch": "2.13.0", "Python": "3.11.4"}
    assert version_conflict(here, dict(here), "10.0.0.7") is None
    assert version_conflict(here, {**here, "torch": "2.12.1"}, "10.0.0.7") == (
        "the node 10.0.0.7 has torch 2.12.1, and the runs need torch 2.13.0; install the same versions on every node"
    )


def test_a_node_of_other_versions_makes_no_run() -> None:
    said = make_runs({"versions": {"torch": "0.4.1"}}, None)
    assert said is not None
    assert re.fullmatch(r"the node .* has torch 2\..*, and the runs need torch 0\.4\.1; install the same .*", said)


def test_a_mailbox_gives_the_last_progress_and_every_run_that_has_ended() -> None:
    mailbox = Mailbox()
    mailbox.tell([{"run": 1, "progress": 1}, {"run": 2, "progress": 1}])
    mailbox.tell([{"run": 1, "progress": 2}])
    mailbox.deliver({"run": 2, "error": None})
    assert mailbox.fetch() == [{"run": 1, "progress": 2}, {"run": 2, "error": None}]
    assert mailbox.fetch() == []
