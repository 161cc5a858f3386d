"""The server's side of a secure sum: it passes keys and sealed shares on, adds masked integers up, and unmasks the sum.

The masks of two sites that both stay cancel. What is left are the staying sites' own masks, and the masks that they
share with sites that left after sending shares; the shares that staying sites give are for exactly these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from farfield.federation.secure_sums import shamir
from farfield.federation.secure_sums.masks import Integers, pair_mask, public_key, self_mask
from farfield.federation.secure_sums.members import PublicKeys, context, threshold


class SumFailed(Exception):
    """A secure sum that cannot be had, in one phrase."""


class ServerSum:
    """One secure sum, from the public keys to the sum."""

    def __init__(self, sum_id: str, members: Mapping[str, PublicKeys], *, least: int) -> None:
        self.sum_id, self.members = sum_id, dict(sorted(members.items()))
        self._least = least
        self._context = context(sum_id, members)
        self._sealed: dict[str, Mapping[str, bytes]] = {}

    @property
    def needed(self) -> int:
        """How many sites must stay."""
        return max(self._least, threshold(len(self.members)))

    def need(self, there: Collection[str], what: str) -> None:
        if len(there) < self.needed:
            raise SumFailed(f"{len(there)} of {len(self.members)} sites {what}, and a secure sum needs {self.needed}")

    def take_sealed(self, sealed: Mapping[str, Mapping[str, bytes]]) -> None:
        """Take the sealed shares by sender and receiver. Senders that are missing here take no further part."""
        self.need(sealed, "sent shares")
        for sender, boxes in sealed.items():
            if set(boxes) != set(self.members) - {sender}:
                raise SumFailed(f"'{sender}' did not seal shares for every other site")
        self._sealed = dict(sorted(sealed.items()))

    @property
    def contributors(self) -> tuple[str, ...]:
        return tuple(self._sealed)

    def sealed_for(self, receiver: str) -> dict[str, bytes]:
        return {sender: boxes[receiver] for sender, boxes in self._sealed.items() if sender != receiver}

    def total(self, masked: Mapping[str, Integers], answers: Mapping[str, Mapping[str, bytes]]) -> Integers:
        """Return the sum of the integers behind `masked`, with the shares that sites gave for unmasking."""
        self.need(masked, "are left")
        if len(answers) < threshold(len(self.members)):
            raise SumFailed(f"{len(answers)} sites answered with shares, and {threshold(len(self.members))} are needed")
        numbers = {name: number for number, name in enumerate(self.members, 1)}
        total = np.zeros_like(next(iter(masked.values())))
        for integers in masked.values():
            total += integers
        for name in self._sealed:
            secret = self._joined(name, {numbers[site]: given[name] for site, given in answers.items()})
            if name in masked:
                total -= self_mask(secret, self._context, name, len(total))
                continue
            if public_key(secret) != self.members[name].mask:
                raise SumFailed(f"the shares of the key of '{name}' give another key: a site gave a wrong share")
            for other in masked:  # the masks that the staying sites have added because of the one that left
                total += pair_mask(secret, self.members[other].mask, self._context, name, other, len(total))
        return total

    def _joined(self, name: str, shares: Mapping[int, bytes]) -> bytes:
        try:
            return shamir.join(shares, threshold(len(self.members)))
        except ValueError as error:
            raise SumFailed(f"the secret of '{name}' cannot be had: {error}") from None
