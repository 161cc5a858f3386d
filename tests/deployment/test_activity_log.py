"""The log that one process writes and another follows."""

from __future__ import annotations

from pathlib import Path

from farfield.deployment.activity_log import ActivityLog


def test_followers_read_what_is_new_and_only_of_their_own_start(tmp_path: Path) -> None:
    old, new = ActivityLog(tmp_path, "one"), ActivityLog(tmp_path, "two")
    old.add("failed", "long ago")
    follower = ActivityLog(tmp_path, "two")
    follower.skip_existing()
    old.add("failed", "still ending")
    new.add("started", "begins")
    assert [row["text"] for row in follower.new_rows()] == ["begins"]
    assert not list(follower.new_rows())
    with open(tmp_path / "activity.jsonl", "ab") as file:
        file.write(b'{"start": "two", "ki')  # a line on its way
    assert not list(follower.new_rows())
