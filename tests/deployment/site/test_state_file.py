"""The file that holds a site's state between messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from farfield.deployment.site.state_file import load_state, save_state
from farfield.errors import UserError
from farfield.federation.client_state import SiteState


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state"
    about = {"round": 4, "attempt": "a", "mark": "m", "kept_round": 3, "staged": True, "before": False}
    tensors = {"kept/c": torch.tensor([1.0]), "staged/c": torch.tensor([2.0]), "staged/round/x": torch.tensor([3.0])}
    save_file(tensors, path, metadata={"farfield": json.dumps(about)})
    state = load_state(path)
    assert (state.round, state.attempt, state.mark, state.kept_round, state.before) == (4, "a", "m", 3, None)
    assert {name: float(value) for name, value in state.kept.items()} == {"c": 1.0}
    assert {name: float(value) for name, value in (state.staged or {}).items()} == {"c": 2.0, "round/x": 3.0}


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = SiteState(
        kept={"c": torch.tensor([1.0])}, staged={}, round=2, attempt="b", before={"c": torch.tensor([5])}, mark="m"
    )
    save_state(tmp_path / "state", written)
    assert load_state(tmp_path / "state") == written


def test_two_names_for_one_tensor_can_be_saved(tmp_path: Path) -> None:
    shared = torch.arange(3.0)
    save_state(tmp_path / "state", SiteState(kept={"a": shared, "b": shared}))
    kept = load_state(tmp_path / "state").kept
    assert torch.equal(kept["a"], shared)
    assert torch.equal(kept["b"], shared)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"none")
    with pytest.raises(UserError, match=r"state' is damaged .*remove the file"):
        load_state(tmp_path / "state")
