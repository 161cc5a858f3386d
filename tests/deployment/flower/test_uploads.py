"""The account of what each site has sent: how much of it may lie in memory."""

from __future__ import annotations

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.object_store import ObjectStoreFactory

from farfield.deployment.flower import uploads
from farfield.deployment.flower.uploads import KEPT, BadReply, Limit, Uploads

LIMIT = Limit(1000, 1000)


def send(account: Uploads, store: object, number: int, size: int, node: int = 1) -> str:
    """Announce and send a whole reply; return its id."""
    content = b"Message  %d\x00" % size + bytes([number]) * size
    name = get_object_id(content)
    tree = ObjectTree(object_id=name)
    account.expect(f"message {number}", node, LIMIT)
    assert account.check_announced(node, f"message {number}", name, tree, store)
    store.preregister(1, tree)  # type: ignore[attr-defined]
    account.accept(f"message {number}", name, tree, store)
    account.take(node, len(content), store)
    store.put(name, content)  # type: ignore[attr-defined]
    return name


def test_late_replies_that_nobody_reads_do_not_pile_up() -> None:
    account, store = Uploads(), ObjectStoreFactory().store()
    sent = [send(account, store, number, 900) for number in range(50)]
    assert len(store) == KEPT
    assert all(name in store for name in sent[-KEPT:]), "the newest ones stay"
    other = send(account, store, 60, 900, node=2)
    assert other in store
    assert len(store) == KEPT + 1, "one site's replies push out no other's"


def test_a_site_cannot_save_up_what_it_may_send() -> None:
    account, store = Uploads(), ObjectStoreFactory().store()
    for number in range(50):
        name = f"{number:064x}"
        tree = ObjectTree(object_id=name)
        account.expect(str(number), 1, LIMIT)
        account.accept(str(number), name, tree, store)
    assert account.left(1) == KEPT * LIMIT.upload
    with pytest.raises(BadReply):
        account.take(1, KEPT * LIMIT.upload + 1, store)


def test_an_upload_that_stops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    account, store = Uploads(), ObjectStoreFactory().store()
    now = [100.0]
    monkeypatch.setattr(uploads.time, "monotonic", lambda: now[0])
    tree = ObjectTree(object_id="a" * 64)
    account.expect("asked", 1, LIMIT)
    account.accept("asked", "a" * 64, tree, store)
    store.preregister(1, tree)
    now[0] += uploads.SILENCE - 1
    assert account.readable(["asked"], store) == ([], None)
    account.take(1, 10, store)
    now[0] += uploads.SILENCE - 1
    assert account.readable(["asked"], store) == ([], None)
    now[0] += 2
    assert account.readable(["asked"], store) == ([], None)
    assert "broken off" in account.take_refused(["asked"])["asked"]
    assert len(store) == 0


def test_one_reply_is_handed_over_at_a_time() -> None:
    account, store = Uploads(), ObjectStoreFactory().store()
    send(account, store, 1, 10, node=1)
    send(account, store, 2, 10, node=2)
    account.expect("message 3", 3, LIMIT)
    wanted = ["message 1", "message 2", "message 3"]
    assert account.readable(wanted, store) == (["message 1", "message 3"], "message 1")
    assert account.readable(wanted[1:], store) == (["message 2", "message 3"], "message 2")


def test_the_table_of_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "REMEMBERED", 100)
    account, store = Uploads(), ObjectStoreFactory().store()
    for number in range(1000):
        account.expect(str(number), 1, LIMIT)
    assert len(account._expected) == 100
    assert account.check_announced(1, "5", "a" * 64, ObjectTree(object_id="a" * 64), store) is None


def test_refusals_are_told_some_at_a_time_and_each_once() -> None:
    account = Uploads()
    for number in range(120):
        account._refuse(str(number), BadReply("too large"))
    wanted = [str(number) for number in range(120)]
    told = [account.take_refused(wanted) for _ in range(4)]
    assert [len(some) for some in told] == [50, 50, 20, 0]
    assert {message for some in told for message in some} == set(wanted)
