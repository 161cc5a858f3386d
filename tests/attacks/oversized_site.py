"""A real site whose replies are far larger than declared: `python oversized_site.py client …` as `farfield client …`.

The process with the rows answers as an honest site does, and adds a tensor of FARFIELD_OVERSIZED bytes to every reply
to a phase: in odd rounds random bytes, in even rounds the same piece many times, which costs the site nothing to send.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

BYTES = "FARFIELD_OVERSIZED"


def oversized(app: Any) -> Any:
    """Return an app that answers as another does, with too much."""
    import torch
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    from farfield.federation.engines.flower.packing import pack, unpack

    hostile, size = ClientApp(), int(os.environ[BYTES])

    @hostile.query("farfield")
    def run_phase(message: Message, context: Context) -> Message:
        header, groups = unpack(app(message, context).content)
        fill = torch.randint(0, 255, (size,), dtype=torch.uint8) if header["round"] % 2 else torch.zeros(size).byte()
        return Message(pack(header, {**groups, "state": {"extra": fill}}), reply_to=message)

    @hostile.query("site")
    def answer_question(message: Message, context: Context) -> Message:
        reply: Message = app(message, context)
        return reply

    return hostile


if __name__ == "__main__":
    if sys.argv[1] == "client":
        from farfield.cli.main import run
        from farfield.deployment.site import supervise

        assert supervise.join.__kwdefaults__ is not None
        supervise.join.__kwdefaults__["worker"] = (sys.executable, __file__)
        run()
    else:
        from farfield.deployment.site.worker_process import main

        main(Path(sys.argv[1]), oversized)
