"""Which engine a run is made on: refused in a sentence, recorded, and changed by a resume without changing the bits."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import farfield as ff
from farfield.federation.engine import Engine
from farfield.models import build_model
from farfield.records import RunFolder
from farfield.runs.engines import EngineEntry, LocalEngine, PreparedRun, engine_named
from farfield.runs.plan import Job, make_plan
from farfield.runs.rounds import Rounds, Schedule, open_run
from farfield.runs.settings import PlanError
from farfield.runs.simulation.shared_rows import SharedRows
from farfield.runs.single_run import run_job
from tests.toy import SPEC, domains, task

pytest.importorskip("flwr")
from farfield.federation.engines.flower.engine import FlowerFederation, Node
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.runs.own_methods import own_methods
from farfield.runs.simulation.node import SimulatedSite
from tests.federation.engines.flower.in_process import InProcessGrid, over_grid, rewritten_problem

engines = sys.modules["farfield.runs.engines"]  # the package has a function of its parent's name


class Stop(Exception):
    pass


def stop_after(round: int) -> Any:
    def watch(progress: Any) -> None:
        if progress.round == round:
            raise Stop

    return watch


def begin_until(last: int, begin: Any, round: int, cohort: Any) -> None:
    """A server that is killed after a checkpoint, before it begins the next round."""
    if round == last:
        raise Stop
    begin(round, cohort)


@dataclass
class Messages:
    """The engine of a simulation, with rows from shared files, over a grid in this process."""

    folder: Path
    name: str = "flower"
    devices: tuple[torch.device, ...] = (torch.device("cpu"),)

    def federation(self, run: PreparedRun) -> Engine:
        label = run.job.algorithm
        here = f"{label}-{len(list(self.folder.iterdir()))}"
        data = SharedRows(self.folder).put_run(here, run.data, run.plan.augment)
        assignment = Assignment(
            run="r",
            algorithm=label,
            settings=run.plan.settings[label],
            rounds=run.plan.rounds_of[label],
            model=run.model.spec,
            seed=run.job.seed,
            data=data | {"deadline": None},
        )
        nodes = [Node(n + 1, str(n), run.population.domain_of(n)) for n in range(len(run.population))]
        return FlowerFederation(
            InProcessGrid(SimulatedSite()), nodes, run.model.layout, assignment, travelling=True, quorum=run.plan.quorum
        )


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_run_resumed_on_another_engine_ends_in_the_same_bits_and_names_both(name: str, tmp_path: Path) -> None:
    problem = task(3)
    plan = make_plan(problem, algorithms=[name], held_out=["c"], seeds=1, rounds=5)
    job = Job(name, "c", 0)
    (tmp_path / "rows").mkdir()
    local, flower = LocalEngine(), Messages(tmp_path / "rows")
    whole = run_job(plan, problem, job, tmp_path / "whole")
    assert whole["engine"] == "local"
    for first, then in ((local, flower), (flower, local)):
        folder = tmp_path / first.name
        with pytest.raises(Stop):
            run_job(plan, problem, job, folder, engine=first, checkpoint_every=2, watch=stop_after(3))
        result = run_job(plan, problem, job, folder, engine=then, checkpoint_every=2)
        assert result["engine"] == f"{first.name}, {then.name}"
        for key in ("model_sha256", "local_steps", "bytes_up", "bytes_down", "rounds"):
            assert result[key] == whole[key], key
        for file in ("rounds.jsonl", "target.sealed.jsonl"):
            assert (folder / file).read_text() == (tmp_path / "whole" / file).read_text()


def test_rounds_need_no_rows_and_a_checkpoint_after_each_loses_nothing(tmp_path: Path) -> None:
    """As a server in a deployment: it has an engine, the clients' domains, and a way to ask a held-out site."""
    plan = make_plan(task(2), algorithms=["scaffold"], all_train=True, seeds=1, rounds=4)
    algorithm = plan.algorithm("scaffold")
    schedule = Schedule(rounds=4, evaluate_every=2, checkpoint_every=1, cohort=None, kind="classification")
    start = algorithm.start(build_model(SPEC, 0).state())
    grid: Any = None

    def run(folder: str, watch: Any = lambda _: None) -> dict[str, Any]:
        nonlocal grid
        fed, fresh = over_grid("scaffold", algorithm, domains(2), rounds=4)
        grid = fresh if grid is None else grid
        fed._grid = grid  # the sites stay as they are when the server starts again
        records = RunFolder(tmp_path / folder)
        with records.writing():
            open_run(records, {"run": 1})
            rounds = Rounds(
                Job("scaffold", "far", 0),
                schedule,
                records,
                algorithm,
                fed,
                {0: "a", 1: "b"},
                engine="flower",
                measure=lambda state: {"accuracy": float(state.round)},
                facts={"task": "sites"},
                watch=watch,
            )
            return rounds.to_the_end(start)

    whole = run("whole")
    grid = None
    with pytest.raises(Stop):
        run("parts", stop_after(3))
    parts = run("parts")
    assert parts["model_sha256"] == whole["model_sha256"]
    assert (parts["task"], parts["engine"], parts["clients"]) == ("sites", "flower", 2)
    sealed = [json.loads(row) for row in (tmp_path / "parts" / "target.sealed.jsonl").read_text().splitlines()]
    assert [row["round"] for row in sealed] == [2, 4]


