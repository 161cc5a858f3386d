"""A site's side of a secure sum: what it does in each exchange, and what it refuses.

1. `advertise`: two new public keys.
2. `share`: told who takes part, it splits its mask key and its own seed into shares, each sealed for one other site.
3. `accept` and `mask`: told whose shares arrived, it sends its integers plus its own mask plus a mask with each of
   these.
4. `unmask`: told whose integers arrived, it gives for each of these a share of its seed, and for each of the others a
   share of its mask key. Never both for one site: with both, the server could read that site's integers.

Sites that know one another's keys sign their public keys, and need one more exchange before the last: `agree`, in which
each signs the list of sites whose integers arrived. They unmask only where two thirds have signed the same list.

Everything that must outlive the site's process is in `record`, plain values that the caller stores before it answers.
What was answered for a round and phase stays in it: the same question is answered again (a server that was killed asks
it), another one or one for other sites is not, because the difference of two sums is a single site's numbers.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from farfield.federation.refusal import Refused
from farfield.federation.secure_sums import shamir
from farfield.federation.secure_sums.masks import (
    BadSeal,
    Integers,
    new_private_key,
    pair_mask,
    public_key,
    seal,
    self_mask,
    unseal,
)
from farfield.federation.secure_sums.members import (
    Identity,
    PublicKeys,
    context,
    digest,
    signed_message,
    survivors_message,
    threshold,
)
from farfield.federation.secure_sums.quantise import MOST_CLIENTS
from farfield.federation.secure_sums.shamir import SHARE_BYTES

_ADVERTISED, _SHARED, _ACCEPTED, _MASKED, _AGREED = "advertised", "shared", "accepted", "masked", "agreed"


class SiteSums:
    """The secure sums of one run at one site. At most one is under way."""

    def __init__(self, name: str, record: dict[str, Any], *, least: int, identity: Identity | None = None) -> None:
        self.name, self.record, self._least, self._identity = name, record, least, identity
        self.record.setdefault("answered", {})

    def advertise(self, sum_id: str, key: str) -> PublicKeys:
        """Return new public keys for a sum; `key` names its round and phase. A sum that was under way is given up."""
        mine = {"seal": new_private_key(), "mask": new_private_key()}
        self.record["open"] = {
            "id": sum_id,
            "key": key,
            "stage": _ADVERTISED,
            **{name: private.hex() for name, private in mine.items()},
        }
        keys = PublicKeys(public_key(mine["seal"]), public_key(mine["mask"]))
        if self._identity is None:
            return keys
        return PublicKeys(keys.seal, keys.mask, self._identity.sign(signed_message(sum_id, self.name, keys)))

    def share(self, sum_id: str, members: Mapping[str, PublicKeys]) -> dict[str, bytes]:
        """Return the shares of this site's two secrets for each other member, sealed for that member alone."""
        session = self._at(sum_id, _ADVERTISED)
        self._check_members(session, sum_id, members)
        ours = {name: bytes.fromhex(session[name]) for name in ("seal", "mask")}
        seed, names, needed = secrets.token_bytes(32), sorted(members), threshold(len(members))
        about = context(sum_id, members)
        of_key, of_seed = (shamir.split(secret, len(names), needed) for secret in (ours["mask"], seed))
        sealed: dict[str, bytes] = {}
        for name, key_share, seed_share in zip(names, of_key, of_seed, strict=True):
            if name == self.name:
                session["own"] = (key_share + seed_share).hex()
                continue
            try:
                sealed[name] = seal(ours["seal"], members[name].seal, about, self.name, name, key_share + seed_share)
            except ValueError:
                raise Refused("sum-key", site=name) from None
        session |= {
            "stage": _SHARED,
            "seed": seed.hex(),
            "context": about,
            "members": {name: keys.both.hex() for name, keys in members.items()},
        }
        return sealed

    def _check_members(self, session: Mapping[str, Any], sum_id: str, members: Mapping[str, PublicKeys]) -> None:
        if not self._least <= len(members) <= MOST_CLIENTS:
            raise Refused("sum-sites", least=self._least, most=MOST_CLIENTS, sites=len(members))
        own = b"".join(public_key(bytes.fromhex(session[name])) for name in ("seal", "mask"))
        if self.name not in members or members[self.name].both != own:
            raise Refused("sum-own-keys")
        if len({part for keys in members.values() for part in (keys.seal, keys.mask)}) != 2 * len(members):
            raise Refused("sum-same-key")
        if self._identity is None:
            return
        for name, keys in members.items():
            if name == self.name:
                continue
            check = self._identity.known.get(name)
            if check is None:
                raise Refused("sum-unknown-key", site=name)
            if not check(signed_message(sum_id, name, keys), keys.signature):
                raise Refused("sum-unsigned", site=name)

    def accept(self, sum_id: str, question: str, sealed: Mapping[str, bytes]) -> None:
        """Take the shares that others sealed for this site, before its rows are used. `question` is a digest."""
        session = self._at(sum_id, _SHARED)
        members = _members(session)
        contributors = {self.name, *sealed}
        if self.name in sealed or not contributors <= set(members):
            raise Refused("sum-stranger")
        self._need(len(contributors), len(members))
        before = self.record["answered"].get(session["key"])
        if before is not None and [question, digest(contributors)] != [before["question"], before["contributors"]]:
            raise Refused("sum-answered", **_round_and_phase(session["key"]))
        received = {self.name: session["own"]}
        for name, box in sealed.items():
            ours = bytes.fromhex(session["seal"])
            try:
                opened = unseal(ours, members[name].seal, session["context"], name, self.name, box)
            except (BadSeal, ValueError):
                raise Refused("sum-altered", site=name) from None
            if len(opened) != 2 * SHARE_BYTES:
                raise Refused("sum-altered", site=name)
            received[name] = opened.hex()
        session |= {"stage": _ACCEPTED, "question": question, "received": received}

    def mask(self, sum_id: str, integers: Integers) -> Integers:
        """Return this site's integers under its own mask and under one with each site that has sent shares."""
        session = self._at(sum_id, _ACCEPTED)
        members, about, count = _members(session), session["context"], len(integers)
        total = integers + self_mask(bytes.fromhex(session["seed"]), about, self.name, count)
        ours = bytes.fromhex(session["mask"])
        for name in session["received"]:
            if name != self.name:
                try:
                    total += pair_mask(ours, members[name].mask, about, self.name, name, count)
                except ValueError:
                    raise Refused("sum-key", site=name) from None
        session["stage"] = _MASKED
        self.record["answered"].setdefault(
            session["key"],
            {"question": session["question"], "contributors": digest(session["received"]), "survivors": ""},
        )
        return total

    def agree(self, sum_id: str, survivors: Collection[str]) -> bytes:
        """Return this site's signature of the list of sites whose integers have arrived; it signs one list."""
        session = self._at(sum_id, _MASKED)
        if self._identity is None:
            raise Refused("sum-no-peers")
        session |= {"stage": _AGREED, "survivors": sorted(self._checked(session, survivors))}
        return self._identity.sign(survivors_message(session["context"], survivors))

    def _need_agreement(
        self, identity: Identity, session: Mapping[str, Any], staying: set[str], signatures: Mapping[str, bytes]
    ) -> None:
        if session["survivors"] != sorted(staying):
            raise Refused("sum-signed-otherwise")
        message = survivors_message(session["context"], staying)
        signed = {name for name in staying & signatures.keys() & identity.known.keys() if name != self.name}
        agreed = 1 + sum(identity.known[name](message, signatures[name]) for name in signed)
        if agreed < threshold(len(session["members"])):
            raise Refused("sum-signatures", signed=agreed, needed=threshold(len(session["members"])))

    def unmask(
        self, sum_id: str, survivors: Collection[str], signatures: Mapping[str, bytes] | None = None
    ) -> dict[str, bytes]:
        """Return a share of the seed of each survivor, and a share of the mask key of each that has left since.

        A site that knows its peers' keys needs the signatures of two thirds of the members under the same list.
        """
        session = self._at(sum_id, _MASKED if self._identity is None else _AGREED)
        staying = self._checked(session, survivors)
        if self._identity is not None:
            self._need_agreement(self._identity, session, staying, signatures or {})
        self.record["answered"][session["key"]]["survivors"] = digest(staying)
        shares = {name: bytes.fromhex(both) for name, both in session["received"].items()}
        self.record["open"] = None  # the secrets are gone: nothing more can be asked about this sum
        return {
            name: both[SHARE_BYTES:] if name in staying else both[:SHARE_BYTES] for name, both in sorted(shares.items())
        }

    def _checked(self, session: Mapping[str, Any], survivors: Collection[str]) -> set[str]:
        """Return the sites whose integers have arrived, if the list can be one of this sum."""
        staying, contributors = set(survivors), set(session["received"])
        if len(staying) != len(survivors) or not staying <= contributors or self.name not in staying:
            raise Refused("sum-survivors")
        self._need(len(staying), len(session["members"]))
        answered = self.record["answered"][session["key"]]
        if answered["survivors"] not in ("", digest(staying)):
            raise Refused("sum-helped", **_round_and_phase(session["key"]))
        return staying

    def need_key(self, key: str) -> None:
        """Refuse a message about another round or phase than the sum under way was begun for.

        What was answered is kept by that round and phase: under another one, a question could be answered twice.
        """
        session = self.record.get("open")
        if session is not None and session["key"] != key:
            raise Refused("sum-order")

    def _at(self, sum_id: str, stage: str) -> dict[str, Any]:
        session: dict[str, Any] | None = self.record.get("open")
        if session is None or session["id"] != sum_id or session["stage"] != stage:
            raise Refused("sum-order")
        return session

    def _need(self, there: int, members: int) -> None:
        needed = max(self._least, threshold(members))
        if there < needed:
            raise Refused("sum-few", there=there, sites=members, needed=needed)


def _members(session: Mapping[str, Any]) -> dict[str, PublicKeys]:
    return {name: PublicKeys.read(bytes.fromhex(both)) for name, both in session["members"].items()}


def _round_and_phase(key: str) -> dict[str, str]:
    round, _, phase = key.partition("/")
    return {"round": round, "phase": phase}


def as_unsigned(integers: Any) -> Integers:
    """Return signed integers as unsigned ones that wrap around."""
    return np.ascontiguousarray(integers, dtype=np.int64).view(np.uint64)
