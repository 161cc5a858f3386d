"""Sites that are removed and keys that are replaced, in files and in a run whose sites are in this process."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.credentials.create import make_node_key
from farfield.deployment.federation_file import FederationFile
from farfield.deployment.server.change_site import remove_site, rotate_key
from farfield.deployment.server.output_folder import FLOWER
from farfield.deployment.server.run import ServerSettings, _serve
from farfield.deployment.server.site_roster import RosterError, SiteRoster, fingerprint
from farfield.records.atomic import write_json
from farfield.records.checked_files import read_checked_json, write_checked_json
from tests.deployment.sites_in_process import NAMES, Sites


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The output folder of a stopped server that knows three keys, which are in `keys`."""
    nodes = {}
    for number, name in enumerate(NAMES, 1):
        key = make_node_key(tmp_path / "keys", name)
        nodes[str(number)] = [name, fingerprint(key.public)]
    (tmp_path / "out" / FLOWER).mkdir(parents=True)
    write_json(tmp_path / "out" / FLOWER / "nodes.json", nodes)
    return tmp_path / "out"


def given_keys(out: Path) -> list[Path]:
    return sorted((out.parent / "keys").glob("*.pub"))


def test_a_removed_sites_key_is_not_registered_again(out: Path) -> None:
    said = remove_site(out, "birch")
    assert "'birch' is removed (the server is stopped" in said
    roster = SiteRoster(out / FLOWER)
    assert roster.names == {1: "amber", 3: "cedar"}
    assert roster.removed == {"birch"}
    assert roster.changes.to_forget == ["2"]
    assert [key.stem for key in roster.admitted(given_keys(out))] == ["amber", "cedar"]
    assert remove_site(out, "birch") == said, "once more changes nothing"
    assert roster.changes.to_forget == ["2"]
    assert [row["what"] for row in roster.changes.history] == ["removed"]
    assert roster.facts() == {"removed_sites": ["birch"]}


def test_a_replaced_key_is_not_let_in_by_a_restart_with_the_old_folder(out: Path, tmp_path: Path) -> None:
    new = make_node_key(tmp_path / "new", "birch").public
    rotate_key(out, "birch", new)
    roster = SiteRoster(out / FLOWER)
    assert roster.names == {1: "amber", 3: "cedar"}, "its node is registered by the next start"
    admitted = {key.stem: key.read_bytes() for key in roster.admitted(given_keys(out))}
    assert admitted["birch"] == new.read_bytes()
    assert admitted["amber"] == (out.parent / "keys" / "amber.pub").read_bytes()
    # The operator may also have put the new key into the folder; a third one is refused.
    (out.parent / "keys" / "birch.pub").write_bytes(new.read_bytes())
    assert {key.stem: key.read_bytes() for key in roster.admitted(given_keys(out))} == admitted
    third = make_node_key(tmp_path / "third", "birch").public
    (out.parent / "keys" / "birch.pub").write_bytes(third.read_bytes())
    with pytest.raises(RosterError, match="neither the key that site 'birch' has now"):
        roster.admitted(given_keys(out))


def test_a_key_cannot_be_replaced_by_itself_by_anothers_or_by_one_that_was_replaced(out: Path, tmp_path: Path) -> None:
    keys = out.parent / "keys"
    with pytest.raises(RosterError, match="the key that site 'birch' has now"):
        rotate_key(out, "birch", keys / "birch.pub")
    with pytest.raises(RosterError, match="the key of site 'amber'"):
        rotate_key(out, "birch", keys / "amber.pub")
    with pytest.raises(RosterError, match="knows no site 'dune'; its sites are 'amber', 'birch', 'cedar'"):
        rotate_key(out, "dune", keys / "amber.pub")
    rotate_key(out, "birch", make_node_key(tmp_path / "new", "birch").public)
    # Its node is gone until the next start has registered the new key.
    nodes = SiteRoster(out / FLOWER).nodes
    write_json(out / FLOWER / "nodes.json", {**nodes, "9": ["birch", fingerprint(tmp_path / "new" / "birch.pub")]})
    with pytest.raises(RosterError, match="was replaced before, and is never let in again"):
        rotate_key(out, "birch", keys / "birch.pub")
    remove_site(out, "birch")
    with pytest.raises(RosterError, match="was removed from this run"):
        rotate_key(out, "birch", make_node_key(tmp_path / "more", "birch").public)


