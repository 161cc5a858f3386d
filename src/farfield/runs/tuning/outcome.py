"""What a tuning chose for a variant."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

#: Stands for "nothing is held out" where a held-out domain's name would stand; no domain has an empty name.
ALL_TRAIN = ""


class Tuned(BaseModel):
    """The settings that were chosen for each held-out domain, from how many trials, and by which rule."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trials: int
    rule: str
    #: Tuned settings by held-out domain; "" for a tuning in which every domain trains.
    best: dict[str, dict[str, Any]]

    def settings_for(self, held_out: str | None) -> dict[str, Any]:
        """Return the tuned settings of a held-out domain; none where its tuning is not done."""
        return self.best.get(ALL_TRAIN if held_out is None else held_out, {})
