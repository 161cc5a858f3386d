"""A run across sites, as the ServerApp makes it: wait, agree, prepare, then the same rounds as on one machine."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid
from pydantic import BaseModel

from farfield.bench.job import PREPARATION, course
from farfield.bench.plan import Job, Plan, make_plan
from farfield.bench.rounds import Measure, Progress, Rounds, open_run
from farfield.bench.settings import PlanError
from farfield.bench.training import Best, write_card
from farfield.deployment.activity import Activity
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.joining import Federated, Member, gather, offer
from farfield.deployment.measured import measured_elsewhere
from farfield.deployment.network import Network
from farfield.deployment.sites_federation import SitesFederation
from farfield.errors import UserError
from farfield.federation.federation import FederationError
from farfield.federation.flower.assignment import Assignment
from farfield.models import build_model
from farfield.records import RunFolder
from farfield.records.atomic import write_json
from farfield.tasks.own.schema import AgreedSchema
from farfield.tasks.task import Domain, Fitted, Task

#: In the output folder: what `farfield server` tells the ServerApp, and what Flower's processes write.
FLOWER, SETTINGS = "flower", "server.json"
RUN = "run"


class ServerSettings(BaseModel):
    """What a ServerApp is started for."""

    federation: FederationFile
    #: The run's name, the same when it is resumed: sites keep their state under it.
    run: str
    #: Seconds to wait for the sites.
    wait: float


def serve(grid: Grid, out: Path) -> None:
    """The whole run. What goes wrong is written down for whoever watches."""
    activity = Activity(out / FLOWER)
    activity.add("started", "the server is running")
    try:
        settings = ServerSettings.model_validate_json((out / FLOWER / SETTINGS).read_text())
        with RunFolder(out / RUN).writing():
            result = _serve(grid, out, settings, activity)
        network = Network(grid)
        network.ask(network.nodes(), "notice", {"kind": "finished", "text": "the run is finished"}, seconds=10.0)
        activity.add("finished", "the run is finished", sha256=result["model_sha256"])
    except (UserError, FederationError) as error:
        activity.add("failed", " ".join(str(error).split()))
    except BaseException as error:
        activity.add("failed", f"{type(error).__name__}: {error}", detail=traceback.format_exc())
        raise


def _serve(grid: Grid, out: Path, settings: ServerSettings, activity: Activity) -> dict[str, Any]:
    federation, network = settings.federation, Network(grid)
    federated = gather(network, federation, settings.wait, activity.add)
    fitted = _fit(network, federation, federated, activity)
    task = shadow_task(federation, federated, fitted)
    plan = _plan(federation, task)
    names = " and ".join(member.name for member in federated.evaluating)
    job = Job(federation.algorithm, names or None, federation.seed)
    algorithm = plan.algorithm(job.algorithm)
    spec = plan.spec_for(algorithm)
    records = RunFolder(out / RUN)
    done = open_run(records, plan.job_config(job))
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
    activity.add(
        "training",
        f"training {job.algorithm} with {len(federated.training)} sites, {assignment.rounds} rounds",
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
    ) as fed:
        rounds = Rounds(
            job,
            course(plan, job, algorithm, checkpoint_every=1),
            records,
            algorithm,
            fed,
            {number: member.name for number, member in enumerate(federated.training)},
            engine="flower deployment",
            measure=_measure(network, federated.evaluating, assignment, algorithm, activity),
            facts={"task": plan.task, "norm": plan.model.norm},
            watch=lambda progress: _report(activity, progress),
            on_better=best.keep,
        )
        result = rounds.to_the_end(algorithm.start(model.state()))
    write_card(out, plan, task, job, result, _unseen(out, federated.evaluating, activity))
    return result


def _plan(federation: FederationFile, task: Task) -> Plan:
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
    network: Network, evaluating: tuple[Member, ...], assignment: Assignment, algorithm: Any, activity: Activity
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
        for node, answer in network.ask(names, "measure", given, groups).items():
            if answer.problem:
                activity.add("event", f"site '{names[node]}' did not measure the model: {answer.problem}")
                continue
            prefix = "" if len(names) == 1 else f"{names[node]}: "
            measured |= {f"{prefix}{name}": float(value) for name, value in answer.value.items()}
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


def _report(activity: Activity, progress: Progress) -> None:
    if progress.phase is not None:
        return  # a sign of life within a round, which the sites' own output gives
    activity.add(
        "round",
        f"round {progress.round} of {progress.rounds}",
        round=progress.round,
        rounds=progress.rounds,
        loss=progress.loss,
        validation=progress.validation,
    )


def shadow_task(federation: FederationFile, federated: Federated, fitted: Fitted | None) -> Task:
    """All that the server knows of the task: the sites' names, sizes and schema. Its rows are none."""
    agreed = federated.agreed
    seen = json.dumps([agreed.model_dump(mode="json"), None if fitted is None else fitted.to_json()], sort_keys=True)
    return Task(
        name=agreed.task or federation.name,
        kind=agreed.kind,
        domains=tuple(_shadow(agreed, member.name) for member in federated.training),
        classes=agreed.classes,
        model=agreed.model,
        defaults=agreed.defaults,
        description=f"the federation '{federation.name}'",
        preparation=agreed.preparation,
        notes=agreed.notes,
        fingerprint=hashlib.sha256(seen.encode()).hexdigest()[:16],
    )


def _shadow(agreed: AgreedSchema, name: str) -> Domain:
    """As many rows as the site has, all of them the same zeros, which take no memory."""
    rows = agreed.sites[name]
    x = torch.zeros((1,) * (1 + len(agreed.shape)), dtype=getattr(torch, agreed.dtype)).expand(rows, *agreed.shape)
    if agreed.kind == "regression":
        return Domain(name, x, torch.zeros(rows))
    return Domain(name, x, torch.arange(rows) % len(agreed.classes))