def test_a_server_that_starts_again_still_knows_which_rounds_were_skipped(tmp_path: Path) -> None:
    """Sites keep what a skipped round left them only until they are told that it was skipped."""
    algorithm = make_plan(task(3), algorithms=["scaffold"], all_train=True, rounds=4).algorithm("scaffold")
    schedule = Schedule(rounds=4, evaluate_every=4, checkpoint_every=1, cohort=None, kind="classification")

    def through(folder: str, stops: bool) -> str:
        grid: Any = None
        while True:
            fed, fresh = over_grid(
                "scaffold", algorithm, domains(3), rounds=4, quorum=1.0, tamper=rewritten_problem("1", round=2)
            )
            if stops and grid is None:
                fed.begin = partial(begin_until, 3, fed.begin)  # type: ignore[method-assign]
            grid = grid or fresh
            fed._grid = grid  # the sites stay as they are when the server starts again
            records = RunFolder(tmp_path / folder)
            open_run(records, {})
            rounds = Rounds(Job("scaffold", None, 0), schedule, records, algorithm, fed, {0: "a"}, engine="flower")
            try:
                return str(rounds.to_the_end(algorithm.start(build_model(SPEC, 0).state()))["model_sha256"])
            except Stop:
                continue

    whole = through("whole", stops=False)
    assert through("stopped", stops=True) == whole
    skipped = [json.loads(row) for row in (tmp_path / "whole" / "events.jsonl").read_text().splitlines()]
    assert [row["round"] for row in skipped if row["kind"] == "round-skipped"] == [2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "vectorized"}, "no engine 'vectorized'; there are auto, local, batched, batched-func and flower"),
        ({"engine": "flowers"}, "did you mean 'flower'"),
        ({"engine": "flower", "parallel": 2}, "one run is made after the other"),
        ({"engine": "flower", "workers": 0}, "workers must be at least 1, not 0"),
    ],
)
def test_an_engine_that_cannot_be_had_so_is_refused_before_a_folder_is_made(
    options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=sentence):
        ff.bench(task(3), ["fedavg"], rounds=1, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_without_flower_a_sentence_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda package: None)
    with pytest.raises(PlanError, match=r"needs Flower's simulation, .*: pip install 'farfield\[sim\]'"):
        engine_named("flower")
    assert engine_named("local").available


def test_the_reason_why_an_engine_is_not_there_is_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EngineEntry("stacked", "", needs=("no_such_package",), needed="a package of stacks", extra="stacks")
    monkeypatch.setitem(engines.ENGINES, "stacked", entry)
    with pytest.raises(PlanError) as error:
        engine_named("stacked")
    said = "the engine 'stacked' needs a package of stacks, which is not installed: pip install 'farfield[stacks]'"
    assert str(error.value) == said


def test_nodes_are_told_where_methods_of_ones_own_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from farfield.algorithms import FedAvg, register\n@register\nclass M(FedAvg):\n    name = 'mine-for-a-test'\n"
    )
    from farfield.algorithms import method, use

    use(path)
    plan = make_plan(task(3), algorithms=["fedavg", "mine-for-a-test+fedomg"])
    assert {name: where["file"] for name, where in own_methods(plan).items()} == {"mine-for-a-test": str(path)}
    monkeypatch.setattr(method("mine-for-a-test"), "__module__", "__main__")
    with pytest.raises(PlanError, match=r"'mine-for-a-test' is defined in the running program.*--use"):
        own_methods(plan)
