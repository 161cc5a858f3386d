"""The file that holds what a method keeps at a site between rounds: it outlives the site's processes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel
from torch import Tensor

from farfield.errors import UserError
from farfield.federation.client_state import SiteState
from farfield.records.checked_tensors import load_checked, save_checked

_PARTS = ("kept", "staged", "before")


class _About(BaseModel):
    """The metadata of a state file."""

    round: int
    attempt: str
    mark: str
    kept_round: int
    staged: bool
    before: bool


def state_file(folder: Path, run: str) -> Path:
    """Return the path of a run's state. The server names runs, so the name itself is not used as a path."""
    return folder / f"state-{hashlib.sha256(run.encode()).hexdigest()[:32]}.safetensors"


def load_state(path: Path) -> SiteState:
    """Return the state that a site has of a run, an empty one if it has none yet."""
    if not path.exists():
        return SiteState()
    try:
        tensors, metadata = load_checked(path, frozenset({"farfield"}))
        about = _About.model_validate_json(metadata["farfield"])
    except ValueError as error:
        raise UserError(
            f"the site's state in '{path}' is damaged ({error}); remove the file to go on without it, which is not the "
            "same run any more"
        ) from error
    parts = {part: _part(tensors, part) for part in _PARTS}
    return SiteState(
        kept=parts["kept"],
        staged=parts["staged"] if about.staged else None,
        round=about.round,
        attempt=about.attempt,
        before=parts["before"] if about.before else None,
        mark=about.mark,
        kept_round=about.kept_round,
    )


def save_state(path: Path, state: SiteState) -> None:
    """Write the whole state, or nothing of it."""
    parts = {"kept": state.kept, "staged": state.staged or {}, "before": state.before or {}}
    tensors = {f"{part}/{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
    about = {
        "round": state.round,
        "attempt": state.attempt,
        "mark": state.mark,
        "kept_round": state.kept_round,
        "staged": state.staged is not None,
        "before": state.before is not None,
    }
    save_checked(path, tensors, {"farfield": json.dumps(about)})


def _part(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
