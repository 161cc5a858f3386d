"""A server that asks for more than a secure sum is refused by the sites themselves, also after a restart."""

from __future__ import annotations

import pytest

from farfield.federation.refusal import Refused
from farfield.federation.secure_sums.masks import new_private_key, public_key
from farfield.federation.secure_sums.members import Identity, PublicKeys, signed_message
from farfield.federation.secure_sums.server_session import ServerSum
from farfield.federation.secure_sums.shamir import SHARE_BYTES, join
from tests.federation.secure_sums.in_process import SHARES, Site, integers, names, run_sum


def four() -> dict[str, Site]:
    return {name: Site(name) for name in names(4)}


def masked(sites: dict[str, Site], question: str = "q", key: str = "1/train", sum_id: str = "sum") -> ServerSum:
    """A sum up to the masked integers."""
    keys = {n: site.act("advertise", sum_id, key) for n, site in sites.items()}
    server = ServerSum(sum_id, keys, least=3)
    server.take_sealed({n: site.act("share", sum_id, keys) for n, site in sites.items()})
    for name, site in sites.items():
        site.act("accept", sum_id, question, server.sealed_for(name))
        site.act("mask", sum_id, integers(name))
    return server


def test_a_site_never_gives_both_kinds_of_shares_of_a_peer() -> None:
    sites = four()
    masked(sites)
    asked = sites["site-0"]
    of_key = asked.act("unmask", "sum", ["site-0", "site-1", "site-2"])
    assert {name: len(share) for name, share in of_key.items()} == dict.fromkeys(sites, SHARE_BYTES)
    with pytest.raises(Refused, match="not the next exchange"):
        asked.act("unmask", "sum", list(sites))
    with pytest.raises(Refused, match="not the next exchange"):  # nor the same again
        asked.act("unmask", "sum", ["site-0", "site-1", "site-2"])
    assert '"open": null' in asked.stored  # the secrets are gone from the disk


def test_a_slow_sites_integers_stay_masked() -> None:
    """Its integers arrive after it was counted as gone: the server has its key, and not its own mask."""
    sites = four()
    server = masked(sites)
    survivors = ["site-0", "site-1", "site-2"]
    answers = {name: sites[name].act("unmask", "sum", survivors) for name in survivors}
    key = join({n: answers[name]["site-3"] for n, name in enumerate(survivors, 1)}, 3)
    assert public_key(key) == server.members["site-3"].mask
    for name in survivors:
        with pytest.raises(Refused):
            sites[name].act("unmask", "sum", list(sites))
    with pytest.raises(Refused, match="not of this secure sum"):
        sites["site-3"].act("unmask", "sum", survivors)


def test_a_sum_of_too_few_is_refused_at_every_stage() -> None:
    sites = four()
    keys = {n: site.act("advertise", "sum", "1/train") for n, site in sites.items()}
    for few in (["site-0"], ["site-0", "site-1"]):
        with pytest.raises(Refused, match=f"over 3 to 2047 sites, not {len(few)}"):
            sites["site-0"].act("share", "sum", {name: keys[name] for name in few})
    sealed = {name: site.act("share", "sum", keys) for name, site in sites.items()}
    boxes = {other: of["site-0"] for other, of in sealed.items() if other != "site-0"}
    with pytest.raises(Refused, match="2 of 4 sites are left, and a secure sum needs 3"):
        sites["site-0"].act("accept", "sum", "q", {"site-1": boxes["site-1"]})
    sites["site-0"].act("accept", "sum", "q", boxes)
    sites["site-0"].act("mask", "sum", integers("site-0"))
    for few in ([], ["site-0"], ["site-0", "site-1"], ["site-0", "site-0", "site-1"]):
        with pytest.raises(Refused):
            sites["site-0"].act("unmask", "sum", few)


def test_the_same_round_for_other_sites_is_refused_because_the_difference_is_one_sites_numbers() -> None:
    sites = {name: Site(name) for name in names(5)}
    run_sum(sites)
    fewer = {name: site for name, site in sites.items() if name != "site-4"}
    with pytest.raises(Refused, match="has answered another question, or one for other sites, in round 1, phase"):
        run_sum(fewer, sum_id="again")


