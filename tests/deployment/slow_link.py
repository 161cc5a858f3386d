"""A slow link between two network namespaces, packet by packet, where the kernel has no netem.

    python slow_link.py NAMESPACE_A NAMESPACE_B DEVICE MILLISECONDS BITS_PER_SECOND

It makes a tun device in each namespace and carries packets from one to the other: each waits until those before it are
sent at the given rate, and then for the delay, in either direction. It prints "ready" and runs until it is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
#: Packets that wait at most; more are dropped, as by netem.
LIMIT = 1000


def open_tun(namespace: str, device: str) -> int:
    """Return a tun device that is made in a namespace. Its file works from everywhere."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
    return tun


def carry(ends: tuple[int, int], delay: float, rate: float) -> None:
    """Carry packets both ways, for ever."""
    waiting: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}
    free_at = dict.fromkeys(ends, 0.0)
    while True:
        now = time.monotonic()
        for end, queue in waiting.items():
            while queue and queue[0][0] <= now:
                packet = queue.popleft()[1]
                with contextlib.suppress(OSError):  # the device is not up (yet): a link loses such a packet, too
                    os.write(end, packet)
        due = min((queue[0][0] for queue in waiting.values() if queue), default=now + 1.0)
        readable, _, _ = select.select(ends, [], [], max(0.0, due - now))
        for end in readable:
            other = ends[1] if end == ends[0] else ends[0]
            try:
                packet = os.read(end, 65536)
            except OSError:
                continue
            if len(waiting[other]) < LIMIT:
                free_at[other] = max(free_at[other], time.monotonic()) + 8 * len(packet) / rate
                waiting[other].append((free_at[other] + delay, packet))


def main() -> None:
    one, other, device, milliseconds, rate = sys.argv[1:]
    ends = open_tun(one, device), open_tun(other, device)
    print("ready", flush=True)
    carry(ends, float(milliseconds) / 1000, float(rate))


if __name__ == "__main__":
    main()
