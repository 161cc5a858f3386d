"""A federation file says what its server wants; what it cannot want is refused with the file, the key and a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from farfield.deployment.federation_file import FederationFile, FederationFileError, read_federation

GOOD: dict[str, Any] = {"name": "heart", "server": "127.0.0.1:9443", "algorithm": "fediir", "sites": 3}


def written(folder: Path, without: tuple[str, ...] = (), **content: Any) -> Path:
    path = folder / "heart.toml"
    path.write_text(tomli_w.dumps({k: v for k, v in {**GOOD, **content}.items() if k not in without}))
    return path


def refused(folder: Path, without: tuple[str, ...] = (), **content: Any) -> str:
    path = written(folder, without, **content)
    with pytest.raises(FederationFileError) as caught:
        read_federation(path)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(f"'{path}'")
    return said.removeprefix(f"'{path}'")


def test_every_key_is_read(tmp_path: Path) -> None:
    path = tmp_path / "heart.toml"
    path.write_text(
        """
        name = "heart"
        server = "fl.example.org:9443"
        algorithm = "fediir+fedomg"
        rounds = 20
        sites = 3
        evaluating = 1
        seed = 7
        quorum = 0.6
        deadline = 30
        evaluate_every = 2
        cohort = 2
        [set]
        lr = 0.05
        "fediir.gamma" = 0.1
        "model.hidden" = [32]
        """
    )
    read = read_federation(path)
    assert (read.name, read.algorithm, read.rounds, read.sites, read.evaluating) == ("heart", "fediir+fedomg", 20, 3, 1)
    assert (read.seed, read.quorum, read.deadline, read.evaluate_every, read.cohort) == (7, 0.6, 30.0, 2, 2)
    assert (read.host, read.port, read.path) == ("fl.example.org", 9443, path)
    assert read.settings == {"lr": 0.05, "fediir.gamma": 0.1, "model.hidden": [32], "bound": "median"}


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    read = read_federation(written(tmp_path))
    assert (read.rounds, read.evaluating, read.seed, read.quorum, read.deadline) == (None, 0, 0, 0.5, 600.0)
    assert (read.evaluate_every, read.cohort, read.settings) == (None, None, {"bound": "median"})


def test_a_folder_holds_the_usual_file(tmp_path: Path) -> None:
    written(tmp_path).rename(tmp_path / "federation.toml")
    assert read_federation(tmp_path).name == "heart"


def test_settings_may_be_written_with_dots_or_as_tables(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text() + "[set]\nmodel.hidden = [8]\n[set.fediir]\ngamma = 0.5\n")
    assert read_federation(path).settings == {"model.hidden": [8], "fediir.gamma": 0.5, "bound": "median"}


def test_it_goes_through_json(tmp_path: Path) -> None:
    read = read_federation(written(tmp_path, deadline=5, set={"model.hidden": [8]}))
    assert FederationFile.model_validate(read.model_dump(mode="json")) == read


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("[::1]:9443", "::1", 9443), ("10.0.0.7:1", "10.0.0.7", 1), ("fl-2.example.org:65535", "fl-2.example.org", 65535)],
)
def test_addresses(tmp_path: Path, address: str, host: str, port: int) -> None:
    read = read_federation(written(tmp_path, server=address))
    assert (read.host, read.port) == (host, port)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "give host:port"),
        (":9443", "give host:port"),
        ("127.0.0.1:", "'' is not a valid port"),
        ("127.0.0.1:0", "'0' is not a valid port"),
        ("127.0.0.1:65536", "'65536' is not a valid port"),
        ("127.0.0.1:https", "'https' is not a valid port"),
        ("::1:9443", "put an IPv6 address in brackets"),
        ("[::z]:9443", "'::z' is no IPv6 address"),
        ("a b:9443", "'a b' is no host"),
        ("https://fl.example.org:9443", "is not a valid address"),
    ],
)
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str, why: str) -> None:
    said = refused(tmp_path, server=address)
    assert ", key 'server': " in said
    assert why in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"algorithm": "fedirr"}, ", key 'algorithm': unknown algorithm 'fedirr'; did you mean 'fediir'?"),
        ({"algorithm": "fedavg+fedprox"}, "fedprox has no server half"),
        ({"algorithm": "erm"}, ", key 'algorithm': 'erm' is a reference for one machine"),
        ({"algorithm": "local-only"}, "'local-only' is a reference for one machine"),
        ({"name": "he art"}, ", key 'name': 'he art' is no name; give 1 to 64 letters"),
        ({"name": "../x"}, ", key 'name': '../x' is no name"),
        ({"sites": 0}, ", key 'sites': input should be greater than or equal to 1, not 0"),
        ({"sites": "3"}, ", key 'sites': input should be a valid integer, not '3'"),
        ({"rounds": 0}, ", key 'rounds'"),
        ({"quorum": 1.5}, ", key 'quorum': input should be less than or equal to 1, not 1.5"),
        ({"deadline": float("inf")}, ", key 'deadline': input should be a finite number"),
        ({"cohort": 4}, ", key 'cohort': 4 sites cannot be drawn from 3; give at most that many"),
        ({"round": 5}, " has an unknown key 'round'; did you mean 'rounds'?"),
        ({"settings": {}}, " has an unknown key 'settings'; did you mean 'set'?"),
        ({"path": "x"}, " has an unknown key 'path'"),
        ({"set": {"gama": 1.0}}, ", key 'set': fediir has no parameter 'gama'; did you mean 'gamma'?"),
        ({"set": {"gamma": -1.0}}, ", key 'set': fediir: gamma = -1.0: input should be greater than or equal to 0"),
        ({"set": {"fedprox.mu": 1.0}}, ", key 'set': 'fedprox.mu' is for 'fedprox', which is not among the algorithms"),
        ({"set": {"model.hiden": [3]}}, ", key 'set': a model has no setting 'hiden'; did you mean 'model.hidden'?"),
        ({"set": {"model.outputs": 3}}, ", key 'set': a model has no setting 'outputs'"),
        ({"set": {"model.norm": "batch"}}, ", key 'set': model.norm = 'batch': input should be 'none'"),
        ({"set": {"augment": "flipp"}}, ", key 'set': augment = 'flipp': choose one of none, "),
        ({"set": 3}, ", key 'set': input should be a valid dictionary, not 3"),
        (
            {"algorithm": "fedavg", "diagnose": True, "set": {"privacy": "record", "clip": 1.0, "noise": 1.0}},
            ", key 'set': a diagnosis sends moments of the rows without noise",
        ),
    ],
)
def test_what_cannot_work_is_said_with_file_and_key(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    assert said in refused(tmp_path, **content)


@pytest.mark.parametrize("key", ["name", "server", "algorithm", "sites"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    assert refused(tmp_path, (key,)).startswith(f" has no key '{key}', ")


def test_a_misspelled_key_is_named_before_the_one_it_stands_for(tmp_path: Path) -> None:
    assert refused(tmp_path, ("algorithm",), algoritm="fedavg") == (
        " has an unknown key 'algoritm'; did you mean 'algorithm'?"
    )


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FederationFileError, match=r"there is no federation file '.*nowhere\.toml'"):
        read_federation(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(FederationFileError, match="is not TOML"):
        read_federation(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FederationFileError, match="is not TOML"):
        read_federation(tmp_path / "bytes.toml")


@pytest.mark.parametrize(("written", "read"), [("none", None), ("None", None), ("median", "median"), (2.5, 2.5)])
def test_updates_are_bounded_by_default_and_the_operator_can_say_otherwise(
    tmp_path: Path, written: Any, read: Any
) -> None:
    """As JSON too, which is how the server's own process gets it: a bound that is off stays off."""
    content = {"name": "toy", "server": "127.0.0.1:9443", "algorithm": "fedavg", "sites": 3, "set": {"bound": written}}
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps(content))
    federation = read_federation(path)
    assert federation.settings == {"bound": read}
    assert FederationFile.model_validate_json(federation.model_dump_json()).settings == {"bound": read}
