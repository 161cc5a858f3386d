"""Gradient conflict: whether domains pull a common model in opposite directions (FedOMG, definition 1).

A model starts from the task's initial weights and makes a few full-batch steps on all domains (FedSGD). On this common
path every domain's gradient is summed: its pull. The number is the lowest cosine between one domain's pull and the mean
pull of the others; below 0, a step that helps the others harms that domain. Classes weigh the same in every domain, so
that label shift alone is no conflict.

Gradients are computed on small blocks of rows of one class. All sums, cosines and the spectrum follow from the blocks'
Gram matrix, and so does chance: blocks of one class dealt out to the domains at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from farfield.diagnose.advice import MEANING, METHODS
from farfield.diagnose.finding import LEVEL, Finding, cannot_say, chance_of
from farfield.diagnose.shared_features import Floats, Ints, Sample
from farfield.models import ModelSpec, build_model, is_backbone
from farfield.models.losses import task_loss

STEPS = 5
#: About so many blocks in all.
BLOCKS = 300
#: Only the largest classes are looked at where there are many.
MOST_CLASSES = 20
#: A larger model, or larger examples, is replaced by a linear one on the shared features.
MOST_NUMBERS = 60_000_000
MOST_INPUT = 3 * 32 * 32
_KIND: Final = "gradient conflict"
_MEASURE = "lowest cosine of a domain's gradient to the others' (−1 to 1)"


@dataclass(frozen=True)
class Blocks:
    """Rows of each block, with its domain and class."""

    rows: tuple[Ints, ...]
    owner: Ints
    label: Ints


def gradient_conflict(sample: Sample, permutations: int) -> Finding:
    """Compare the gradients of the domains in the first steps of training."""
    if len(sample.domains) < 2:
        reason = "Fewer than two domains have enough rows to compare."
        return cannot_say(_KIND, _MEASURE, reason, MEANING[_KIND])
    if not sample.z.shape[1]:
        return cannot_say(_KIND, _MEASURE, "No column varies, so there is nothing to learn.", MEANING[_KIND])
    blocks = make_blocks(sample, sample.draw("blocks"))
    spec, x, what = _model(sample, len(blocks.rows))
    gram = _gram(spec, x, sample, blocks)
    if gram is None:
        reason = "The gradients are not finite; try a lower lr."
        return cannot_say(_KIND, _MEASURE, reason, MEANING[_KIND])
    domains = len(sample.domains)
    shares = domain_shares(blocks.owner, blocks.label, domains)
    own = shares @ gram @ shares.T
    cosines = cosines_to_others(own)
    value = float(cosines.min())
    draw = sample.draw("gradient conflict")
    null = []
    for _ in range(permutations):
        owner = blocks.owner.copy()
        for code in np.unique(blocks.label):
            places = np.flatnonzero(blocks.label == code)
            owner[places] = draw.permutation(owner[places])
        mixed = domain_shares(owner, blocks.label, domains)
        null.append(float(cosines_to_others(mixed @ gram @ mixed.T).min()))
    p, chance = chance_of(null, value, low=True), float(np.mean(null))
    rings = p <= LEVEL and value < 0
    length = np.sqrt(np.diag(own).clip(1e-300))
    pairs = (own / np.outer(length, length)).clip(-1, 1)
    spectrum = np.linalg.eigvalsh(pairs)[::-1].clip(0)
    names = sample.domain_names
    lowest = int(cosines.argmin())
    negative = int((pairs[np.tril_indices(domains, -1)] < 0).sum())
    less = " The domains agree less than chance would have it, yet none pulls against the others." * (
        p <= LEVEL and not rings
    )
    sentence = (
        f"'{names[lowest]}' agrees least with the others: cosine {value:.2f} (chance alone: {chance:.2f}); {negative} "
        f"of {domains * (domains - 1) // 2} pairs of domains are below 0, and "
        f"{100 * spectrum[0] / spectrum.sum():.0f} % of the gradients lie in one direction. Measured on {what}.{less}"
    )
    return Finding(
        kind=_KIND,
        verdict="alarm" if rings else "silent",
        measure=_MEASURE,
        value=value,
        chance=chance,
        p=p,
        sentence=sentence,
        meaning=MEANING[_KIND],
        methods=METHODS[_KIND] if rings else (),
        details={
            "domains": names,
            "to_others": cosines.tolist(),
            "pairs": pairs.tolist(),
            "spectrum": (spectrum / spectrum.sum()).tolist(),
            "model": what,
        },
    )


def make_blocks(sample: Sample, draw: np.random.Generator) -> Blocks:
    """Cut each domain's rows of each class into blocks of the same size; what is left over joins the last block."""
    label = sample.y.astype(np.int64) if sample.classes else np.zeros(len(sample.y), np.int64)
    largest = np.argsort(-np.bincount(label), kind="stable")[:MOST_CLASSES]
    size = max(2, -(-len(label) // BLOCKS))
    rows, owners, labels = [], [], []
    for number in range(len(sample.domains)):
        for code in largest:
            here = draw.permutation(np.flatnonzero((sample.owner == number) & (label == code)))
            if len(here):
                parts = np.array_split(here, max(1, len(here) // size))
                rows += [part.astype(np.int64) for part in parts]
                owners += [number] * len(parts)
                labels += [int(code)] * len(parts)
    return Blocks(tuple(rows), np.array(owners, dtype=np.int64), np.array(labels, dtype=np.int64))


def domain_shares(owner: Ints, label: Ints, domains: int) -> Floats:
    """The weight of each block in its domain's gradient, [domains, blocks]: the mean over classes of block means."""
    shares = np.zeros((domains, len(owner)))
    for number in range(domains):
        here = owner == number
        present = np.unique(label[here])
        for code in present:
            places = here & (label == code)
            shares[number, places] = 1.0 / (places.sum() * len(present))
    return shares


def cosines_to_others(gram: Floats) -> Floats:
    """Cosine between each vector and the sum of the others, from their Gram matrix; 0 where one has no length."""
    inner = gram.sum(axis=1) - np.diag(gram)
    others = gram.sum() - 2 * gram.sum(axis=1) + np.diag(gram)
    length = np.sqrt((np.diag(gram) * others).clip(0))
    cosines: Floats = np.divide(inner, length, out=np.zeros_like(inner), where=length > 0).clip(-1, 1)
    return cosines


def _model(sample: Sample, blocks: int) -> tuple[ModelSpec, Tensor, str]:
    """The task's own model where it is small, else a linear one on the shared features."""
    spec = sample.task.model
    if not is_backbone(spec.featurizer) and spec.input_size <= MOST_INPUT:
        parameters = build_model(spec, seed=0).layout.parameters
        if parameters * blocks <= MOST_NUMBERS:
            return spec, sample.inputs, f"the task's own model ({parameters:,} parameters)"
    x = torch.from_numpy(sample.z.astype(np.float32))
    linear = ModelSpec(featurizer="identity", input_shape=(x.shape[1],), outputs=spec.outputs, hidden=())
    return linear, x, "a linear model on the shared features, the task's own being too large for a quick look"


def _gram(spec: ModelSpec, x: Tensor, sample: Sample, blocks: Blocks) -> Floats | None:
    """Gram matrix of the blocks' gradients, summed over the steps."""
    model = build_model(spec, seed=0).eval()
    regression = sample.task.kind == "regression"
    y = torch.from_numpy(sample.y.astype(np.float32 if regression else np.int64))
    lr = float(sample.task.defaults.get("lr", 0.05))
    shares = domain_shares(blocks.owner, blocks.label, len(sample.domains)).mean(axis=0)
    towards = torch.from_numpy(shares.astype(np.float32))
    pull = torch.zeros((len(blocks.rows), model.layout.parameters))
    rows = [torch.from_numpy(part) for part in blocks.rows]
    for _ in range(STEPS):
        now = torch.empty_like(pull)
        for place, part in enumerate(rows):
            model.backward(task_loss(model(x[part]), y[part]))
            now[place] = model.gradient
        if not bool(torch.isfinite(now).all()):
            return None
        pull += now
        model.vector.add_(towards @ now, alpha=-lr)
    values = pull.double().numpy()
    gram: Floats = values @ values.T
    return gram
