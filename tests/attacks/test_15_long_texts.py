"""What another machine says is written down in a bounded number of bytes, however often and however long it speaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from farfield.deployment.activity_log import ActivityLog
from farfield.deployment.server.ask_sites import Network
from farfield.deployment.server.joining import JoiningError, wait_for_sites
from tests.deployment.sites_in_process import NAMES, Sites, ask, together
from tests.deployment.test_secure_sums_in_process import written

#: Characters of a hostile text; a message may have ten million.
LONG = 3_000_000


def test_a_servers_notice_does_not_fill_the_disk_of_a_site(tmp_path: Path) -> None:
    sites = Sites(tmp_path, written(tmp_path, set={}), NAMES[:1])
    for kind in ("finished", "failed", "turned-away"):
        ask(sites, 1, "notice", {"kind": kind, "text": "x" * LONG, "column": "y" * LONG})
    ask(sites, 1, "describe", {"algorithm": "z" * LONG, "settings": {"z" * LONG: 1}, "rounds": "1" * 4000})
    assert sum(path.stat().st_size for path in (tmp_path / "amber").rglob("*.jsonl")) < 50_000
    assert sites.notices("amber")[0].startswith("xxx")
    assert "3000000 characters" in sites.notices("amber")[0]


def test_a_sites_name_does_not_fill_the_disk_of_the_server(tmp_path: Path) -> None:
    """A site can leave and join again as often as it likes, and say another name each time."""

    class Talkative(Sites):
        def pull_messages(self, message_ids: Any) -> Any:
            for reply in super().pull_messages(message_ids):
                _rename(reply)
                yield reply

    sites = Talkative(tmp_path, written(tmp_path, set={}, sites=3), NAMES)
    activity = ActivityLog(tmp_path)
    known = dict(enumerate(NAMES, 1))
    with pytest.raises(JoiningError, match="here are none"):
        wait_for_sites(Network(sites), sites.federation, 0.0, activity.add, lambda: known)  # type: ignore[arg-type]
    assert (tmp_path / "activity.jsonl").stat().st_size < 50_000
    assert len(list(ActivityLog(tmp_path).new_rows())) == 3


def _rename(reply: Message) -> None:
    header = reply.content.config_records["header"]
    header["answer"] = str(header["answer"]).replace('"site": "', '"site": "' + "x" * LONG)


def test_honest_texts_are_whole(tmp_path: Path) -> None:
    sites = Sites(tmp_path, written(tmp_path, set={}, sites=3), NAMES)
    _, reported = together(sites)
    assert all("characters" not in text for text in reported)
    ask(sites, 1, "notice", {"kind": "finished", "text": "the run is finished", "column": None})
    assert sites.notices("amber") == ["the run is finished"]
