"""What is fuzzed: an entry point that takes bytes from a file or from the network, with real inputs to start from."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutation import Seed

#: Takes one input. It returns, or it raises a refusal; anything else is a failure.
Consume = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """An entry point. `open` prepares a folder of its own and returns the inputs to start from, and what takes one."""

    name: str
    open: Callable[[Path], tuple[Sequence[Seed], Consume]]
    #: Its part of the inputs of a run over all targets.
    share: float
    #: Inputs of the short form.
    short: int


TARGETS: dict[str, Target] = {}


def target(name: str, *, share: float, short: int) -> Callable[..., Callable[..., object]]:
    """Register a function as a target."""

    def add(function: Callable[[Path], tuple[Sequence[Seed], Consume]]) -> Callable[..., object]:
        TARGETS[name] = Target(name, function, share, short)
        return function

    return add


def refusals() -> tuple[type[BaseException], ...]:
    """Return the errors that are answers: the command line prints them as one sentence."""
    from farfield.errors import UserError
    from farfield.federation.federation import FederationError

    return (UserError, FederationError)


def command(*arguments: str) -> int:
    """Run `farfield` in this process as its entry point does, without its output; return the exit code."""
    from farfield.cli.main import command_line

    try:
        with quiet():
            command_line().main([str(argument) for argument in arguments], standalone_mode=False)
    except SystemExit as end:
        return int(end.code or 0)
    except OSError:  # a sentence and exit code 1 or 2
        return 2
    except Exception as error:
        if type(error).__module__.split(".")[0] in ("click", "typer"):
            return 2
        raise
    return 0


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what is printed away, also what writes to the descriptors themselves."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def memory_folder() -> Path:
    """Return a folder for work files: in memory where the machine has one."""
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))
