"""A run across sites, as the ServerApp makes it: wait, agree, prepare, then the same rounds as on one machine."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid
from pydantic import BaseModel, TypeAdapter, ValidationError

from farfield.deployment.activity import Activity
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.schema.site_schema import read_agreed_schema
from farfield.deployment.server.evaluating_sites import measured_elsewhere
from farfield.deployment.server.federation import SitesFederation
from farfield.deployment.server.joining import Federated, Member, gather, gather_again, offer
from farfield.deployment.server.questions import Network
from farfield.errors import UserError
from farfield.federation.federation import Event, FederationError
from farfield.federation.flower.assignment import Assignment
from farfield.models import build_model
from farfield.records import RunFolder
from farfield.records.atomic import write_atomic, write_json
from farfield.runs.plan import Job, Plan, make_plan
from farfield.runs.rounds import Measure, Progress, Rounds, open_run
from farfield.runs.settings import PlanError
from farfield.runs.single_run import PREPARATION, schedule_of
from farfield.tasks.outline import TaskOutline
from farfield.tasks.task import Fitted
from farfield.tasks.user_data.fitted_preparation import read_fitted
from farfield.trained.card import write_card
from farfield.trained.model_folder import Best

#: In the output folder: what `farfield server` tells the ServerApp, and what Flower's processes write.
FLOWER, SETTINGS = "flower", "server.json"
RUN = "run"
FEDERATED = "federated.json"
#: What a site that evaluates may answer.
METRICS = TypeAdapter(dict[str, float])


class ServerSettings(BaseModel):
    """What a ServerApp is started for."""

    federation: FederationFile
    #: The run's name, the same when it is resumed: sites keep their state under it.
    run: str
    #: Seconds to wait for the sites.
    wait: float
    #: Which start of the server this is; rows of an earlier one, that is still ending, are not taken for it.
    start: str
    #: The process that started all this; when it is gone, so is the run.
    pid: int
    #: Nodes by the names of the keys that they were let in with; empty for an open server.
    names: dict[int, str] = {}


class Agreement(BaseModel):
    """What the sites agreed on when a run began, so that it goes on with the same."""

    #: Names and roles.
    sites: dict[str, str]
    schema_: dict[str, Any]
    fitted: dict[str, Any] | None


def serve(grid: Grid, out: Path) -> None:
    """The whole run. What goes wrong is written down for whoever watches."""
    settings = ServerSettings.model_validate_json((out / FLOWER / SETTINGS).read_text())
    threading.Thread(target=_end_with, args=(settings.pid,), daemon=True).start()
    activity = Activity(out / FLOWER, settings.start)
    activity.add("started", "the server is running", pid=os.getpid())
    try:
        with RunFolder(out / RUN).writing():
            result = _serve(grid, out, settings, activity)
        activity.add("finished", "the run is finished", sha256=result["model_sha256"])
    except (UserError, FederationError) as error:
        why = " ".join(str(error).split())
        _tell_sites(Network(grid), "failed", f"the run has failed at the server: {why}")
        activity.add("failed", why)
    except BaseException as error:
        activity.add("failed", f"{type(error).__name__}: {error}", detail=traceback.format_exc())
        raise


def _end_with(pid: int) -> None:
    """End this process when the other has ended: Flower starts it apart, where no signal to a group reaches it."""
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(1.0)


def _tell_sites(network: Network, kind: str, text: str, nodes: Iterable[int] | None = None) -> None:
    network.ask(network.nodes() if nodes is None else nodes, "notice", {"kind": kind, "text": text}, seconds=10.0)


def _come_together(
    network: Network, settings: ServerSettings, folder: Path, activity: Activity
) -> tuple[Federated, Fitted | None]:
    """The sites, what they agree on and the preparation: of a run that is resumed, those that it began with."""
    path, federation = folder / FEDERATED, settings.federation
    if path.exists():
        known = Agreement.model_validate_json(path.read_text())
        agreed = read_agreed_schema(known.schema_)
        federated = gather_again(network, federation, known.sites, agreed, settings.wait, activity.add)
        return federated, None if known.fitted is None else read_fitted(known.fitted)
    federated = gather(network, federation, settings.wait, activity.add, settings.names)
    fitted = _fit(network, federation, federated, activity)
    agreement = Agreement(
        sites={m.name: m.role for m in (*federated.training, *federated.evaluating)},
        schema_=federated.agreed.model_dump(mode="json"),
        fitted=None if fitted is None else fitted.to_json(),
    )
    write_atomic(path, agreement.model_dump_json().encode())
    return federated, fitted


def _serve(grid: Grid, out: Path, settings: ServerSettings, activity: Activity) -> dict[str, Any]:
    federation, network = settings.federation, Network(grid)
    federated, fitted = _come_together(network, settings, out / FLOWER, activity)
    task = _outline(federation, federated, fitted)
    plan = _plan(federation, task)
    names = " and ".join(member.name for member in federated.evaluating)
    job = Job(federation.algorithm, names or None, federation.seed)
    algorithm = plan.algorithm(job.algorithm)
    spec = plan.spec_for(algorithm)
    records = RunFolder(out / RUN)
    config = plan.job_config(job)
    if records.exists:  # how long and for how many one waits may change when a run is resumed
        config |= {key: records.config.get(key) for key in ("quorum", "deadline")}
    done = open_run(records, config)
    if done is not None:
        return done
    if fitted is not None:
        write_json(records.path / PREPARATION, fitted.to_json())
    model = build_model(spec, job.seed)
    assignment = Assignment(
        run=settings.run,
        algorithm=job.algorithm,
        settings=plan.settings[job.algorithm],
        rounds=plan.rounds_of[job.algorithm],
        model=spec,
        seed=job.seed,
        data={
            "schema": federated.agreed.model_dump(mode="json"),
            "fitted": None if fitted is None else fitted.to_json(),
            "augment": plan.augment,
        },
    )
    best = Best(out, plan, task, job.algorithm, fitted)
    checkpoint = records.resumable()
    begun = f", going on after round {checkpoint.round}" if checkpoint is not None else ""
    activity.add(
        "training",
        f"training {job.algorithm} with {len(federated.training)} sites, {assignment.rounds} rounds{begun}",
        rounds=assignment.rounds,
    )
    with SitesFederation(
        grid,
        federated.training,
        model.layout,
        assignment,
        offer=offer(federation),
        quorum=plan.quorum,
        deadline=federation.deadline,
        say=activity.add,
    ) as fed:
        rounds = Rounds(
            job,
            schedule_of(plan, job, algorithm, checkpoint_every=1),
            records,
            algorithm,
            fed,
            {number: member.name for number, member in enumerate(federated.training)},
            engine="flower deployment",
            measure=_measure(network, federated.evaluating, assignment, algorithm, fed, federation.deadline),
            facts=plan.facts(job),
            watch=lambda progress: _report(activity, progress, fed),
            on_better=best.keep,
        )
        result = rounds.to_the_end(algorithm.start(model.state()))
    write_card(out, plan, task, job, result, _unseen(out, federated.evaluating, activity))
    took_part = [*fed.node_ids, *(member.node for member in federated.evaluating)]
    _tell_sites(network, "finished", "the run is finished", took_part)
    others = sorted(set(network.nodes()) - set(took_part))
    _tell_sites(network, "turned-away", "the run began without this site, and is finished", others)
    return result


def _outline(federation: FederationFile, federated: Federated, fitted: Fitted | None) -> TaskOutline:
    """All that the server knows of the task: the sites' names, sizes and schema."""
    agreed = federated.agreed
    seen = json.dumps([agreed.model_dump(mode="json"), None if fitted is None else fitted.to_json()], sort_keys=True)
    return TaskOutline(
        name=agreed.task or federation.name,
        kind=agreed.kind,
        rows={member.name: agreed.sites[member.name] for member in federated.training},
        classes=agreed.classes,
        model=agreed.model,
        shape=agreed.shape if agreed.preparation is None else agreed.preparation.shape,
        data=hashlib.sha256(seen.encode()).hexdigest()[:16],
        defaults=agreed.defaults,
        description=f"the federation '{federation.name}'",
        notes=agreed.notes,
        prepared=agreed.preparation is not None,
    )


