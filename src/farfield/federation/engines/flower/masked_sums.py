"""A secure sum over the engine's messages: several exchanges in the place of one, and the answers of a node to them.

An exchange of a sum is a message of the phase that the sum is for, with a line about the sum in its header and a group
of bytes. "mask" runs the phase; the others use no row of the node. `MaskedSum` is the server's side, `NodeSums` a
node's.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from farfield.federation.engines.flower.packing import PackedGroups, pack_groups
from farfield.federation.execution import Outcome
from farfield.federation.federation import Traffic
from farfield.federation.phase import Named, Sends
from farfield.federation.refusal import Refused
from farfield.federation.reply_checks import nbytes
from farfield.federation.secure_sums.masks import TAG_BYTES
from farfield.federation.secure_sums.members import KEYS_BYTES, LONGEST_SIGNATURE, Identity, PublicKeys
from farfield.federation.secure_sums.quantise import MOST_CLIENTS
from farfield.federation.secure_sums.server_session import ServerSum, SumFailed
from farfield.federation.secure_sums.shamir import SHARE_BYTES
from farfield.federation.secure_sums.site_session import SiteSums, as_unsigned
from farfield.federation.secure_sums.summing_step import SecureSum, VectorLayout
from farfield.models import Layout

#: The header's line about a sum, and the group of its bytes.
SUM = "sum"
ADVERTISE, SHARE, MASK, AGREE, UNMASK = EXCHANGES = "advertise", "share", "mask", "agree", "unmask"
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
_NOTHING = pack_groups({})


@dataclass(frozen=True)
class Stage:
    """One exchange of a sum: what is told to all, what to each client, and what the replies must look like."""

    name: str
    header: str
    own: Mapping[int, Named]
    #: By name the dtype and the shape; a size of −1 is any up to `LONGEST_SIGNATURE`.
    replies: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]

    @property
    def runs_phase(self) -> bool:
        return self.name == MASK

    def fault(self, values: Named) -> str | None:
        """Why a reply must not be used; None if it is as expected."""
        if set(values) != set(self.replies):
            return f"it has {sorted(values)}, and a secure sum needs {sorted(self.replies)}"
        for name, (dtype, shape) in self.replies.items():
            value = values[name]
            if not isinstance(value, Tensor) or value.dtype != dtype or value.dim() != len(shape):
                return f"'{name}' is not a tensor of {dtype} with {len(shape)} axes"
            for size, wanted in zip(value.shape, shape, strict=True):
                if size > LONGEST_SIGNATURE if wanted == -1 else size != wanted:
                    return f"'{name}' has shape {tuple(value.shape)}, expected {shape}"
        return None


Ask = Callable[[str, PackedGroups, Sequence[int], Stage], Iterator[Outcome]]


@dataclass
class MaskedSum:
    """The server's side of one sum: `outcomes` until the masked integers are there, then `totals`."""

    ask: Ask
    summing: SecureSum
    sends: Mapping[str, Sends]
    layout: Layout
    phase: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    #: What the exchanges besides the phase's own have cost.
    traffic: Traffic = field(default_factory=Traffic)
    _names: dict[int, str] = field(default_factory=dict)
    _sum: ServerSum | None = None

    def outcomes(self, broadcast: PackedGroups, names: Mapping[int, str]) -> Iterator[Outcome]:
        """Run the phase on clients by number and name: an outcome for each, whose values are masked integers."""
        self._names = dict(names)
        keys = yield from self._advertise()
        here: Collection[str] = keys
        self._sum = ServerSum(self.id, keys, least=self.summing.least)
        try:
            self._sum.need(keys, "sent keys")
            sealed = yield from self._share(keys)
            here = sealed
            self._sum.take_sealed(sealed)
        except SumFailed as problem:
            yield from (Outcome(number, names[number], problem=str(problem)) for number in self._numbers(here))
            return
        length = VectorLayout.of(self.sends, self.layout).length
        given = {
            number: {"sealed": _bytes_of(self._sum.sealed_for(names[number]))}
            for number in self._numbers(self._sum.contributors)
        }
        self.traffic.add(Traffic(bytes_down={self.phase: sum(nbytes(own) for own in given.values())}))
        stage = self._stage(MASK, given, {"masked": (torch.int64, (length,))}, contributors=self._sum.contributors)
        yield from self.ask(self.phase, broadcast, list(given), stage)

    def totals(self, accepted: Sequence[Outcome]) -> dict[str, Tensor]:
        """Return the sums of the integers over the accepted clients, by output. Raises SumFailed."""
        if self._sum is None:
            raise SumFailed("it did not come to masked integers")
        masked = {self._names[o.client]: as_unsigned(torch.as_tensor(o.values["masked"]).numpy()) for o in accepted}
        self._sum.need(masked, "sent integers")
        contributors, answers = self._sum.contributors, {}
        replies = {"shares": (torch.uint8, (len(contributors), SHARE_BYTES))}
        asked, signatures = self._agreed([o.client for o in accepted], sorted(masked))
        stage = self._stage(UNMASK, {}, replies, survivors=sorted(masked), signatures=signatures)
        problem = ""
        for outcome in self._exchange(stage, asked):
            if outcome.problem is None:
                shares = _rows(outcome.values["shares"])
                answers[self._names[outcome.client]] = dict(zip(contributors, shares, strict=True))
            else:
                problem = problem or f"{self._names[outcome.client]}: {outcome.problem}"
        try:
            total = self._sum.total(masked, answers)
        except SumFailed as error:
            raise SumFailed(f"{error} ({problem})" if problem else str(error)) from None
        integers = torch.from_numpy(total.view("int64"))
        if not self.summing.fixed_point.possible(integers, len(accepted)):
            raise SumFailed("the masks do not cancel: a site gave a wrong share or wrong integers")
        return VectorLayout.of(self.sends, self.layout).named(integers)

    def _advertise(self) -> Generator[Outcome, None, dict[str, PublicKeys]]:
        """Collect public keys; yield the outcome of each client that has none."""
        keys: dict[str, PublicKeys] = {}
        expected = {"keys": (torch.uint8, (KEYS_BYTES,)), "signature": (torch.uint8, (-1,))}
        for outcome in self._exchange(self._stage(ADVERTISE, {}, expected), list(self._names)):
            if outcome.problem is None:
                both, signature = (bytes(outcome.values[name].tolist()) for name in ("keys", "signature"))  # type: ignore[union-attr]
                keys[self._names[outcome.client]] = PublicKeys.read(both, signature)
            else:
                yield outcome
        return keys

    def _share(self, keys: Mapping[str, PublicKeys]) -> Generator[Outcome, None, dict[str, dict[str, bytes]]]:
        """Collect sealed shares by sender and receiver; yield the outcome of each client that has none."""
        listed = {name: [of.both.hex(), of.signature.hex()] for name, of in keys.items()}
        expected = {"sealed": (torch.uint8, (len(keys) - 1, SEALED_BYTES))}
        sealed: dict[str, dict[str, bytes]] = {}
        for outcome in self._exchange(self._stage(SHARE, {}, expected, members=listed), self._numbers(keys)):
            if outcome.problem is None:
                sender = self._names[outcome.client]
                receivers = [name for name in sorted(keys) if name != sender]
                boxes = _rows(outcome.values["sealed"])
                sealed[sender] = dict(zip(receivers, boxes, strict=True))
            else:
                yield outcome
        return sealed

    def _agreed(self, clients: list[int], survivors: Sequence[str]) -> tuple[list[int], dict[str, str]]:
        """Let sites that sign their keys sign who has stayed; return the clients that did, and their signatures."""
        assert self._sum is not None
        if not any(keys.signature for keys in self._sum.members.values()):
            return clients, {}
        stage = self._stage(AGREE, {}, {"signature": (torch.uint8, (-1,))}, survivors=survivors)
        signed = {
            outcome.client: bytes(torch.as_tensor(outcome.values["signature"]).tolist()).hex()
            for outcome in self._exchange(stage, clients)
            if outcome.problem is None
        }
        return list(signed), {self._names[client]: signature for client, signature in signed.items()}

    def _exchange(self, stage: Stage, clients: Sequence[int]) -> Iterator[Outcome]:
        """Ask clients outside the phase itself, and count what that costs."""
        up, down = 0, len(stage.header) * len(clients)
        for outcome in self.ask(self.phase, _NOTHING, clients, stage):
            up += nbytes(outcome.values)
            yield outcome
        self.traffic.add(Traffic(bytes_up={self.phase: up}, bytes_down={self.phase: down}))

    def _stage(
        self,
        name: str,
        own: Mapping[int, Named],
        replies: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        **about: Any,
    ) -> Stage:
        return Stage(name, json.dumps({"id": self.id, "exchange": name, **about}), own, replies)

    def _numbers(self, names: Collection[str]) -> list[int]:
        return [number for number, name in self._names.items() if name in names]