def test_a_command_that_was_killed_halfway_lets_nobody_in(out: Path) -> None:
    """The changes are written first; nodes.json still has the node."""
    before = (out / FLOWER / "nodes.json").read_bytes()
    remove_site(out, "birch")
    (out / FLOWER / "nodes.json").write_bytes(before)
    roster = SiteRoster(out / FLOWER)
    assert "birch" not in roster.names.values()
    roster.settle()
    assert sorted(read_checked_json(out / FLOWER / "nodes.json")) == ["1", "3"]


def test_a_damaged_record_stops_the_server_and_names_the_file(out: Path) -> None:
    (out / FLOWER / "site-changes.json").write_text('{"removed": ["birch"')
    with pytest.raises(RosterError, match=r"site-changes\.json' is damaged"):
        SiteRoster(out / FLOWER).admitted(given_keys(out))


def test_a_changed_byte_in_the_record_of_removals_does_not_let_a_site_in_again(out: Path) -> None:
    remove_site(out, "birch")
    path = out / FLOWER / "site-changes.json"
    path.write_text(path.read_text().replace('"birch"', '"birsh"'))
    with pytest.raises(RosterError, match=r"site-changes\.json' is damaged"):
        SiteRoster(out / FLOWER).admitted(given_keys(out))


def test_a_second_new_key_whose_command_was_killed_halfway_is_accepted_by_the_same_command(
    out: Path, tmp_path: Path
) -> None:
    """The key's file is written first; the record of changes does not know of it yet."""
    first, second = (make_node_key(tmp_path / folder, "birch").public for folder in ("first", "second"))
    rotate_key(out, "birch", first)
    roster = SiteRoster(out / FLOWER)
    write_json(out / FLOWER / "nodes.json", {**roster.nodes, "9": ["birch", fingerprint(first)]})
    roster.key_of("birch").write_bytes(second.read_bytes())
    rotate_key(out, "birch", second)
    assert roster.changes.replaced["birch"][1:] == [fingerprint(first)]
    assert roster.changes.to_forget == ["2", "9"]
    assert fingerprint(next(key for key in roster.admitted(given_keys(out)) if key.stem == "birch")) == fingerprint(
        second
    )


def test_a_folder_that_is_no_servers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match="not the output folder of a server"):
        remove_site(tmp_path, "amber")


class Acting(Sites):
    """Sites that do something when the server begins its n-th exchange of rounds."""

    act: dict[int, Any]
    exchanges = 0

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        if any(message.metadata.message_type == "query.farfield" for message in messages):
            self.exchanges += 1
            self.act.get(self.exchanges, lambda: None)()
        return super().push_messages(messages)


def run(tmp_path: Path, federation: FederationFile, out: Path, act: dict[int, Any]) -> dict[str, Any]:
    sites = Acting(tmp_path / "sites", federation)
    sites.act = act
    names = {1: "amber", 2: "birch", 3: "cedar"}
    settings = ServerSettings(federation=federation, run="r", wait=5.0, start="s", pid=os.getpid(), names=names)
    return _serve(sites, out, settings, ActivityLog(out / FLOWER, "s"))  # type: ignore[arg-type]


@pytest.fixture
def five_rounds(tmp_path: Path, federation: FederationFile) -> FederationFile:
    (tmp_path / "sites").mkdir()
    return federation.model_copy(update={"algorithm": "fedavg", "rounds": 5})


def rows_of(out: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "run" / name).read_text().splitlines()]