def _plan(federation: FederationFile, task: TaskOutline) -> Plan:
    plan = make_plan(
        task,
        algorithms=[federation.algorithm],
        seeds=[federation.seed],
        rounds=federation.rounds,
        cohort=federation.cohort,
        partition="domain",
        evaluate_every=federation.evaluate_every or 1,
        quorum=federation.quorum,
        deadline=federation.deadline,
        equal_steps=False,
        all_train=True,
        settings=dict(federation.settings),
    )
    algorithm = plan.algorithm(federation.algorithm)
    if algorithm.pooled or algorithm.name == "local-only":
        raise PlanError(
            f"'{algorithm.name}' is a reference for one machine and no federation across sites; choose another method"
        )
    return plan


def _fit(network: Network, federation: FederationFile, federated: Federated, activity: Activity) -> Fitted | None:
    """The preparation, merged from the training sites' statistics in the sites' order."""
    preparation = federated.agreed.preparation
    if preparation is None:
        return None
    given = {"schema": federated.agreed.model_dump(mode="json"), "seed": federation.seed}
    nodes = {member.node: member.name for member in federated.training}
    answers = network.ask(nodes, "statistics", given, seconds=federation.deadline)
    for node, answer in answers.items():
        if answer.problem:
            raise FederationError(f"site '{nodes[node]}' gave no statistics of its columns: {answer.problem}")
    activity.add("prepared", f"columns are prepared by the statistics of {len(nodes)} sites")
    return preparation.merge([answers[node].value for node in nodes])


