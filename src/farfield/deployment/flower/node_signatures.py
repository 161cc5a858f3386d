"""Tell which node a request is from by its headers alone, before its body is read.

Flower's nodes sign the time of each request. Flower itself checks this again when it has read the body.
"""

from __future__ import annotations

import datetime
from base64 import b64decode
from collections.abc import Callable

from .private_parts import find

#: Seconds by which a request's time may differ from ours; Flower checks it more exactly.
TOLERANCE = 330.0
Headers = list[tuple[bytes, bytes]]


class NodeSignatures:
    """Checks the signature of a request and finds the node of its key."""

    def __init__(self) -> None:
        self._verify = find("flwr.supercore.primitives.asymmetric:verify_signature")
        self._read_key = find("flwr.supercore.primitives.asymmetric:bytes_to_public_key")
        names = (
            "flwr.supercore.constant:FLEET_HTTP_PUBLIC_KEY_HEADER",
            "flwr.supercore.constant:FLEET_HTTP_SIGNATURE_HEADER",
            "flwr.common.constant:TIMESTAMP_HEADER",
        )
        self._names = [str(find(name)).lower().encode() for name in names]

    def node_of(self, headers: Headers, node_of_key: Callable[[bytes], int | None]) -> int | None:
        """Return the node that signed a request; None if its key is unknown or its signature is not right."""
        try:
            key, signature, stamp = (_only(headers, name) for name in self._names)
            public_key = b64decode(key, validate=True)
            signed_at = datetime.datetime.fromisoformat(stamp.decode("ascii"))
            age = (datetime.datetime.now(datetime.UTC) - signed_at).total_seconds()
            if abs(age) > TOLERANCE:
                return None
            if not self._verify(self._read_key(public_key), stamp, b64decode(signature, validate=True)):
                return None
            return node_of_key(public_key)
        except Exception:  # whatever a stranger puts into the headers, it is no signature
            return None


def _only(headers: Headers, name: bytes) -> bytes:
    """Return the value of a header that must be there once."""
    (value,) = [value for given, value in headers if given.lower() == name]
    return value
