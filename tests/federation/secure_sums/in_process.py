"""A secure sum in one process with the real cryptography: sites that leave at a stage, and everything a server sees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farfield.federation.secure_sums.masks import Integers
from farfield.federation.secure_sums.members import Identity, PublicKeys
from farfield.federation.secure_sums.server_session import ServerSum
from farfield.federation.secure_sums.site_session import SiteSums

#: The last thing that a site does before it leaves.
NOTHING, KEYS, SHARES, INTEGERS, STAYS = "nothing", "keys", "shares", "integers", "stays"
STAGES = (NOTHING, KEYS, SHARES, INTEGERS, STAYS)


def names(count: int) -> list[str]:
    return [f"site-{number}" for number in range(count)]


def integers(name: str, count: int = 20) -> Integers:
    drawn = np.random.default_rng(sum(map(ord, name))).integers(-(2**52), 2**52, size=count)
    return drawn.view(np.uint64)


@dataclass
class Site:
    """A site whose record is what it would read from its disk after a restart."""

    name: str
    least: int = 3
    identity: Identity | None = None
    stored: str = "{}"

    def act(self, what: str, *arguments: Any) -> Any:
        """Do one exchange in a new process, as far as a test can: all that is left of the last one is on the disk."""
        sums = SiteSums(self.name, json.loads(self.stored), least=self.least, identity=self.identity)
        answer = getattr(sums, what)(*arguments)
        self.stored = json.dumps(sums.record)
        return answer


@dataclass
class Seen:
    """What a server has seen of a sum."""

    keys: dict[str, PublicKeys] = field(default_factory=dict)
    masked: dict[str, Integers] = field(default_factory=dict)
    answers: dict[str, dict[str, bytes]] = field(default_factory=dict)
    server: ServerSum | None = None
    total: Integers | None = None


def run_sum(
    sites: Mapping[str, Site],
    leave: Mapping[str, str] | None = None,
    *,
    sum_id: str = "sum",
    key: str = "1/train",
    question: str = "q",
    least: int = 3,
) -> Seen:
    """Run a sum to its end. Raises SumFailed or Refused if there is none."""
    after = {name: STAGES.index((leave or {}).get(name, STAYS)) for name in sites}
    seen = Seen()
    seen.keys = {n: site.act("advertise", sum_id, key) for n, site in sites.items() if after[n] >= 1}
    seen.server = server = ServerSum(sum_id, seen.keys, least=least)
    server.need(seen.keys, "sent keys")
    server.take_sealed({n: sites[n].act("share", sum_id, seen.keys) for n in seen.keys if after[n] >= 2})
    for name in server.contributors:
        if after[name] >= 3:
            sites[name].act("accept", sum_id, question, server.sealed_for(name))
            seen.masked[name] = sites[name].act("mask", sum_id, integers(name))
    server.need(seen.masked, "are left")
    survivors, staying = sorted(seen.masked), [name for name in seen.masked if after[name] >= 4]
    signed = {name: sites[name].act("agree", sum_id, survivors) for name in staying if sites[name].identity}
    for name in staying:
        seen.answers[name] = sites[name].act("unmask", sum_id, survivors, signed)
    seen.total = server.total(seen.masked, seen.answers)
    return seen


def expected(leave: Mapping[str, str]) -> Integers | None:
    """The sum by the rules as they are written down: None where too few are left at one of the stages."""
    after = {name: STAGES.index(stage) for name, stage in leave.items()}
    members = [name for name, stage in after.items() if stage >= 1]
    two_thirds = -(-2 * len(members) // 3)
    for stage, needed in ((1, max(3, two_thirds)), (2, max(3, two_thirds)), (3, max(3, two_thirds)), (4, two_thirds)):
        if sum(of >= stage for of in after.values()) < needed:
            return None
    # Plain whole numbers, modulo 2^64 at the end.
    columns = zip(*(integers(name).tolist() for name, stage in after.items() if stage >= 3), strict=True)
    return np.array([sum(column) % 2**64 for column in columns], dtype=np.uint64)
