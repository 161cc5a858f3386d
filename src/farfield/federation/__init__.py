"""The Federation contract, phases, clients and local training. Engines are in `farfield.federation.engines`."""

from farfield.federation.client import Batch, Client, Rows
from farfield.federation.federation import Event, Federation, FederationError, QuorumMissed, Replies, Reply, Traffic
from farfield.federation.local_training import Local, train_client
from farfield.federation.phase import SCALAR, Free, Sends, adds_to, local_training, phase, phases_of

__all__ = [
    "SCALAR",
    "Batch",
    "Client",
    "Event",
    "Federation",
    "FederationError",
    "Free",
    "Local",
    "QuorumMissed",
    "Replies",
    "Reply",
    "Rows",
    "Sends",
    "Traffic",
    "adds_to",
    "local_training",
    "phase",
    "train_client",
    "phases_of",
]
