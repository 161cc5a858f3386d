"""A message of Flower's answered, as a node of a simulation does it; a site also keeps its state and its records."""

from __future__ import annotations

from flwr.app import Message

from farfield.federation.flower.node import Keeping, Resident, Site, answer, reply_header
from farfield.federation.flower.packing import pack, unpack


def respond(message: Message, site: Site, resident: Resident, keeping: Keeping) -> Message:
    """The reply to a message. Raises BadMessage for one that cannot be read, which Flower makes an error reply."""
    header, groups = unpack(message.content)
    outcome = answer(header, groups, site, resident, keeping)
    content = pack(reply_header(header, outcome), {"values": outcome.values, "state": outcome.state})
    return Message(content, reply_to=message)
