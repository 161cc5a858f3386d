"""Bound what a server can make a site allocate, before anything is built or unpacked."""

from __future__ import annotations

from math import prod

from flwr.app import RecordDict

from farfield.deployment.manifest.manifest import Manifest
from farfield.deployment.schema.site_schema import AgreedSchema, SiteSchema
from farfield.deployment.site.limits import Limits
from farfield.federation.refusal import Refused
from farfield.models import Layout, ModelSpec
from farfield.models.model import count_numbers

#: The most bytes of what comes with a message besides tensors: the agreed schema, the preparation.
MOST_HEADER = 16 << 20
#: The most bytes of shared values that are not of the model's size, such as FedCiR's generator.
MOST_SHARED = 16 << 20
#: More columns, levels or classes no table here has.
MOST_COLUMNS, MOST_LEVELS, MOST_CLASSES = 100_000, 100_000, 100_000
#: Heads of other sites that FedLOE shares.
MOST_HEADS = 1000


def check_schema_size(agreed: AgreedSchema) -> None:
    """Refuse an agreed schema that would make rows of this site wider than any table."""
    names = [column.name for column in agreed.columns]
    levels = sum(len(column.levels) for column in agreed.columns)
    shape = prod(agreed.shape) if agreed.shape and min(agreed.shape) > 0 else MOST_COLUMNS**2
    if (
        len(names) > MOST_COLUMNS
        or len(set(names)) < len(names)
        or levels > MOST_LEVELS
        or len(agreed.classes) > MOST_CLASSES
        or len(agreed.words) > MOST_COLUMNS
        or shape > 3 * 4096 * 4096
    ):
        raise Refused("schema-size")


def check_model_size(
    spec: ModelSpec, agreed: AgreedSchema, own: SiteSchema, approved: Manifest, limits: Limits
) -> None:
    """Refuse a model whose inputs or outputs are not those of the agreed data, and one that is too large."""
    inputs = agreed.shape if agreed.preparation is None else agreed.preparation.shape
    outputs = {len(agreed.classes) or 1}
    if own.form == "task" and own.model is not None:
        outputs = {own.model.outputs}
    if tuple(spec.input_shape) != tuple(inputs) or spec.outputs not in outputs:
        raise Refused("model-shape")
    parameters, _ = count_numbers(spec)
    most = most_parameters(approved, limits)
    if parameters > most:
        raise Refused("model-size", parameters=parameters, most=most)


def most_parameters(approved: Manifest, limits: Limits) -> int:
    """Return the most parameters of a model: what the limits say, or twice the model of the site's own columns."""
    own = max((entry.numbers or 0 for entry in approved.entries if entry.size == "parameters"), default=0)
    return max(limits.parameters, 2 * own)


def message_bytes(content: RecordDict) -> tuple[int, int]:
    """Return the bytes of a message's tensors, and of everything else."""
    tensors = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    others = 0
    for records in (content.config_records, content.metric_records):
        for record in records.values():
            for name, value in record.items():
                values = value if isinstance(value, list) else [value]
                others += len(name) + sum(len(v) if isinstance(v, str | bytes) else 8 for v in values)
    return tensors, others


def check_header_size(content: RecordDict) -> None:
    """Refuse a message with more text than any schema has."""
    _, others = message_bytes(content)
    if others > MOST_HEADER:
        raise Refused("message-size", bytes=others, most=MOST_HEADER)


def check_message_size(content: RecordDict, layout: Layout, models: int = 1) -> None:
    """Refuse a message with more bytes than the model and what is shared with it can have."""
    tensors, _ = message_bytes(content)
    most = most_bytes(layout.parameters, layout.buffers, layout.head.stop - layout.head.start, models)
    if tensors > most:
        raise Refused("message-size", bytes=tensors, most=most)


def most_bytes(parameters: int, buffers: int, head: int, models: int = 1) -> int:
    """Return the most bytes of tensors in a message: models, a shared value of that size, heads, and a generator."""
    return 4 * ((models + 1) * (parameters + buffers) + MOST_HEADS * head) + MOST_SHARED


def most_wire_bytes(approved: Manifest, limits: Limits) -> int:
    """Return the most bytes of one message on the wire, before anything of it is known."""
    return 4 * 4 * most_parameters(approved, limits) + MOST_SHARED + MOST_HEADER
