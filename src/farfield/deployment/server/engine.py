"""The engine of a deployment: as over any Grid of Flower's, but sites leave and come back between the rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from flwr.serverapp import Grid

from farfield.deployment.schema.site_schema import read_site_schema
from farfield.deployment.server.ask_sites import Network
from farfield.deployment.server.bounded_grid import BoundedGrid, expect_replies
from farfield.deployment.server.declared_size import most_bytes
from farfield.deployment.server.joining import Member, Report
from farfield.deployment.server.key_names import wrong_name
from farfield.deployment.server.site_roster import SiteRoster
from farfield.errors import UserError
from farfield.federation.engines.flower.engine import FlowerFederation, Node
from farfield.federation.engines.flower.run_assignment import Assignment
from farfield.federation.execution import Outcome
from farfield.federation.federation import Event
from farfield.models import Layout, ModelState

#: The problem of a site that is away: that it has left is told once, and when it is back.
NOT_CONNECTED = "its site is not connected"
#: The event of a site that the operator has removed: recorded once, also if the run is resumed after it.
SITE_REMOVED = "site-removed"
#: Seconds between looks at which sites are connected.
LOOK = 1.0


class SitesFederation(FlowerFederation):
    """Client n is the n-th training site. Each round begins with a look at which sites are connected."""

    def __init__(
        self,
        grid: Grid | BoundedGrid,
        members: Sequence[Member],
        layout: Layout,
        assignment: Assignment,
        *,
        proposal: dict[str, Any],
        quorum: float,
        deadline: float,
        rows: Mapping[str, int] | None = None,
        report: Report = lambda kind, text: None,
        roster: SiteRoster | None = None,
        names: Mapping[int, str] | None = None,
        noted_removed: Collection[int] = (),
    ) -> None:
        #: By name of a site the rows that it declared when it joined.
        self._declared = dict(rows or {})
        nodes = [self._node(member.node, member.name) for member in members]
        self.secure_noise = True  # sites draw the noise of private training themselves
        super().__init__(grid, nodes, layout, assignment, quorum=quorum, deadline=deadline)
        self._network, self._members, self._proposal, self._report = Network(grid), list(members), proposal, report
        #: The names under which the nodes' keys were registered; empty for an open server.
        self._names = dict(names or {})
        self._present: set[int] = {node.id for node in nodes}
        #: Connected nodes that are no site of this run; they are asked once.
        self._foreign: set[int] = set()
        #: Which node has which name, and who was removed; None for an open server, which knows no keys.
        self._roster = roster
        #: Sites whose removal is in the records.
        self._noted_removed = set(noted_removed)

    @property
    def removed(self) -> frozenset[int]:
        """The sites that the server's operator has removed."""
        names = self._roster.removed if self._roster is not None else frozenset()
        return frozenset(number for number, member in enumerate(self._members) if member.name in names)

    @property
    def expected(self) -> int:
        """The number of sites that still take part."""
        return self.clients - len(self.removed)

    def _node(self, id: int, name: str) -> Node:
        return Node(id, name, name, self._declared.get(name))

    def begin(self, round: int, cohort: Sequence[int]) -> None:
        """Look which sites are connected, and wait for a quorum: a short failure of the network must not end a run."""
        super().begin(round, cohort)
        needed = max(1, math.ceil(self._quorum * len(cohort) - 1e-9))
        until = time.monotonic() + (self._deadline or 0.0)
        self._look(round)
        while sum(self._nodes[number].id in self._present for number in cohort) < needed:
            if time.monotonic() > until:
                return  # the round will miss its quorum, and is recorded so
            time.sleep(LOOK)
            self._look(round)

    @property
    def node_ids(self) -> tuple[int, ...]:
        """The current nodes of the sites: a site that was started again may be another node."""
        return tuple(node.id for node in self._nodes)

    @property
    def connected(self) -> int:
        """Return the number of sites that were connected when it was last checked."""
        removed = self.removed
        return sum(node.id in self._present for number, node in enumerate(self._nodes) if number not in removed)

    def _note(self, kind: str, round: int, text: str, client: int | None = None) -> None:
        self.events.append(Event(kind, round, text, client))
        self._report("joined" if kind == "site-returned" else "left", text)

    def _look(self, round: int) -> None:
        before, self._present = self._present, set(self._network.nodes())
        removed = self.removed
        for number in sorted(removed - self._noted_removed):
            self._noted_removed.add(number)
            goes_on = f"the run goes on with {self.expected} of {self.clients} sites"
            self._note(SITE_REMOVED, round, f"site '{self._members[number].name}' was removed; {goes_on}", number)
        staying = [node for number, node in enumerate(self._nodes) if number not in removed]
        for node in staying:
            if node.id in before and node.id not in self._present:
                self._note("site-left", round, f"site '{node.client}' is not connected")
            elif node.id in self._present and node.id not in before:
                self._note("site-returned", round, f"site '{node.client}' is connected again")
        if any(node.id not in self._present for node in staying):
            self._recognise(round)

    def _recognise(self, round: int) -> None:
        """Find sites that were started again as new nodes, by their keys' names, or without keys by their schemas."""
        known = {node.id for node in self._nodes} | self._foreign
        for id, answer in self._network.ask(sorted(self._present - known), "describe", self._proposal).items():
            place = None if answer.problem else self._place_of(answer.value)
            place = self._named_place(id, place, round)
            if place is None:
                self._foreign.add(id)
                continue
            name = self._members[place].name
            self._nodes = (*self._nodes[:place], self._node(id, name), *self._nodes[place + 1 :])
            self._note("site-returned", round, f"site '{name}' is connected again, as a new node")

    def _named_place(self, node: int, place: int | None, round: int) -> int | None:
        """Return the place if the node's key has that site's name and the site was not removed; report another name."""
        if place is None or place in self.removed:
            return None
        # The roster knows keys that were replaced since the start; where it is empty, the names of the start hold.
        names = (self._roster.names if self._roster is not None else {}) or self._names
        why = wrong_name(names, node, self._members[place].name)
        if why is None:
            return place
        text = f"a site (node {node}) cannot take part: {why}"
        self.events.append(Event("site-refused", round, text))
        self._report("refused", text)
        return None

    def _place_of(self, description: Any) -> int | None:
        try:
            name, schema = description["site"], read_site_schema(description["schema"])
        except (KeyError, TypeError, UserError):
            return None
        for place, (member, node) in enumerate(zip(self._members, self._nodes, strict=True)):
            known = member.schema is None or member.schema == schema
            if member.name == name and known and node.id not in self._present:
                return place
        return None

    def _outcomes(
        self, phase: str, model: ModelState, shared: dict[str, Any], clients: Sequence[int]
    ) -> Iterator[Outcome]:
        here = [number for number in clients if self._nodes[number].id in self._present]
        for number in clients:
            if number not in here:
                yield self._lost(number, NOT_CONNECTED)
        expect_replies(self._grid, *most_bytes(self._sends, self._layout, self._members))
        for outcome in super()._outcomes(phase, model, shared, here):
            # Its reply may have come before it was removed; the operator wants nothing more of it.
            gone = outcome.client in self.removed
            yield self._lost(outcome.client, "its site was removed") if gone else outcome
