"""The Federation contract, phases, clients and local training. Engines are in `farfield.federation.engines`."""

from farfield.federation.client import Batch, Client, Rows
from farfield.federation.federation import Event, Federation, FederationError, QuorumMissed, Replies, Reply, Traffic
from farfield.federation.phase import SCALAR, Free, Sends, phase, phases_of

__all__ = [
    "SCALAR",
    "Batch",
    "Client",
    "Event",
    "Federation",
    "FederationError",
    "Free",
    "QuorumMissed",
    "Replies",
    "Reply",
    "Rows",
    "Sends",
    "Traffic",
    "phase",
    "phases_of",
]
