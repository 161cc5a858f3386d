"""Files that another user of the machine has put in the way: links at names that can be guessed, and folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from farfield.deployment.flower.private_files import make_private
from farfield.errors import UserError
from farfield.records.atomic import write_atomic, write_json

NOBODY = 65534


def test_a_link_at_the_name_of_a_temporary_file_is_not_followed(tmp_path: Path) -> None:
    """In /tmp anybody can make such a link; the number of the next process can be guessed."""
    precious = tmp_path / "authorized_keys"
    precious.write_text("mine")
    (tmp_path / f".out.json.{os.getpid()}.partial").symlink_to(precious)
    write_json(tmp_path / "out.json", {"a": 1})
    assert precious.read_text() == "mine"
    assert not (tmp_path / "out.json").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["authorized_keys", "out.json"]


def test_what_a_killed_process_has_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / f".out.{os.getpid()}.partial").write_text("half a")
    write_atomic(tmp_path / "out", b"whole")
    assert (tmp_path / "out").read_bytes() == b"whole"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to make a file of another user")
@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_a_folder_or_a_file_in_it_of_another_user_is_refused(tmp_path: Path, what: str) -> None:
    """The owner of the folder with the server's secret could replace the secret, the database or the app."""
    folder = tmp_path / "flower"
    folder.mkdir()
    if what == "folder":
        os.chown(folder, NOBODY, NOBODY)
    elif what == "file":
        (folder / "superlink.db").write_text("")
        os.chown(folder / "superlink.db", NOBODY, NOBODY)
    else:
        (tmp_path / "elsewhere").mkdir()
        os.chown(tmp_path / "elsewhere", NOBODY, NOBODY)
        folder.rmdir()
        folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="belongs to another user"):
        make_private(folder)
