"""Headers that this user's own processes add to their requests, and by which the gate knows them.

The secret is in a file that only this user can read, so another user of the machine cannot act as the server, even from
the same address and even with a task's token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .private_parts import find, replace

#: Holds the secret of this start of the server.
SECRET_HEADER = "x-farfield-secret"
#: With messages to sites: the most bytes of tensors and of everything else in a reply, as "TENSORS,REST".
LIMIT_HEADER = "x-farfield-reply-limit"
#: In the gate's answer: the replies that were refused, as JSON, from the id of the message to the reason.
REFUSED_HEADER = "x-farfield-refused"
#: In the gate's answer: the message whose reply the ServerApp is handed.
HANDED_HEADER = "x-farfield-handed"

_CLIENT = "flwr.supercore.protobuf.client:ProtobufClient.__init__"


class OwnRequests:
    """An interceptor of Flower's HTTP client: adds headers to requests, and reads those of the gate's answers."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        #: What a reply to the messages that are sent next may have at most; None leaves it to the gate.
        self.limit: tuple[int, int] | None = None
        #: Replies that the gate has refused, not yet reported: from the id of the message to the reason.
        self.refused: dict[str, str] = {}
        #: The message whose reply was handed over last; None if none was.
        self.handed: str | None = None

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers[SECRET_HEADER] = self._secret
        if self.limit is not None and context.rpc_method.endswith("/PushMessages"):
            context.request.headers[LIMIT_HEADER] = "{},{}".format(*self.limit)
        response = call_next(context)
        if context.rpc_method.endswith("/PullMessages"):
            self.handed = response.headers.get(HANDED_HEADER)
            self.refused |= _refused_in(response.headers)
        return response

    def take_handed(self) -> str | None:
        """Return the message whose reply was handed over by the last request, once."""
        handed, self.handed = self.handed, None
        return handed

    def install(self) -> None:
        """Let every HTTP client that Flower makes in this process use this interceptor."""
        usual = find(_CLIENT)

        def with_headers(client: Any, *given: Any, interceptors: Any = (), **more: Any) -> None:
            usual(client, *given, interceptors=(*interceptors, self), **more)

        replace(_CLIENT, with_headers)


#: In the ServerApp's process: what its requests go through.
installed: OwnRequests | None = None


def _refused_in(headers: Mapping[str, str]) -> dict[str, str]:
    return {str(key): str(value) for key, value in json.loads(headers.get(REFUSED_HEADER, "{}")).items()}