def test_a_run_goes_on_without_a_removed_site_and_says_so(
    tmp_path: Path, five_rounds: FederationFile, out: Path
) -> None:
    # A round has two exchanges, training and evaluation: the third is the training of round 2.
    result = run(tmp_path, five_rounds, out, {3: lambda: remove_site(out, "cedar")})
    rounds = rows_of(out, "rounds.jsonl")
    assert [row["clients"] for row in rounds] == [3, 3, 2, 2, 2]
    assert [sorted(row["validation"]) for row in rounds] == [
        ["amber", "birch", "cedar"], *[["amber", "birch"]] * 4
    ]  # fmt: skip
    events = rows_of(out, "events.jsonl")
    dropped = [(e["round"], e["client"], e["message"]) for e in events if e["kind"] == "reply-dropped"]
    assert dropped == [(2, 2, "its site was removed")], "its reply had come, and the operator wants nothing of it"
    (removed,) = [e for e in events if e["kind"] == "site-removed"]
    assert removed["round"] == 3
    assert removed["message"] == "site 'cedar' was removed; the run goes on with 2 of 3 sites"
    assert result["removed_sites"] == ["cedar"]
    assert json.loads((out / "run" / "result.json").read_text())["removed_sites"] == ["cedar"]
    card = (out / "README.md").read_text()
    assert "Removed during the run by the server's operator: 'cedar'" in card
    from farfield.trained.model_folder import load_model

    assert load_model(out).about["round"] >= 2, "a round that was validated with the removed site is not comparable"


def test_a_resumed_run_records_a_removal_once_and_tells_it_once(
    tmp_path: Path, five_rounds: FederationFile, out: Path
) -> None:
    def cut() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # in round 4
        run(tmp_path, five_rounds, out, {3: lambda: remove_site(out, "cedar"), 7: cut})
    run(tmp_path, five_rounds, out, {})
    assert [row["clients"] for row in rows_of(out, "rounds.jsonl")] == [3, 3, 2, 2, 2]
    assert [e["round"] for e in rows_of(out, "events.jsonl") if e["kind"] == "site-removed"] == [3]
    activity = [json.loads(line)["text"] for line in (out / FLOWER / "activity.jsonl").read_text().splitlines()]
    assert len([text for text in activity if "was removed; the run goes on" in text]) == 1


def test_a_removal_that_the_resumed_run_has_not_kept_is_recorded_again(
    tmp_path: Path, five_rounds: FederationFile, out: Path
) -> None:
    def cut() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # in round 3, the first without it: that round is made again
        run(tmp_path, five_rounds, out, {3: lambda: remove_site(out, "cedar"), 5: cut})
    run(tmp_path, five_rounds, out, {})
    assert [e["round"] for e in rows_of(out, "events.jsonl") if e["kind"] == "site-removed"] == [3]


def test_a_cohort_is_drawn_from_those_who_are_left(tmp_path: Path, five_rounds: FederationFile, out: Path) -> None:
    drawing = five_rounds.model_copy(update={"cohort": 2, "rounds": 6})
    run(tmp_path, drawing, out, {1: lambda: remove_site(out, "amber")})
    assert [row["clients"] for row in rows_of(out, "rounds.jsonl")][1:] == [2] * 5


def test_without_changes_a_run_says_nothing_of_them(tmp_path: Path, five_rounds: FederationFile, out: Path) -> None:
    result = run(tmp_path, five_rounds, out, {})
    assert not {"removed_sites", "replaced_keys"} & set(result)
    assert not (out / "run" / "events.jsonl").exists()


def test_the_last_site_that_trains_cannot_be_removed(tmp_path: Path, five_rounds: FederationFile, out: Path) -> None:
    def remove() -> None:
        remove_site(out, "amber")
        remove_site(out, "birch")
        with pytest.raises(RosterError, match="'cedar' is the last site that trains"):
            remove_site(out, "cedar")

    run(tmp_path, five_rounds, out, {3: remove})
    assert [row["clients"] for row in rows_of(out, "rounds.jsonl")] == [3, 3, 1, 1, 1]


