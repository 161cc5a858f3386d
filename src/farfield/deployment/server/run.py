"""A run across sites, in the ServerApp: wait for the sites, agree on a schema, prepare the columns, run the rounds."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from flwr.serverapp import Grid
from pydantic import BaseModel

from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.audit.log import AuditLog
from farfield.deployment.audit.server_grid import AuditedGrid
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.schema.site_schema import read_agreed_schema
from farfield.deployment.server.ask_sites import Network
from farfield.deployment.server.bounded_grid import BoundedGrid
from farfield.deployment.server.diagnosis import diagnose_federation
from farfield.deployment.server.engine import SITE_REMOVED, SitesFederation
from farfield.deployment.server.evaluating_sites import evaluation_sentences, read_metrics
from farfield.deployment.server.joining import JoinedSites, Member, proposal, wait_for_known_sites, wait_for_sites
from farfield.deployment.server.output_folder import AGREEMENT, FLOWER, RUN, SETTINGS
from farfield.deployment.server.run_report import RunReport, summary_lines
from farfield.deployment.server.site_roster import SiteRoster
from farfield.deployment.server.site_statistics import check_statistics
from farfield.errors import UserError
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.federation import Event, FederationError
from farfield.models import build_model
from farfield.records import RunFolder
from farfield.records.bench_folder import PREPARATION
from farfield.records.checked_files import read_checked_json, write_checked_json
from farfield.records.run import Checkpoint
from farfield.runs.plan import Job, Plan, make_plan
from farfield.runs.rounds import Measure, Progress, Rounds, open_run
from farfield.runs.settings import PlanError
from farfield.runs.single_run import schedule_of
from farfield.tasks.outline import TaskOutline
from farfield.tasks.task import Fitted
from farfield.tasks.user_data.fitted_preparation import read_fitted
from farfield.trained.card import write_card
from farfield.trained.model_folder import Best


class ServerSettings(BaseModel):
    """The settings that `farfield server` passes to the ServerApp."""

    federation: FederationFile
    #: The run's name, which stays the same when the run is resumed: sites keep their state under it.
    run: str
    #: Seconds to wait for the sites.
    wait: float
    #: Which start of the server this is, so that its rows are not confused with those of an earlier start.
    start: str
    #: The process of `farfield server`; the run ends when that process does.
    pid: int
    #: The names under which the nodes' keys were registered; empty for an open server.
    names: dict[int, str] = {}


class Agreement(BaseModel):
    """The agreement of the sites at the start of a run, kept so that the run can be resumed."""

    #: Roles by name.
    sites: dict[str, str]
    schema_: dict[str, Any]
    fitted: dict[str, Any] | None


def serve(grid: Grid | BoundedGrid, out: Path) -> None:
    """Make the whole run. A failure is written to the log that `farfield server` follows."""
    settings = ServerSettings.model_validate_json(json.dumps(read_checked_json(out / FLOWER / SETTINGS)))
    threading.Thread(target=_end_with, args=(settings.pid,), daemon=True).start()
    activity = ActivityLog(out / FLOWER, settings.start)
    activity.add("started", "the server is running", pid=os.getpid())
    try:
        with RunFolder(out / RUN).writing():
            log = AuditLog(out, side="server", name=settings.federation.name)
            result = _serve(cast(Grid, AuditedGrid(grid, log, settings.names)), out, settings, activity)
        activity.add("finished", "the run is finished", sha256=result["model_sha256"])
    except (UserError, FederationError) as error:
        why = " ".join(str(error).split())
        # Not why: the sentence may quote what one site sent, and goes to all of them.
        _notify_sites(Network(grid), "failed", "the run has failed at the server; its operator can read why")
        activity.add("failed", why)
    except BaseException as error:
        activity.add("failed", f"{type(error).__name__}: {error}", detail=traceback.format_exc())
        raise


def _end_with(pid: int) -> None:
    """End this process when the other has ended: Flower starts it in another group, which no signal to ours reaches."""
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(1.0)


def _notify_sites(network: Network, kind: str, text: str, nodes: Iterable[int] | None = None) -> None:
    network.ask(network.nodes() if nodes is None else nodes, "notice", {"kind": kind, "text": text}, seconds=10.0)


def _agree_with_sites(
    network: Network, settings: ServerSettings, folder: Path, activity: ActivityLog
) -> tuple[JoinedSites, Fitted | None]:
    """Return the sites with their schema, and the preparation; of a resumed run, those that it began with."""
    path, federation, roster = folder / AGREEMENT, settings.federation, SiteRoster(folder)

    def names() -> Mapping[int, str]:
        return roster.names or settings.names

    if path.exists():
        known = Agreement.model_validate_json(json.dumps(read_checked_json(path)))
        agreed = read_agreed_schema(known.schema_)
        joined = wait_for_known_sites(
            network,
            federation,
            known.sites,
            agreed,
            settings.wait,
            activity.add,
            names,
            lambda: roster.removed,
        )
        return joined, None if known.fitted is None else read_fitted(known.fitted)
    joined = wait_for_sites(network, federation, settings.wait, activity.add, names)
    fitted = _fit(network, federation, joined, activity)
    agreement = Agreement(
        sites={m.name: m.role for m in (*joined.training, *joined.evaluating)},
        schema_=joined.agreed.model_dump(mode="json"),
        fitted=None if fitted is None else fitted.to_json(),
    )
    write_checked_json(path, agreement.model_dump(mode="json"))
    return joined, fitted


def _serve(grid: Grid | BoundedGrid, out: Path, settings: ServerSettings, activity: ActivityLog) -> dict[str, Any]:
    federation, network, roster = settings.federation, Network(grid), SiteRoster(out / FLOWER)
    joined, fitted = _agree_with_sites(network, settings, out / FLOWER, activity)
    task = _outline(federation, joined, fitted)
    plan = _plan(federation, task)
    if federation.diagnose:
        diagnose_federation(network, federation, joined, fitted, task, out, activity)
    names = " and ".join(member.name for member in joined.evaluating)
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
        write_checked_json(records.path / PREPARATION, fitted.to_json())
    model = build_model(spec, job.seed)
    assignment = Assignment(
        run=settings.run,
        algorithm=job.algorithm,
        settings=plan.settings[job.algorithm],
        rounds=plan.rounds_of[job.algorithm],
        model=spec,
        seed=job.seed,
        data={
            "schema": joined.agreed.model_dump(mode="json"),
            "fitted": None if fitted is None else fitted.to_json(),
            "augment": plan.augment,
        },
    )
    best = Best(out, plan, task, job.algorithm, fitted)
    checkpoint = records.resumable()
    begun = f", going on after round {checkpoint.round}" if checkpoint is not None else ""
    activity.add(
        "training",
        f"training {job.algorithm} with {len(joined.training)} sites, {assignment.rounds} rounds{begun}",
        rounds=assignment.rounds,
    )
    with SitesFederation(
        grid,
        joined.training,
        model.layout,
        assignment,
        proposal=proposal(federation),
        quorum=plan.quorum,
        deadline=federation.deadline,
        rows=joined.agreed.sites,
        report=activity.add,
        names=settings.names,
        roster=roster,
        noted_removed=_noted_removed(records, checkpoint),
    ) as fed:
        rounds = Rounds(
            job,
            schedule_of(plan, job, algorithm, checkpoint_every=1),
            records,
            algorithm,
            fed,
            {number: member.name for number, member in enumerate(joined.training)},
            engine="flower deployment",
            measure=_evaluation(
                network, joined.evaluating, assignment, algorithm, fed, federation.deadline, joined.agreed.kind, roster
            ),
            facts=plan.facts(job) | roster.facts(),
            watch=lambda progress: _watch(progress, report, fed, rounds, roster),
            on_better=best.keep,
        )
        try:
            with RunReport(activity.add, fed, assignment.rounds) as report:
                result = rounds.to_the_end(algorithm.start(model.state()))
        finally:
            for line in summary_lines(rounds.participation(everyone=True)):
                activity.add("summary", line)
    unseen = _evaluation_on_card(out, joined.evaluating, activity)
    write_card(out, plan, task, job, result, unseen + _removed_on_card(roster))
    took_part = [*fed.node_ids, *_current_nodes(joined.evaluating, roster)]
    _notify_sites(network, "finished", "the run is finished", took_part)
    others = sorted(set(network.nodes()) - set(took_part))
    _notify_sites(network, "turned-away", "the run began without this site, and is finished", others)
    return result


def _outline(federation: FederationFile, joined: JoinedSites, fitted: Fitted | None) -> TaskOutline:
    """All that the server knows of the task: the sites' names, sizes and schema."""
    agreed = joined.agreed
    seen = json.dumps([agreed.model_dump(mode="json"), None if fitted is None else fitted.to_json()], sort_keys=True)
    return TaskOutline(
        name=agreed.task or federation.name,
        kind=agreed.kind,
        rows={member.name: agreed.sites[member.name] for member in joined.training},
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
    if plan.model.precision != "float32":
        raise PlanError("sites compute in float32, because what they have is not measured; omit model.precision")
    algorithm = plan.algorithm(federation.algorithm)
    if algorithm.pooled or not algorithm.one_model:
        raise PlanError(
            f"'{algorithm.name}' is a reference for one machine and no federation across sites; choose another method"
        )
    return plan


def _fit(network: Network, federation: FederationFile, joined: JoinedSites, activity: ActivityLog) -> Fitted | None:
    """Return the preparation, merged from the training sites' statistics in the sites' order."""
    preparation = joined.agreed.preparation
    if preparation is None:
        return None
    given = {"schema": joined.agreed.model_dump(mode="json"), "seed": federation.seed}
    nodes = {member.node: member.name for member in joined.training}
    answers = network.ask(nodes, "statistics", given, seconds=federation.deadline)
    for node, answer in answers.items():
        if answer.problem:
            raise FederationError(f"site '{nodes[node]}' gave no statistics of its columns: {answer.problem}")
    for node, name in nodes.items():
        check_statistics(preparation, answers[node].value, name, joined.agreed.sites[name])
    activity.add("prepared", f"columns are prepared by the statistics of {len(nodes)} sites")
    return preparation.merge([answers[node].value for node in nodes])


def _evaluation(
    network: Network,
    evaluating: tuple[Member, ...],
    assignment: Assignment,
    algorithm: Any,
    fed: SitesFederation,
    seconds: float,
    kind: str,
    roster: SiteRoster,
) -> Measure | None:
    """Return a function that measures a state at the sites that only evaluate; None if there are none."""
    if not evaluating:
        return None
    given = {"assignment": assignment.model_dump(mode="json")}

    def measure(state: Any) -> Mapping[str, float]:
        groups = {
            str(number): {"parameters": model.parameters, "buffers": model.buffers}
            for number, model in enumerate(algorithm.models(state))
        }
        metrics: dict[str, float] = {}
        names = _current_nodes(evaluating, roster)
        for node, answer in network.ask(names, "measure", given, groups, seconds).items():
            try:
                if answer.problem:
                    raise UserError(answer.problem)
                found = read_metrics(answer.value, kind)
            except UserError as problem:
                message = f"site '{names[node]}' did not measure the model: {problem}"
                fed.events.append(Event("not-measured", state.round, message))
                continue
            prefix = "" if len(evaluating) == 1 else f"{names[node]}: "
            metrics |= {f"{prefix}{name}": value for name, value in found.items()}
        return metrics

    return measure


def _current_nodes(members: Iterable[Member], roster: SiteRoster) -> dict[int, str]:
    """Return the nodes and names of sites that were not removed; a site whose key was replaced is another node."""
    removed = roster.removed
    return {roster.node_of(m.name) or m.node: m.name for m in members if m.name not in removed}


def _noted_removed(records: RunFolder, checkpoint: Checkpoint | None) -> set[int]:
    """Return the sites whose removal is recorded in the rounds that a resumed run keeps."""
    kept = checkpoint.round if checkpoint is not None else 0
    rows = (row for row in records.events() if row.get("kind") == SITE_REMOVED)
    return {row["client"] for row in rows if isinstance(row.get("client"), int) and int(row["round"]) <= kept}


def _removed_on_card(roster: SiteRoster) -> str:
    """Return a sentence for the model card about sites that were removed; empty without any."""
    names = ", ".join(f"'{name}'" for name in sorted(roster.removed))
    if not names:
        return ""
    return (
        f"\n\nRemoved during the run by the server's operator: {names}. The rounds before had learned from their rows; "
        "`run/events.jsonl` says from which round on they took no part."
    )


def _evaluation_on_card(out: Path, evaluating: tuple[Member, ...], activity: ActivityLog) -> str:
    """Return a sentence for the model card about the sites that only evaluate, and report their metrics."""
    sentences = evaluation_sentences(out, [member.name for member in evaluating])
    for sentence in sentences:
        activity.add("measured", sentence)
    unmeasured = [m.name for m in evaluating if not any(f"at '{m.name}'," in sentence for sentence in sentences)]
    for name in unmeasured:
        sentences.append(f"at '{name}' the kept round was not measured, because the site did not answer")
        activity.add("problem", sentences[-1])
    if sentences:
        return "How the model does elsewhere:\n" + ";\n".join(sentences) + "."
    return (
        "It does not say how the model does at a site that did not:\na site that joins the next run with "
        '`role = "evaluate"` tells that.'
    )


def _watch(progress: Progress, report: RunReport, fed: SitesFederation, rounds: Rounds, roster: SiteRoster) -> None:
    rounds.facts |= roster.facts()
    report.on_progress(progress, _connected(fed))


def _connected(fed: SitesFederation) -> str:
    return f" ({fed.connected} of {fed.expected} sites connected)" if fed.connected < fed.expected else ""