def test_the_same_round_with_another_list_of_survivors_is_refused() -> None:
    sites = {name: Site(name) for name in names(5)}
    run_sum(sites)
    with pytest.raises(Refused, match="has helped with the sum over other sites"):
        run_sum(sites, {"site-4": SHARES}, sum_id="again")


def test_another_question_in_the_same_round_and_phase_is_refused() -> None:
    sites = four()
    run_sum(sites)
    with pytest.raises(Refused, match="has answered another question"):
        run_sum(sites, question="a model that differs", sum_id="again")
    run_sum(sites, question="a model that differs", key="2/train", sum_id="next")


def test_the_same_question_for_the_same_sites_is_answered_again_as_a_resumed_server_asks_it() -> None:
    sites = four()
    first, second = run_sum(sites), run_sum(sites, sum_id="again")
    assert first.total is not None
    assert second.total is not None
    assert first.total.tolist() == second.total.tolist()


def test_a_server_that_was_killed_before_the_answers_can_begin_the_sum_again() -> None:
    sites = four()
    masked(sites)
    assert run_sum(sites, sum_id="again").total is not None
    with pytest.raises(Refused, match="not the next exchange"):  # what was begun before is over
        sites["site-0"].act("unmask", "sum", list(sites))


def test_altered_ciphertexts_are_refused_before_any_number_is_sent() -> None:
    sites = four()
    keys = {n: site.act("advertise", "sum", "1/train") for n, site in sites.items()}
    server = ServerSum("sum", keys, least=3)
    server.take_sealed({n: site.act("share", "sum", keys) for n, site in sites.items()})
    boxes = server.sealed_for("site-0")
    swapped = {**boxes, "site-1": boxes["site-2"]}
    altered = {**boxes, "site-1": bytes([boxes["site-1"][0] ^ 1]) + boxes["site-1"][1:]}
    for given in (swapped, altered, {**boxes, "site-1": b""}):
        with pytest.raises(Refused, match="the shares from 'site-1' were altered"):
            sites["site-0"].act("accept", "sum", "q", given)
    with pytest.raises(Refused, match="not in this secure sum"):
        sites["site-0"].act("accept", "sum", "q", {**boxes, "stranger": boxes["site-1"]})
    with pytest.raises(Refused, match="not the next exchange"):
        sites["site-0"].act("mask", "sum", integers("site-0"))


def test_sites_that_were_told_different_members_do_not_mask_for_each_other() -> None:
    sites = {name: Site(name) for name in names(5)}
    keys = {n: site.act("advertise", "sum", "1/train") for n, site in sites.items()}
    fewer = {name: keys[name] for name in names(4)}
    sealed = {n: site.act("share", "sum", fewer if n == "site-0" else keys) for n, site in sites.items()}
    boxes = {other: sealed[other]["site-0"] for other in names(4)[1:]}
    with pytest.raises(Refused, match="altered, or are for another secure sum"):
        sites["site-0"].act("accept", "sum", "q", boxes)


def test_a_site_notices_that_its_own_keys_were_replaced_or_a_key_is_there_twice() -> None:
    sites = four()
    keys = {n: site.act("advertise", "sum", "1/train") for n, site in sites.items()}
    with pytest.raises(Refused, match="are not the ones that it sent"):
        sites["site-0"].act("share", "sum", {**keys, "site-0": keys["site-1"]})
    with pytest.raises(Refused, match="are not the ones that it sent"):
        sites["site-0"].act("share", "sum", {n: k for n, k in keys.items() if n != "site-0"})
    with pytest.raises(Refused, match="same key"):
        sites["site-0"].act("share", "sum", {**keys, "site-2": keys["site-1"]})
    with pytest.raises(Refused, match="the public key of 'site-1' is not valid"):
        sites["site-0"].act("share", "sum", {**keys, "site-1": PublicKeys(bytes(32), keys["site-1"].mask)})