@pytest.mark.slow
def test_a_seat_is_taken_by_the_node_that_the_operator_has_registered_for_it_and_no_other(
    tmp_path: Path, five_rounds: FederationFile, out: Path
) -> None:
    """Cedar's key is replaced in round 2; a node with an unknown name claims its seat first, and gets nothing."""
    five_rounds = five_rounds.model_copy(update={"deadline": 2.0})
    new = make_node_key(tmp_path / "new", "cedar").public
    sites: list[Acting] = []

    def rotate() -> None:
        rotate_key(out, "cedar", new)
        sites[0].here.discard(3)
        sites[0].start(7, "cedar", folder="impostor")  # the same rows, so that its schema fits

    def arrive() -> None:
        nodes = SiteRoster(out / FLOWER).nodes
        write_json(out / FLOWER / "nodes.json", {**nodes, "8": ["cedar", fingerprint(new)]})
        sites[0].start(8, "cedar", folder="cedar-again")

    made = Acting(tmp_path / "sites", five_rounds)
    made.act = {3: rotate, 7: arrive}
    sites.append(made)
    names = {1: "amber", 2: "birch", 3: "cedar"}
    settings = ServerSettings(federation=five_rounds, run="r", wait=5.0, start="s", pid=os.getpid(), names=names)
    result = _serve(made, out, settings, ActivityLog(out / FLOWER, "s"))  # type: ignore[arg-type]
    events = rows_of(out, "events.jsonl")
    assert [(e["kind"], e["round"]) for e in events if e["kind"].startswith("site-")] == [
        ("site-left", 3), ("site-refused", 3), ("site-returned", 5)
    ]  # fmt: skip
    assert [e["round"] for e in events if e["kind"] == "reply-dropped"] == [2, 2, 3, 3, 4, 4]
    impostor = (tmp_path / "sites" / "impostor" / "activity.jsonl").read_text()
    assert '"phase"' not in impostor
    assert result["replaced_keys"] == {"cedar": 1}


def test_a_key_that_is_replaced_while_the_server_waits_is_let_in(
    tmp_path: Path, five_rounds: FederationFile, out: Path
) -> None:
    new = make_node_key(tmp_path / "new", "cedar").public
    made = Acting(tmp_path / "sites", five_rounds.model_copy(update={"rounds": 1}))
    made.act = {}
    made.here.discard(3)

    def replace() -> None:
        rotate_key(out, "cedar", new)
        nodes = SiteRoster(out / FLOWER).nodes
        write_checked_json(out / FLOWER / "nodes.json", {**nodes, "8": ["cedar", fingerprint(new)]})
        made.start(8, "cedar", folder="cedar-again")

    later = threading.Timer(1.0, replace)
    later.start()
    names = {1: "amber", 2: "birch", 3: "cedar"}
    settings = ServerSettings(federation=made.federation, run="r", wait=60.0, start="s", pid=os.getpid(), names=names)
    _serve(made, out, settings, ActivityLog(out / FLOWER, "s"))  # type: ignore[arg-type]
    later.join()
    assert [row["clients"] for row in rows_of(out, "rounds.jsonl")] == [3]


def test_a_site_that_is_removed_while_a_resumed_run_waits_for_it_is_waited_for_no_more(
    tmp_path: Path, five_rounds: FederationFile, out: Path
) -> None:
    def cut() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, five_rounds, out, {5: cut})
    strict = five_rounds.model_copy(update={"quorum": 1.0})
    made = Acting(tmp_path / "sites", strict)
    made.act = {}
    made.here.discard(3)
    later = threading.Timer(1.0, lambda: remove_site(out, "cedar"))
    later.start()
    names = {1: "amber", 2: "birch", 3: "cedar"}
    settings = ServerSettings(federation=strict, run="r", wait=60.0, start="s", pid=os.getpid(), names=names)
    _serve(made, out, settings, ActivityLog(out / FLOWER, "s"))  # type: ignore[arg-type]
    later.join()
    assert [row["clients"] for row in rows_of(out, "rounds.jsonl")] == [3, 3, 2, 2, 2]


@pytest.mark.slow
def test_a_removed_site_counts_as_one_that_has_gone_away(
    tmp_path: Path, five_rounds: FederationFile, out: Path
) -> None:
    """The model is that of a run whose third site lost its connection at the same moment."""
    removed = run(tmp_path, five_rounds, out, {3: lambda: remove_site(out, "cedar")})
    made = Acting(tmp_path / "sites", five_rounds.model_copy(update={"deadline": 2.0}))
    made.act = {3: lambda: made.here.discard(3)}
    settings = ServerSettings(federation=made.federation, run="r", wait=5.0, start="s", pid=os.getpid())
    other = tmp_path / "other"
    (other / FLOWER).mkdir(parents=True)
    gone = _serve(made, other, settings, ActivityLog(other / FLOWER, "s"))  # type: ignore[arg-type]
    assert removed["model_sha256"] == gone["model_sha256"]
