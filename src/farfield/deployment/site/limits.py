"""What a site's operator limits whatever a server asks, as the table `[limits]` of the site file.

[limits]
runs = 1                  # runs that this site takes part in; 'farfield client … --again' allows one more
rows = 10                 # fewest training rows with which the site takes part
update_rows = 8           # fewest rows that an update, a gradient or statistics may be of
validation_rows = 2       # fewest rows that validation figures may be of
model_change = 5.0        # how often the change that the method is expected to make in a round is accepted
shown_rows = 3            # most training rows that an update may show to a division of its gradients
shown_in_all = 10         # most different training rows that all updates together may show
parameters = 10000000     # most parameters of a model that is larger than this site's own columns make it

A server cannot set them, and they are part of what the operator approves.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """The limits of one site; every default is stated in docs/what-leaves-a-site.md."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    runs: int = Field(1, ge=1, le=1_000_000)
    rows: int = Field(10, ge=1)
    update_rows: int = Field(8, ge=1)
    validation_rows: int = Field(2, ge=1)
    model_change: float = Field(5.0, gt=0)
    shown_rows: int = Field(3, ge=0)
    shown_in_all: int = Field(10, ge=0)
    parameters: int = Field(10_000_000, ge=1)

    @property
    def sentence(self) -> str:
        """The limits for the operator who approves them."""
        return (
            f"Limits: {self.runs} run{'s' if self.runs > 1 else ''}, one answer per phase and round; at least "
            f"{self.rows} training rows, {self.update_rows} rows in an update and {self.validation_rows} in validation "
            f"figures; a model that changes over {self.model_change:g} times as much as the method does is "
            f"refused, and so is an update that shows more than {self.shown_rows} rows, or with those before it more "
            f"than {self.most_shown}."
        )

    @property
    def most_shown(self) -> int:
        """The most different rows that all updates together may show: at least those that one update may."""
        return max(self.shown_rows, self.shown_in_all)