def _measure(
    network: Network,
    evaluating: tuple[Member, ...],
    assignment: Assignment,
    algorithm: Any,
    fed: SitesFederation,
    seconds: float,
) -> Measure | None:
    """How a state does at the sites that only evaluate."""
    if not evaluating:
        return None
    names = {member.node: member.name for member in evaluating}
    given = {"assignment": assignment.model_dump(mode="json")}

    def measure(state: Any) -> Mapping[str, float]:
        groups = {
            str(number): {"parameters": model.parameters, "buffers": model.buffers}
            for number, model in enumerate(algorithm.models(state))
        }
        measured: dict[str, float] = {}
        for node, answer in network.ask(names, "measure", given, groups, seconds).items():
            try:
                found = METRICS.validate_python(answer.value if not answer.problem else None)
            except ValidationError:
                problem = answer.problem or "its metrics cannot be read"
                message = f"site '{names[node]}' did not measure the model: {problem}"
                fed.events.append(Event("not-measured", state.round, message))
                continue
            prefix = "" if len(names) == 1 else f"{names[node]}: "
            measured |= {f"{prefix}{name}": value for name, value in found.items()}
        return measured

    return measure


def _unseen(out: Path, evaluating: tuple[Member, ...], activity: Activity) -> str:
    """How the kept model does at sites that only evaluate, for its card and for whoever watches."""
    said = measured_elsewhere(out, [member.name for member in evaluating])
    for sentence in said:
        activity.add("measured", sentence)
    if said:
        return "How the model does elsewhere:\n" + ";\n".join(said) + "."
    return (
        "It does not say how the model does at a site that did not:\na site that joins the next run with "
        '`role = "evaluate"` tells that.'
    )


def _report(activity: Activity, progress: Progress, fed: SitesFederation) -> None:
    if progress.phase is not None:
        return  # a sign of life within a round, which the sites' own output gives
    missing = f" ({fed.connected} of {fed.clients} sites connected)" if fed.connected < fed.clients else ""
    activity.add(
        "round",
        f"round {progress.round} of {progress.rounds}{missing}",
        round=progress.round,
        rounds=progress.rounds,
        loss=progress.loss,
        validation=progress.validation,
    )
