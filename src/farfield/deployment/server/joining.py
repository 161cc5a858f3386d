"""Wait until all sites have joined and their data agree on one schema.

A site whose data does not fit is told what to mend and left out. Once that is mended, it joins again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from farfield.deployment.federation_file import FederationFile
from farfield.deployment.schema.agreement import agree
from farfield.deployment.schema.conflict import SchemaConflict
from farfield.deployment.schema.site_schema import AgreedSchema, SiteSchema, read_site_schema
from farfield.deployment.server.ask_sites import Answer, Network
from farfield.deployment.server.key_names import wrong_name
from farfield.errors import UserError

#: Seconds between looks for new nodes.
LOOK = 0.3
ROLES = ("train", "evaluate")
#: A site that reports more rows than this is refused: no site has that many.
MOST_ROWS = 10**9
#: When a run is resumed and the quorum is there: seconds to wait for the other sites.
FOR_THE_REST = 60.0
#: Returns the names of the nodes by their keys, which the operator may change meanwhile; none for an open server.
Names = Callable[[], Mapping[int, str]]
#: Called with the kind of an event and a sentence, for the server's operator.
Report = Callable[[str, str], None]


class JoiningError(UserError):
    """Not all sites joined in time."""


@dataclass(frozen=True)
class Member:
    """A site of the run, and the node of Flower's network that it is connected as."""

    #: Negative for a site of a resumed run that is not connected yet.
    node: int
    name: str
    #: "train" or "evaluate".
    role: str
    #: None for a site of a resumed run that is not connected yet.
    schema: SiteSchema | None


@dataclass(frozen=True)
class JoinedSites:
    """The sites of a run and the schema that they agree on, in the order in which one machine numbers the domains."""

    training: tuple[Member, ...]
    evaluating: tuple[Member, ...]
    agreed: AgreedSchema


def wait_for_sites(
    network: Network, federation: FederationFile, seconds: float, report: Report, names: Names = dict
) -> JoinedSites:
    """Wait for the sites of a new run. Raises JoiningError if they are not all there in time.

    `names` returns the names under which the nodes' keys are registered; a site may not use another name.
    """
    until = time.monotonic() + seconds
    members: dict[int, Member] = {}
    asked: set[int] = set()
    while True:
        present = set(network.nodes())
        for node in [node for node in members if node not in present]:
            report("left", f"site '{members.pop(node).name}' has left again")
        asked &= present  # a site that comes back is the same node, by its key
        newcomers = sorted(present - asked)
        asked |= present
        for node, answer in network.ask(newcomers, "describe", proposal(federation)).items():
            if answer.late:
                asked.discard(node)  # it may still work on a message of an earlier server
            else:
                _admit(network, members, node, answer, report, names)
        training = [m for m in members.values() if m.role == "train"]
        evaluating = [m for m in members.values() if m.role == "evaluate"]
        if len(training) >= federation.sites and len(evaluating) >= federation.evaluating:
            agreed = _agreed(network, members, report)
            if agreed is not None:
                return _ordered(training, evaluating, agreed)
        if time.monotonic() > until:
            raise JoiningError(_missing(federation, training, evaluating, seconds))
        time.sleep(LOOK)


def wait_for_known_sites(
    network: Network,
    federation: FederationFile,
    sites: Mapping[str, str],
    agreed: AgreedSchema,
    seconds: float,
    report: Report,
    names: Names = dict,
    removed: Callable[[], Collection[str]] = tuple,
) -> JoinedSites:
    """Wait for the sites that a resumed run began with. Some may be missing, if the quorum allows it.

    `names` returns the names under which the nodes' keys are registered: a site gets its own seat back, and no other.
    `removed` returns the sites that were removed: they keep their place and are not waited for.
    """
    started = time.monotonic()
    found: dict[str, Member] = {}
    asked: set[int] = set()
    while True:
        still = {name: role for name, role in sites.items() if name not in removed()}
        training = [name for name in agreed.sites if still.get(name) == "train"]
        needed = math.ceil(federation.quorum * len(training) - 1e-9)
        if still.keys() <= found.keys():
            break
        waited = time.monotonic() - started
        enough = sum(name in found for name in training) >= needed
        if waited > (min(FOR_THE_REST, seconds) if enough else seconds):
            break
        present = set(network.nodes())
        asked &= present
        for node, answer in network.ask(sorted(present - asked), "describe", proposal(federation)).items():
            asked.add(node)
            if answer.late:
                asked.discard(node)
            elif answer.problem:
                report("refused", f"a site (node {node}) did not join: {answer.problem}")
            else:
                _readmit(network, found, still, agreed, node, answer, report, names)
        time.sleep(LOOK)
    if sum(name in found for name in training) < needed:
        missing = ", ".join(f"'{name}'" for name in training if name not in found)
        raise JoiningError(f"after {seconds:g} s too few of the run's sites are there; missing: {missing}")
    # A site that is not there has no node yet; the engine recognises it by its name when it comes.
    absent = (-number for number in range(1, len(sites) + 1))
    everyone = [found.get(name) or Member(next(absent), name, role, None) for name, role in sites.items()]
    place = {name: number for number, name in enumerate(agreed.sites)}
    everyone.sort(key=lambda member: place[member.name])
    parts = [tuple(m for m in everyone if m.role == role) for role in ROLES]
    return JoinedSites(parts[0], parts[1], agreed)


