"""Arrays that are computed on a GPU in a process of their own, for a process that must stay free of CUDA.

A bench forks a process for each run, and a process that has started CUDA cannot be forked for more of it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.errors import UserError
from farfield.reproducibility.devices import computing_on

Make = Callable[[], Iterator[NDArray[np.float32]]]


class ComputedApartError(UserError):
    """What the other process could not do."""


def computed_for(device: torch.device, make: Make) -> Iterator[NDArray[np.float32]]:
    """Yield the arrays that `make` gives: computed here, or in a forked process if the device is a CUDA GPU."""
    if device.type != "cuda" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with computing_on(device):
            yield from make()
        return
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_compute, args=(device, make, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield from _received(ours)
    finally:
        ours.close()
        process.terminate()
        process.join()


def _compute(device: torch.device, make: Make, connection: Connection) -> None:
    """Send each array as its number of rows and its bytes; at the end a zero, and the problem if there is one."""
    problem = ""
    try:
        with computing_on(device):
            for array in make():
                connection.send_bytes(len(array).to_bytes(8, "big"))
                connection.send_bytes(np.ascontiguousarray(array, dtype=np.float32).tobytes())
    except Exception as error:
        problem = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    connection.send_bytes((0).to_bytes(8, "big"))
    connection.send_bytes(problem.encode())


def _received(connection: Connection) -> Iterator[NDArray[np.float32]]:
    while True:
        try:
            rows, content = int.from_bytes(connection.recv_bytes(), "big"), connection.recv_bytes()
        except EOFError:
            raise ComputedApartError("the process that computed the features ended; start again") from None
        if rows:
            yield np.frombuffer(content, dtype=np.float32).reshape(rows, -1)
            continue
        if content:
            raise ComputedApartError(content.decode())
        return
