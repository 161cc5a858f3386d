"""Log every message that a site receives and every reply that it gives, before the reply can leave."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from flwr.app import Context, Message

from farfield.deployment.audit.content import about, describe
from farfield.deployment.audit.log import AuditError, AuditLog
from farfield.federation.refusal import Refused

Answer = Callable[[Message, Context], Message]


def audited(log: AuditLog) -> Callable[[Answer], Answer]:
    """Return a decorator for the functions of a ClientApp: no reply leaves them that is not in the log."""

    def decorate(answer: Answer) -> Answer:
        @wraps(answer)
        def answer_and_log(message: Message, context: Context) -> Message:
            of = {"peer": "server", **about(message), "message": message.metadata.message_id}
            try:
                log.append({"kind": "received", **of, **describe(message.content).to_entry()})
                try:
                    reply = answer(message, context)
                except Exception as error:  # Flower sends an error in place of a reply
                    log.append({"kind": "failed", **of, "error": type(error).__name__})
                    raise
                refused = {key: value for key, value in about(reply).items() if key == "refused"}
                log.append({"kind": "sent", **of, **refused, **describe(reply.content).to_entry()})
            except AuditError:
                raise Refused("audit-log") from None
            return reply

        return answer_and_log

    return decorate
