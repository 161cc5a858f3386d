"""Who took part in a run and whose replies were lost, from the run's records: the same after a resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: The phase that measures validation rows: a reply that is lost there changes no model, only what is known of it.
EVALUATE = "evaluate"
#: Reasons that are counted one by one for each client, and the characters of a reason; the rest is counted together.
MOST_REASONS, LONGEST_REASON = 5, 200
OTHER_REASONS = "other reasons"
#: Clients that a sentence names, and rounds that an entry lists.
NAMED, LISTED_ROUNDS = 5, 20


@dataclass
class Share:
    """One client's part in a run."""

    client: int
    name: str
    #: Rounds in which it was asked, and in which all its replies counted. A round without a quorum counts for nobody.
    asked: int
    took_part: int
    #: The first rounds in which a reply of a training phase was lost.
    lost_rounds: list[int] = field(default_factory=list)
    #: Replies that were dropped, by reason; those to a validation are counted apart.
    dropped: dict[str, int] = field(default_factory=dict)
    validations_lost: int = 0

    @property
    def replies_lost(self) -> int:
        return sum(self.dropped.values())

    def add(self, reason: str) -> None:
        reason = reason[:LONGEST_REASON]
        if reason not in self.dropped and len(self.dropped) >= MOST_REASONS:
            reason = OTHER_REASONS
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


@dataclass(frozen=True)
class Participation:
    """Who took part in how many rounds."""

    rounds: int
    #: Rounds that did not count, because too few replies came in.
    skipped: int
    #: By client: those that lost a reply, and the others if they were asked for.
    shares: Mapping[int, Share]
    #: Dropped replies that belong to no client.
    strays: int = 0

    @property
    def lost(self) -> list[Share]:
        """The clients of which a reply was lost."""
        return [share for share in self.shares.values() if share.replies_lost or share.validations_lost]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the losses as a result states them; empty for a run that lost nothing."""
        return [asdict(share) for share in self.lost]


def participation(
    rounds: Iterable[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
    name_of: Callable[[int], str],
    everyone: Iterable[int] = (),
) -> Participation:
    """Count from a run's rounds and events. `everyone` are clients that are counted although they lost nothing."""
    rows, happened = list(rounds), list(events)
    skipped = {e["round"] for e in happened if e.get("kind") == "round-skipped" and isinstance(e.get("round"), int)}
    dropped = [e for e in happened if e.get("kind") == "reply-dropped" and isinstance(e.get("client"), int)]
    strays = sum(e.get("kind") == "reply-dropped" and not isinstance(e.get("client"), int) for e in happened)
    missed: dict[int, set[int]] = {}
    shares: dict[int, Share] = {}
    for client in sorted({*everyone, *(event["client"] for event in dropped)}):
        shares[client] = Share(client, name_of(client), 0, 0)
    for event in dropped:
        share = shares[event["client"]]
        if event.get("phase") == EVALUATE:
            share.validations_lost += 1
            continue
        share.add(str(event.get("message", "")))
        if isinstance(event.get("round"), int):
            missed.setdefault(share.client, set()).add(event["round"])
    for client, share in shares.items():
        asked = {row["round"] for row in rows if _was_asked(row, client)}
        share.asked, share.took_part = len(asked), len(asked - skipped - missed.get(client, set()))
        share.lost_rounds = sorted(missed.get(client, ()))[:LISTED_ROUNDS]
    return Participation(len(rows), len(skipped), shares, strays)


def _was_asked(row: Mapping[str, Any], client: int) -> bool:
    """Whether a client was in a round's cohort; rows that do not name the cohort had all clients in it."""
    cohort = row.get("cohort")
    return not isinstance(cohort, list) or client in cohort


def loss_sentences(lost: Any, skipped: Any = 0) -> list[str]:
    """Return what a reader of a result must know about lost replies, from `lost` and `skipped_rounds` of a result.

    Nothing for a run that lost none. The entries may come from a damaged file: what cannot be read is left out.
    """
    sentences = []
    entries = [entry for entry in lost if isinstance(entry, Mapping)] if isinstance(lost, list) else []
    training = [entry for entry in entries if isinstance(entry.get("dropped"), Mapping) and entry["dropped"]]
    parts = [
        f"{entry.get('name')} took part in {entry.get('took_part')} of {entry.get('asked')} rounds ({_why(entry)})"
        for entry in training[:NAMED]
    ]
    if parts:
        more = f"; and {len(training) - NAMED} more clients" if len(training) > NAMED else ""
        sentences.append(f"Replies were lost: {'; '.join(parts)}{more}. The model is not the one that all would make.")
    unmeasured = [str(entry.get("name")) for entry in entries if entry.get("validations_lost")]
    if unmeasured:
        more = f" and {len(unmeasured) - NAMED} more" if len(unmeasured) > NAMED else ""
        sentences.append(f"The validation lacks replies of {', '.join(unmeasured[:NAMED])}{more} in some rounds.")
    if isinstance(skipped, int) and skipped > 0:
        what = "1 round did" if skipped == 1 else f"{skipped} rounds did"
        sentences.append(f"{what} not count, because too few clients replied.")
    return sentences


def _why(entry: Mapping[str, Any]) -> str:
    counted = sorted(entry["dropped"].items(), key=lambda item: -item[1] if isinstance(item[1], int) else 0)
    return ", ".join(f"{reason}" if count == 1 else f"{count} times: {reason}" for reason, count in counted)
