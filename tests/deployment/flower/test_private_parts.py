"""Every private part of Flower is guarded: it is as expected, and if it were not, one sentence would say so."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import farfield
from farfield.deployment.flower import private_parts
from farfield.deployment.flower.private_parts import PRIVATE_PARTS, FlowerChanged, PrivatePart, find, replace

SOURCE = Path(farfield.__file__).parent
ROOT = SOURCE.parents[1]


@pytest.mark.parametrize("part", PRIVATE_PARTS, ids=lambda part: part.path)
def test_it_is_there_as_expected(part: PrivatePart) -> None:
    if part.path.startswith(("flwr.simulation", "ray")):
        pytest.importorskip("ray")
    find(part.path)


@pytest.mark.parametrize("part", PRIVATE_PARTS, ids=lambda part: part.path)
def test_if_it_were_gone_one_sentence_would_say_so(part: PrivatePart, monkeypatch: pytest.MonkeyPatch) -> None:
    if part.path.startswith(("flwr.simulation", "ray")):
        pytest.importorskip("ray")
    module, _, names = part.path.partition(":")
    owner = importlib.import_module(module)
    *between, name = names.split(".")
    for step in between:
        owner = getattr(owner, step)
    monkeypatch.delattr(owner, name)
    if hasattr(owner, name):  # inherited, as object's own constructor is
        return
    with pytest.raises(FlowerChanged, match=re.escape(part.path.replace(":", "."))) as raised:
        replace(part.path, lambda: None)
    assert str(raised.value).count("\n") == 0
    assert "constraints.txt" in str(raised.value)
    assert not hasattr(owner, name), "nothing was put where nothing is asked for"


@pytest.mark.parametrize("part", [part for part in PRIVATE_PARTS if part.parameters], ids=lambda part: part.path)
def test_if_it_had_another_signature_one_sentence_would_say_so(
    part: PrivatePart, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part.path.startswith(("flwr.simulation", "ray")):
        pytest.importorskip("ray")
    other = PrivatePart(part.path, part.used_in, part.why, (*(part.parameters or ()), "added"))
    monkeypatch.setitem(private_parts._BY_PATH, part.path, other)
    with pytest.raises(FlowerChanged, match="has no parameter 'added'"):
        find(part.path)


def test_a_function_that_wants_more_than_it_is_given_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "flwr.supernode.runtime.run_clientapp:run_clientapp"
    monkeypatch.setattr("flwr.supernode.runtime.run_clientapp.run_clientapp", lambda token, new: None)
    given = PrivatePart(path, "", "called: to see", ("token",))
    monkeypatch.setitem(private_parts._BY_PATH, path, given)
    with pytest.raises(FlowerChanged, match="needs 'new', which Farfield does not give"):
        find(path)


def test_every_import_of_a_private_module_is_in_the_list() -> None:
    """A part that is used without being listed would not be guarded."""
    public = ("flwr.app", "flwr.serverapp", "flwr.clientapp", "flwr.simulation")
    listed = {part.path.partition(":")[0] for part in PRIVATE_PARTS}
    folders = (SOURCE, ROOT / "benchmarks", ROOT / "tests" / "deployment" / "sites_in_process.py")
    files = [path for folder in folders for path in ([folder] if folder.is_file() else folder.rglob("*.py"))]
    unlisted = []
    for path in files:
        for found in re.finditer(r"^\s*(?:from|import) (flwr[\w.]*)(?: import (.+))?", path.read_text(), re.MULTILINE):
            module, names = (
                found[1],
                [name.split(" as ")[0].strip() for name in (found[2] or "").strip("()").split(",")],
            )
            candidates = {module, *(f"{module}.{name}" for name in names)}
            if module not in public and not candidates & listed and "flower_apps" not in str(path):
                unlisted.append(f"{path.relative_to(ROOT)}: {found[0].strip()}")
    assert unlisted == []


def test_the_documentation_has_the_same_list() -> None:
    page = ROOT / "docs" / "deploy.md"
    if not page.exists():
        pytest.skip("an installed package has no documentation")
    assert private_parts.table() in page.read_text()


def test_every_file_that_uses_a_part_is_there() -> None:
    for part in PRIVATE_PARTS:
        for name in part.used_in.split(", "):
            assert (SOURCE / name).exists() or (ROOT / name).exists(), name
