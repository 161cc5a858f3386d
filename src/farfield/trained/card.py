"""The model card: what the model is, how it was made, how to use it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farfield.models import NORM_POLICIES, ModelSpec, hash_states
from farfield.printable import visible
from farfield.privacy.statement import cost_text, sentences
from farfield.protocol.selection import validated
from farfield.records.atomic import write_atomic
from farfield.records.participation import loss_sentences
from farfield.report.formats import metric_label
from farfield.report.grid import as_markdown
from farfield.runs.plan import Job, Plan
from farfield.runs.variants import Variant
from farfield.tasks import load, names
from farfield.tasks.data_folder.store import MissingData
from farfield.tasks.outline import TaskOutline
from farfield.trained.model_folder import TrainedModel, load_model

CARD = "README.md"


def write_card(
    out: Path,
    plan: Plan,
    task: TaskOutline,
    job: Job,
    result: Mapping[str, Any],
    unseen: str | None = None,
    bench: str | None = None,
) -> None:
    """Describe the model that was kept. `unseen` says how it does where it was not trained; left out, how to know.

    `bench` has the sections of the bench that the model comes from.
    """
    write_atomic(out / CARD, visible(_card(plan, task, job, result, load_model(out), unseen, bench)).encode())


def _bench_command(task: TaskOutline, variant: Variant) -> str:
    typed = shlex.quote(str(variant))
    if task.input is not None and task.input.backbone:
        options = f"--features cached:{task.input.backbone} --algorithms {typed}"
        return f"`farfield bench` on the images that it was trained on with `{options}`"
    if _is_registered(task):
        return f"`farfield bench {task.name} --algorithms {typed}`"
    what = "table" if task.prepared else "data"
    return f"`farfield bench --data` with the {what} that it was trained on, and `--algorithms {typed}`"


def validation_label(metric: str, kind: str) -> str:
    """Name the validation figure of a training: the leading metric, or the loss where clients do not measure it."""
    shown = validated(metric)
    if kind == "regression" and shown == "loss":
        return "mean squared error (labels scaled to unit variance)"
    return metric_label(shown, kind)


def _is_registered(task: TaskOutline) -> bool:
    try:
        return task.name in names() and load(task.name).outline().data == task.data
    except MissingData:  # trained on ready features of images that are not here
        return False


def _usage(trained: TrainedModel) -> str:
    """How to ask the model, for its card."""
    way, shape = trained.input, trained.model.spec.input_shape
    if trained.preparation is not None:
        what, how = "ROWS.csv", "ROWS.csv has the columns of the table it was trained on, with or without the label"
    elif way is None or way.arrays:
        shape = shape if way is None else way.arrays
        what, how = (
            "EXAMPLES.npy",
            f"EXAMPLES.npy has examples of shape {shape}, as in training; .npz and .csv work too",
        )
    else:
        what = "IMAGES"
        how = f"IMAGES are image files, or folders of them; they are decoded at {way.size} × {way.size}, as in training"
    command = f"farfield predict MODEL {what} --to predictions.csv"
    needs = ""
    if way is not None and way.backbone:
        name, _, digest = way.weights.partition("@sha256:")
        needs = f"""
The model takes features of the frozen backbone {way.backbone}, and `predict` computes them. That needs the backbone's
weights, which are not in this folder: {name}, sha256 {digest}.
"""
    measure = "Where the labels are known, `farfield evaluate MODEL DATA` measures how good the model is."
    return f"```\n{command}\n```\n\nMODEL is this folder. {how}. {measure}\n{needs}"


def _first_weights(weights: str) -> str:
    """Return the row that says which file training started from; nothing where it started from scratch."""
    name, mark, digest = weights.partition("@sha256:")
    return f"| pretrained weights | {as_markdown(name)}, sha256 {digest} |\n" if mark else ""


def _losses(result: Mapping[str, Any]) -> str:
    """Return a paragraph about replies that the model lacks; nothing where it lacks none."""
    sentences = loss_sentences(result.get("lost"), result.get("skipped_rounds"))
    return f"\n**Read with care.** {' '.join(as_markdown(sentence) for sentence in sentences)}\n" if sentences else ""


def _where_made(result: Mapping[str, Any]) -> str:
    """Return the lines that say on which device and in which precision the clients computed."""
    named = {name: result[name] for name in ("device", "precision") if result.get(name)}
    return "".join(f"| {name} | {as_markdown(str(value))} |\n" for name, value in named.items())


def _privacy_section(privacy: Mapping[str, Any] | None) -> str:
    """Return what a private model protects and what not."""
    if privacy is None:
        return ""
    line = f"| differential privacy | {cost_text(privacy)} |"
    told = "\n".join(f"- {sentence}" for sentence in sentences(privacy))
    return f"{line}\n\n## Privacy\n\n{told}\n\n## Quality\n"


def _card(
    plan: Plan,
    task: TaskOutline,
    job: Job,
    result: Mapping[str, Any],
    trained: TrainedModel,
    unseen: str | None,
    bench: str | None,
) -> str:
    variant = plan.variant(job.algorithm)
    if bench is not None:
        unseen = "What follows says how such a model does at a site that did not."
    if unseen is None:
        unseen = (
            "It does not say how the model does at a site that did\n"
            f"not: run {_bench_command(task, variant)}, which holds out one domain after the other."
        )
    state = trained.model.state()
    # The model in memory forgets the weights that training started from; what was recorded does not.
    spec = ModelSpec.model_validate(trained.about["spec"])
    privacy = result.get("privacy")
    kept, measured = f"by {plan.keeping_rule}", f"{trained.about['source_validation']:.4f}"
    if privacy is not None:
        kept, measured = "the last", "withheld: no validation figure leaves a client"
    metric = validation_label(plan.metric, plan.kind)
    settings = "\n".join(
        f"| {name} | {as_markdown(str(value))} |" for name, value in plan.settings[job.algorithm].items()
    )
    return f"""# {as_markdown(f"{job.algorithm} on {task.name}")}

A model for {as_markdown(task.description or task.name)}, trained across {result["clients"]} clients holding the domains
{", ".join(as_markdown(name) for name in task.domain_names)}.
{_losses(result)}
| | |
|---|---|
| method | {variant.method} |
| round kept | {trained.about["round"]} of {plan.rounds}, {kept} |
| {metric} on the sources' validation rows | {measured} |
| featurizer | {as_markdown(spec.featurizer)} |
{_first_weights(spec.weights)}| parameters | {state.parameters.numel()} |
| normalisation | {plan.model.norm}: {NORM_POLICIES[plan.model.norm]} |
| sha256 of parameters and buffers | {hash_states([state])} |
| seed | {job.seed} |
{_where_made(result)}{_privacy_section(privacy)}
The validation figure is measured on the domains that took part. {unseen}

{"" if bench is None else bench}
## Use

{_usage(trained)}
## Settings

| parameter | value |
|---|---|
{settings}
"""