def _readmit(
    network: Network,
    found: dict[str, Member],
    sites: Mapping[str, str],
    agreed: AgreedSchema,
    node: int,
    answer: Answer,
    report: Report,
    names: Names,
) -> None:
    try:
        schema = read_site_schema(answer.value["schema"])
        member = Member(node, str(answer.value["site"]), str(answer.value["role"]), schema)
    except (UserError, KeyError, TypeError) as error:
        report("refused", f"a site did not join, because what it says cannot be read: {error}")
        return
    why = wrong_name(names(), node, member.name)
    if why is None and agreed.sites.get(member.name, schema.rows) != schema.rows:
        why = f"it has {schema.rows} rows, and the run began with {agreed.sites[member.name]}"
    if why is not None:
        _turn_away(network, member, why, report)
        return
    if sites.get(member.name) != member.role or member.name in found:
        # It may stay for the next run, and is told at the end of this one.
        report("refused", f"site '{member.name}' ({member.role}) has no free seat in the run that is resumed")
        return
    found[member.name] = member
    report("joined", f"site '{member.name}' is back with {schema.rows} rows ({member.role})")


def proposal(federation: FederationFile) -> dict[str, object]:
    """Return what a site is asked to take part in."""
    return {"algorithm": federation.algorithm, "settings": dict(federation.settings), "rounds": federation.rounds}


def _admit(
    network: Network,
    members: dict[int, Member],
    node: int,
    answer: Answer,
    report: Report,
    names: Names,
) -> None:
    if answer.problem:
        report("refused", f"a site did not join: {answer.problem}")
        return
    try:
        schema = read_site_schema(answer.value["schema"])
        member = Member(node, str(answer.value["site"]), str(answer.value["role"]), schema)
    except (UserError, KeyError, TypeError) as error:
        report("refused", f"a site did not join, because what it says cannot be read: {error}")
        return
    if member.role not in ROLES or schema.rows > MOST_ROWS:
        report("refused", "a site did not join, because its role or its number of rows is none that there can be")
        return
    why = wrong_name(names(), node, member.name)
    if why is not None:
        _turn_away(network, member, why, report)
        return
    if any(other.name == member.name for other in members.values()):
        _turn_away(network, member, f"there is a site '{member.name}' already; give this one another name", report)
        return
    members[node] = member
    report("joined", f"site '{member.name}' has joined with {schema.rows} rows ({member.role})")


def _agreed(network: Network, members: dict[int, Member], report: Report) -> AgreedSchema | None:
    """Return the schema that the sites agree on, or turn away those that have to mend their data and return None."""
    try:
        schemas = {m.name: (m.role, m.schema) for m in members.values() if m.schema is not None}
        parts = ({name: schema for name, (of, schema) in schemas.items() if of == role} for role in ROLES)
        return agree(*parts)
    except SchemaConflict as conflict:
        conflicting = [m for m in members.values() if m.name in conflict.sites] or list(members.values())
        for member in conflicting:
            members.pop(member.node)
            _turn_away(network, member, str(conflict), report, conflict.column)
        return None


def _turn_away(network: Network, member: Member, why: str, report: Report, column: str | None = None) -> None:
    report("refused", f"site '{member.name}' cannot take part: {why}")
    network.ask([member.node], "notice", {"kind": "turned-away", "text": why, "column": column}, seconds=30.0)


def _ordered(training: list[Member], evaluating: list[Member], agreed: AgreedSchema) -> JoinedSites:
    place = {name: number for number, name in enumerate(agreed.sites)}
    in_order = sorted(training, key=lambda m: place[m.name]), sorted(evaluating, key=lambda m: place[m.name])
    return JoinedSites(tuple(in_order[0]), tuple(in_order[1]), agreed)


def _missing(federation: FederationFile, training: list[Member], evaluating: list[Member], seconds: float) -> str:
    here = ", ".join(f"'{m.name}'" for m in [*training, *evaluating]) or "none"
    wanted = f"{federation.sites} training"
    if federation.evaluating:
        wanted += f" and {federation.evaluating} evaluating"
    return (
        f"after {seconds:g} s not all sites are there: {wanted} are waited for, and here are {here}; start the others, "
        "wait longer (--wait), or lower 'sites' in the federation file"
    )