class Store(Protocol):
    """Where a node keeps what it must remember of its secure sums in a run."""

    def load(self, run: str) -> dict[str, Any]: ...
    def save(self, run: str, record: Mapping[str, Any]) -> None: ...


class NodeSums:
    """A node's side of the sums of a run. What it must remember is stored before it answers."""

    def __init__(self, store: Store, name: str, run: str, *, least: int, identity: Identity | None = None) -> None:
        self._store, self._run, self._name = store, run, name
        self._sums = SiteSums(name, store.load(run), least=least, identity=identity)

    def before_phase(self, header: Mapping[str, Any], groups: Mapping[str, Named]) -> Named | None:
        """Answer an exchange that uses no rows; None for the one that runs the phase, which may then be run."""
        try:
            about = json.loads(str(header[SUM]))
            sum_id, exchange = str(about["id"]), about["exchange"]
            given = groups.get(SUM, {})
        except (KeyError, TypeError, ValueError, RecursionError):
            raise Refused("sum-only") from None
        answer: dict[str, Tensor] | None = None
        key = f"{int(header['round'])}/{header['phase']}"
        if exchange != ADVERTISE:
            self._sums.need_key(key)
        if exchange == ADVERTISE:
            keys = self._sums.advertise(sum_id, key)
            answer = {"keys": _tensor(keys.both), "signature": _tensor(keys.signature)}
        elif exchange == SHARE:
            sealed = self._sums.share(sum_id, _listed(about.get("members")))
            answer = {"sealed": _bytes_of(sealed)}
        elif exchange == MASK:
            senders = [name for name in _names(about.get("contributors")) if name != self._name]
            boxes = _rows(given["sealed"])
            if len(boxes) != len(senders) or len(set(senders)) != len(senders):
                raise Refused("sum-message", part="shares")
            self._sums.accept(sum_id, _digest(header, groups), dict(zip(senders, boxes, strict=True)))
        elif exchange == AGREE:
            answer = {"signature": _tensor(self._sums.agree(sum_id, _names(about.get("survivors"))))}
        elif exchange == UNMASK:
            signatures = _signatures(about.get("signatures"))
            shares = self._sums.unmask(sum_id, _names(about.get("survivors")), signatures)
            answer = {"shares": _bytes_of(shares)}
        else:
            raise Refused("sum-exchange")
        self._store.save(self._run, self._sums.record)
        return answer

    def masked(self, header: Mapping[str, Any], values: Named, sends: Mapping[str, Sends], layout: Layout) -> Named:
        """Return the reply of the phase: the integers of all its outputs as one vector, masked."""
        vector = VectorLayout.of(sends, layout).vector(values)
        masked = self._sums.mask(str(json.loads(str(header[SUM]))["id"]), as_unsigned(vector.numpy()))
        self._store.save(self._run, self._sums.record)
        return {"masked": torch.from_numpy(masked.view("int64"))}


