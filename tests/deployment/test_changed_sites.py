"""Removing a site and replacing its key in the middle of a run, with real processes, TLS and keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farfield.deployment.credentials.create import make_node_key
from farfield.deployment.server.output_folder import FLOWER
from farfield.deployment.server.site_roster import SiteRoster
from tests.deployment.network import SITES, Deployment, deployment

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def site_command(net: Deployment, *arguments: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farfield", "site", *arguments, "--out", str(net.out)]
    if user is not None:
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=net.folder)


def rounds_made(net: Deployment) -> int:
    return max((row["round"] for row in net.activity("server") if row["kind"] == "round"), default=0)


def phases(net: Deployment, site: str) -> list[int]:
    return [row["round"] for row in net.activity(site) if row["kind"] == "phase"]


def test_a_site_is_removed_from_a_running_server_and_a_key_is_replaced(tmp_path: Path) -> None:
    with deployment(tmp_path / "net", algorithm="scaffold", rounds=500, deadline=30.0) as net:
        server = net.server("--start-or-resume")
        clients = {name: net.client(name) for name in SITES}
        net.until("rounds", lambda: rounds_made(net) >= 2)
        state = net.folder / "birch" / ".farfield" / "toy-birch"
        kept = {path.name for path in state.glob("state-*.safetensors")}
        assert kept, "SCAFFOLD keeps a control variate at the site"

        done = site_command(net, "remove", "cedar")
        assert done.returncode == 0, done.stderr
        assert "site 'cedar' is removed; the run goes on with 'amber', 'birch'" in done.stdout
        net.wait(clients["cedar"], code=2)
        assert "does not let this site in any more: its key was removed or replaced" in net.said("cedar")
        net.until("a word", lambda: "site 'cedar' was removed; the run goes on with 2 of 3" in net.said("server"))

        # The site makes a new key, its operator sends the .pub, and the server's operator lets it in.
        (net.folder / "birch" / "birch.key").rename(net.folder / "birch" / "old.key")
        new = make_node_key(net.folder / "birch", "birch")
        done = site_command(net, "rotate", "birch", str(new.public))
        assert done.returncode == 0, done.stderr
        net.wait(clients["birch"], code=2)
        begun = rounds_made(net)
        clients["birch"] = net.client("birch")
        net.until("its return", lambda: "site 'birch' is connected again, as a new node" in net.said("server"))
        net.until("a round with it", lambda: max(phases(net, "birch")) > begun)
        assert {path.name for path in state.glob("state-*.safetensors")} == kept, "its state is the same run's"
        server.send_signal(signal.SIGTERM)
        net.wait(server)

        # A restart with the same keys, among them the removed one and the old one, changes nothing of that.
        assert sorted(key.stem for key in net.keys.glob("*.pub")) == ["amber", "birch", "cedar"]
        again = net.server("--start-or-resume")
        net.until("its return", lambda: net.said("server").count("site 'birch' is back") == 1)
        begun = rounds_made(net)
        net.until("rounds", lambda: rounds_made(net) > begun + 1)
        old = net.client("birch", "--key", str(net.folder / "birch" / "old.key"), "--state", str(tmp_path / "old"))
        removed = net.client("cedar")
        for refused in (old, removed):
            net.wait(refused, code=2)
        assert SiteRoster(net.out / FLOWER).names.keys() == {
            node for node, name in SiteRoster(net.out / FLOWER).names.items() if name in ("amber", "birch")
        }
        again.send_signal(signal.SIGTERM)
        net.wait(again)
        listed = site_command(net, "list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == ["amber", "birch", "cedar"]
    assert "cedar  removed" in listed
    rows = [json.loads(line) for line in (net.out / "run" / "rounds.jsonl").read_text().splitlines()]
    assert rows[0]["clients"] == 3
    assert rows[-1]["clients"] == 2
    since = [event["round"] for event in net.events() if event["kind"] == "site-removed"]
    assert since
    assert max(phases(net, "cedar")) < since[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_of_the_servers_machine_cannot_change_its_sites(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with deployment(tmp_path / "net", rounds=500) as net:
        server = net.server()
        for name in SITES:
            net.client(name)
        net.until("a round", lambda: rounds_made(net) >= 1)
        before = SiteRoster(net.out / FLOWER).nodes
        done = site_command(net, "remove", "cedar", user=65534)
        assert done.returncode != 0
        assert SiteRoster(net.out / FLOWER).nodes == before
        assert not SiteRoster(net.out / FLOWER).removed
        begun = rounds_made(net)
        net.until("rounds with all", lambda: rounds_made(net) > begun + 1)
        assert "cedar" not in "".join(event["message"] for event in net.events())
        server.send_signal(signal.SIGTERM)
        net.wait(server)
