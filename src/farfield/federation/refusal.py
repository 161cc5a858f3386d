"""The answer of a client that does not do what a server asks of it: one of a fixed list of codes, with numbers.

    raise Refused("rounds", approved=20, asked=21)
    refused.wire                     # '["rounds", {"approved": 20, "asked": 21}]': all that leaves the site
    readable(wire)                   # at the server: "this site has approved 20 rounds, and the server asks for 21"

No text leaves a site with a refusal: the text of an error can quote a cell or a path. Both sides make the sentence from
the code, by this list. A field is a number, or a word of the program: a method, a phase, a setting.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Mapping

from farfield.errors import UserError

Field = int | float | bool | str | None

#: Every code that may leave a site, with its sentence; the braces name its fields.
SENTENCES: Mapping[str, str] = {
    "failed": "it failed at the site, whose own output says why",
    "unreadable": "the message cannot be read at the site",
    "reply-unsound": "what the phase made at the site cannot be sent, because it is not finite or not what is declared",
    # What was approved.
    "algorithm": "this site has approved another method than the server asks for: '{approved}'",
    "rounds": "this site has approved {approved} rounds, and the server asks for {asked}",
    "round": "the server asks for round {asked} of {rounds}",
    "setting": "this site has approved another {key} than the server asks for",
    "setting-value": "this site has approved {key} = {approved}, and the server asks for {asked}",
    "cannot-do": "the server asks for what this site's version cannot do",
    "seed": "this site has approved the seed {approved}, and the server asks for {asked}",
    "model": "this site has approved another model.{key} than the server asks for",
    "augment": "this site has approved another 'augment' than the server asks for: {approved}",
    "assignment": "the server sends '{key}' with a run, which this site does not know",
    "phase-unknown": "the server asks for a phase that {algorithm} does not have in this site's version",
    "phase": "this site has approved no phase '{phase}', and the server asks for it",
    "output": "this site has approved no '{name}' in phase '{phase}', which {algorithm} would send",
    "output-changed": "'{name}' in phase '{phase}' is not what this site has approved: its {key} has changed",
    "output-beyond": "the phase '{phase}' made '{name}', which is not in what this site has approved",
    "exchange": "this site has not approved the exchange '{exchange}'",
    "travelling": "the server asks for what the method keeps at the site, which never leaves it",
    "shared": "the server sends '{name}' with phase '{phase}', which {algorithm} does not take",
    # Who is asked for what.
    "another-site": "the message is for another site",
    "only-evaluates": "this site only evaluates and takes part in no training",
    "does-not-measure": "this site trains, and does not measure on all of its rows",
    "no-statistics": "this site's data needs no statistics",
    "diagnosis-size": (
        "a diagnosis is of 1 to {most} features and at most {most_classes} classes, and the server asks for {features} "
        "and {classes}"
    ),
    "diagnosis": "this site's rows allow no diagnosis",
    "notice": "this site does not know that kind of notice",
    "question": "this site's version does not know the question",
    # The ledger and the limits.
    "answered-otherwise": (
        "this site has answered another question for phase '{phase}' of round {round}, and answers only one; the next "
        "round goes on"
    ),
    "run-other": "the message is of one run, and asks for the state of another",
    "run-changed": "this run began with another assignment at this site",
    "runs": (
        "this site takes part in {allowed} runs and has been asked for another one; its operator allows one more with "
        "'farfield client … --again'"
    ),
    "questions": (
        "this site has answered the question '{exchange}' {allowed} times, with different content each, which is the "
        "most; its operator allows one more run with 'farfield client … --again'"
    ),
    "ledger": "the record of what this site has answered cannot be read, so it answers nothing more",
    "audit-log": "the site's audit log cannot be written, so the site does not answer",
    "few-rows": "this site has {rows} training rows, and its operator asks for at least {least}",
    "few-update-rows": "the update would be of {rows} rows, and this site's operator asks for at least {least}",
    "few-validation-rows": "this site has {rows} validation rows, and its operator asks for at least {least}",
    # How many rows it would be is not told: whoever asks could search for rows by it.
    "shows-rows": (
        "the update would show more than {most} single rows of this site, and its operator allows no more; this round "
        "goes on without the site"
    ),
    "shows-rows-in-all": (
        "with this update, more than {most} different rows of this site would have been shown, and its operator allows "
        "no more; this round goes on without the site"
    ),
    "first-model": "the model of round 1 is not the one that the approved seed makes; it differs by {change:.3g}",
    "model-change": (
        "the model has changed by {change:.3g} in {rounds} rounds, and the approved method can change it by "
        "{allowed:.3g}; if that is honest, the site's operator sets limits.model_change = {needed} "
        "or more"
    ),
    "model-unsound": "the model is not finite, or has another size than the approved one",
    "shared-unsound": "'{name}' is not finite, has another size than declared, or is too large to be honest",
    "preparation": "the preparation of the columns is not one that can be merged from this site's statistics",
    "gone-back": (
        "the server has gone back to round {round}, and what this site keeps is of round {kept}; start the run anew"
    ),
    # Differential privacy.
    "privacy-spent": (
        "the privacy that was approved for phase '{phase}' is used up: {made} of {limit} noised steps are made"
    ),
    "privacy-count": "the count of noised steps at this site cannot be read, so nothing more is sent",
    # Secure sums.
    "sum-only": "this site sends its numbers only in a secure sum, and the message is of none",
    "sum-message": "the {part} in the message of a secure sum cannot be read, or are not of the sites that it names",
    "sum-exchange": "this site's version does not know that exchange of a secure sum",
    "sum-order": "this is not the next exchange of the secure sum that is under way; begin a new one",
    "sum-sites": "a secure sum is over {least} to {most} sites, not {sites}",
    "sum-few": "{there} of {sites} sites are left, and a secure sum needs {needed}",
    "sum-key": "the public key of '{site}' is not valid",
    "sum-own-keys": "the keys that the message has for this site are not the ones that it sent",
    "sum-same-key": "two sites of a secure sum have the same key",
    "sum-unknown-key": "this site does not know the key of '{site}'",
    "sum-unsigned": "the keys that came as those of '{site}' are not signed by it",
    "sum-stranger": "shares came from a site that is not in this secure sum",
    "sum-altered": "the shares from '{site}' were altered, or are for another secure sum",
    "sum-answered": (
        "this site has answered another question, or one for other sites, in round {round}, phase '{phase}'"
    ),
    "sum-helped": "this site has helped with the sum over other sites in round {round}, phase '{phase}'",
    "sum-no-peers": "this site does not know its peers' keys, and signs nothing",
    "sum-signed-otherwise": "this site has signed another list of sites whose integers have arrived",
    "sum-signatures": "{signed} sites have signed this list of sites that have sent integers, and {needed} are needed",
    "sum-survivors": "the list of sites whose integers have arrived is not of this secure sum",
    # Sizes.
    "message-size": "the message has {bytes} bytes, and at most {most} can belong to the approved model",
    "model-size": "the model would have {parameters} parameters, and this site's operator allows {most}",
    "model-shape": "the model's inputs or outputs are not those of the agreed columns and classes",
    "schema-size": "the agreed schema has more columns, levels or classes than there can be",
}

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}")


class Refused(UserError):
    """A site does not do what a server asks of it. Both sides read the sentence that belongs to the code."""

    def __init__(self, code: str, **fields: Field) -> None:
        wanted = {name for _, name, _, _ in string.Formatter().parse(SENTENCES[code]) if name}
        if wanted != set(fields):
            raise TypeError(f"the refusal '{code}' has the fields {sorted(wanted)}, not {sorted(fields)}")
        self.code, self.fields = code, {name: _as_sent(value) for name, value in fields.items()}
        super().__init__(_sentence(self.code, self.fields))

    @property
    def wire(self) -> str:
        """All that leaves the site: the code and its fields."""
        return json.dumps([self.code, self.fields])


def _as_sent(value: Field) -> Field:
    """Return a field as it may leave a site. What is neither a number nor a word becomes '?'."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str) and _WORD.fullmatch(value) else "?"


def _sentence(code: str, fields: Mapping[str, Field]) -> str:
    parts = []
    for text, name, spec, _ in string.Formatter().parse(SENTENCES[code]):
        parts.append(text)
        if name is not None:
            value = fields.get(name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            parts.append(format(value, spec or "") if number else json.dumps(value).strip('"'))
    return "".join(parts)


def read_wire(problem: str) -> tuple[str, dict[str, Field]] | None:
    """Return the code and the fields of a refusal that came over the wire; None for anything else."""
    try:
        code, fields = json.loads(problem)
    except (ValueError, TypeError, RecursionError):
        return None
    if not isinstance(code, str) or code not in SENTENCES or not isinstance(fields, dict):
        return None
    return code, {str(name): _as_sent(value) for name, value in fields.items()}


def readable(problem: str) -> str:
    """Return the sentence of a refusal that came over the wire; any other text unchanged."""
    found = read_wire(problem)
    return problem if found is None else _sentence(*found)