def exchange_of(header: Mapping[str, Any]) -> str:
    """Return which exchange of a secure sum a message is of, for a record; empty for any other message."""
    try:
        exchange = json.loads(str(header[SUM]))["exchange"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ""
    return f", secure sum: {exchange}" if exchange in EXCHANGES else ""


def _digest(header: Mapping[str, Any], groups: Mapping[str, Named]) -> str:
    """Return a hash of what the phase is asked to compute."""
    found = hashlib.sha256(str(header.get("assignment")).encode())
    for group in ("model", "shared"):
        for name, value in sorted(groups.get(group, {}).items()):
            found.update(f"{group}/{name}".encode())
            if isinstance(value, Tensor):
                found.update(f"{value.dtype} {tuple(value.shape)}".encode())
                found.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            else:
                found.update(repr(value).encode())
    return found.hexdigest()


def _names(listed: Any) -> list[str]:
    if not isinstance(listed, list) or len(listed) > MOST_CLIENTS or not all(isinstance(name, str) for name in listed):
        raise Refused("sum-message", part="sites")
    return listed


def _signatures(signed: Any) -> dict[str, bytes]:
    if not isinstance(signed, dict) or len(signed) > MOST_CLIENTS:
        raise Refused("sum-message", part="signatures")
    try:
        return {str(name): bytes.fromhex(signature) for name, signature in signed.items()}
    except (TypeError, ValueError):
        raise Refused("sum-message", part="signatures") from None


def _listed(members: Any) -> dict[str, PublicKeys]:
    if not isinstance(members, dict) or len(members) > MOST_CLIENTS:
        raise Refused("sum-message", part="keys")
    try:
        return {str(name): PublicKeys.read(*(bytes.fromhex(part) for part in both)) for name, both in members.items()}
    except (TypeError, ValueError):
        raise Refused("sum-message", part="keys") from None


def _tensor(data: bytes) -> Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def _bytes_of(named: Mapping[str, bytes]) -> Tensor:
    """Return byte strings of one length as the rows of a tensor, in the order of their names."""
    joined = bytearray(b"".join(named[name] for name in sorted(named)))
    return torch.frombuffer(joined, dtype=torch.uint8).view(len(named), -1).clone()


def _rows(tensor: Any) -> list[bytes]:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.uint8 or tensor.dim() != 2:
        raise Refused("sum-message", part="shares")
    return [row.tobytes() for row in tensor.numpy()]