def test_exchanges_out_of_order_or_of_another_sum_are_refused() -> None:
    sites = four()
    keys = {n: site.act("advertise", "sum", "1/train") for n, site in sites.items()}
    site = sites["site-0"]
    for exchange in (
        ("share", "other", keys),
        ("accept", "sum", "q", {}),
        ("mask", "sum", integers("x")),
        ("unmask", "sum", []),
    ):
        with pytest.raises(Refused, match="not the next exchange"):
            site.act(*exchange)
    site.act("share", "sum", keys)
    with pytest.raises(Refused, match="not the next exchange"):
        site.act("share", "sum", keys)


def _signing(name: str, secrets: dict[str, bytes]) -> Identity:
    """Signatures by a secret that all honest sites have: what matters here is who checks what."""
    import hmac

    def sign(message: bytes) -> bytes:
        return hmac.digest(secrets[name], message, "sha256")

    def check(other: str):  # type: ignore[no-untyped-def]
        return lambda message, signature: hmac.compare_digest(hmac.digest(secrets[other], message, "sha256"), signature)

    return Identity(sign, {other: check(other) for other in secrets if other != name})


def test_a_server_that_puts_itself_in_the_place_of_sites_is_refused_where_sites_know_one_another() -> None:
    secrets = {name: name.encode() for name in names(4)}
    sites = {name: Site(name, identity=_signing(name, secrets)) for name in names(4)}
    assert run_sum(sites).total is not None
    keys = {n: site.act("advertise", "swap", "2/train") for n, site in sites.items()}
    own = PublicKeys(public_key(new_private_key()), public_key(new_private_key()))
    by_server = PublicKeys(
        own.seal, own.mask, _signing("x", {"x": b"guess"}).sign(signed_message("swap", "site-1", own))
    )
    old = Site("site-1", identity=sites["site-1"].identity).act(
        "advertise", "sum", "1/train"
    )  # signed, for another sum
    for forged in (own, by_server, old):
        with pytest.raises(Refused, match="'site-1' are not signed by it"):
            sites["site-0"].act("share", "swap", {**keys, "site-1": forged})
    with pytest.raises(Refused, match="does not know the key of 'nobody'"):
        sites["site-0"].act("share", "swap", {**keys, "nobody": own})


def test_sites_that_know_one_another_unmask_only_what_two_thirds_have_signed() -> None:
    """A server that tells different sites different lists of who has stayed obtains nothing."""
    secrets = {name: name.encode() for name in names(5)}
    sites = {name: Site(name, identity=_signing(name, secrets)) for name in names(5)}
    masked(sites)
    everyone, fewer = names(5), names(4)
    with pytest.raises(Refused, match="not the next exchange"):  # no list is signed yet
        sites["site-0"].act("unmask", "sum", everyone, {})
    told = {name: everyone if name in ("site-0", "site-1") else fewer for name in fewer}
    signed = {name: sites[name].act("agree", "sum", told[name]) for name in fewer}
    with pytest.raises(Refused, match="not the next exchange"):  # a site signs one list
        sites["site-0"].act("agree", "sum", fewer)
    with pytest.raises(Refused, match="has signed another list"):
        sites["site-0"].act("unmask", "sum", fewer, signed)
    for name in fewer:
        with pytest.raises(Refused, match=r"2 sites have signed this list .* 4 are needed"):
            sites[name].act("unmask", "sum", told[name], signed)
    forged = {**signed, "site-2": signed["site-0"], "site-3": b"", "site-4": b"x", "stranger": b"y"}
    with pytest.raises(Refused, match="2 sites have signed"):
        sites["site-0"].act("unmask", "sum", everyone, forged)


def test_a_site_that_does_not_know_its_peers_signs_nothing() -> None:
    sites = four()
    masked(sites)
    with pytest.raises(Refused, match="signs nothing"):
        sites["site-0"].act("agree", "sum", names(4))


def test_without_known_peers_a_server_that_replaces_keys_is_not_noticed() -> None:
    """The limit that the docs state: without `peers` the server must at least pass keys on honestly."""
    site = Site("site-0")
    keys = {"site-0": site.act("advertise", "sum", "1/train")}
    keys |= {name: PublicKeys(public_key(new_private_key()), public_key(new_private_key())) for name in names(4)[1:]}
    assert set(site.act("share", "sum", keys)) == set(names(4)[1:])
