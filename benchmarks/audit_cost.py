"""What the audit log costs per message: `python benchmarks/audit_cost.py`.

At a site a message is two entries, each on the disk before the next step. At a server a round is two appends, however
many sites there are: one when the messages are out, and one for each look that finds replies.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from flwr.app import RecordDict

from farfield.deployment.audit.content import describe
from farfield.deployment.audit.log import AuditLog
from farfield.deployment.audit.verify import verify
from farfield.federation.engines.flower.packing import pack

REPEATS = 200


def milliseconds(work: Callable[[], object], repeats: int = REPEATS) -> tuple[float, float, float]:
    """Return the median and the 95th percentile of a call, and its mean processor time."""
    times = []
    busy = time.process_time()
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    processor = 1000 * (time.process_time() - busy) / repeats
    return statistics.median(times), sorted(times)[int(0.95 * len(times))], processor


def content(parameters: int) -> RecordDict:
    return pack({"run": "r", "round": 1, "phase": "train"}, {"values": {"update": torch.randn(parameters)}})


def entry(of: RecordDict, site: int = 0) -> dict[str, object]:
    about = {"kind": "sent", "peer": f"site-{site}", "flower_run": "1", "message": "0" * 64, "phase": "train"}
    return {**about, **describe(of).to_entry()}


def bare_fsync(folder: Path) -> Callable[[], None]:
    descriptor = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write() -> None:
        os.write(descriptor, b"x" * 400 + b"\n")
        os.fsync(descriptor)

    return write


def shown(what: str, found: tuple[float, float, float]) -> None:
    print(f"{what:45s} {found[0]:7.2f} {found[1]:7.2f} {found[2]:7.2f}")


def site_message(log: AuditLog, of: RecordDict) -> None:
    log.append(entry(of))
    log.append(entry(of))


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        print("per call, in ms                                median    95 %  processor")
        shown("a bare append of 400 bytes with fsync", milliseconds(bare_fsync(folder)))
        log = AuditLog(folder / "site", side="site", name="amber")
        for parameters in (1_000, 1_000_000, 10_000_000):
            found = milliseconds(partial(site_message, log, content(parameters)), REPEATS if parameters < 10**7 else 20)
            shown(f"a site's message of {4 * parameters / 1e6:g} MB, 2 entries", found)
        of = content(1_000)
        for sites in (4, 200):
            server = AuditLog(folder / f"server-{sites}", side="server", name="toy")
            found = milliseconds(lambda log=server, count=sites: log.append(*(entry(of, n) for n in range(count))), 50)
            shown(f"a server's append of {sites} messages of 4 kB", found)
        began = time.perf_counter()
        entries = len(verify(folder / "server-200" / "audit").entries)
        took = time.perf_counter() - began
        size = (folder / "server-200" / "audit" / "audit.jsonl").stat().st_size
        print(f"verifying {entries:,} entries takes {took:.2f} s; an entry has {size / entries:.0f} bytes")


if __name__ == "__main__":
    main()
