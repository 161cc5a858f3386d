"""Fuzz one target in this process: `python -m tests.fuzz.worker TARGET INPUTS SEED ENGINE FOLDER`.

Started by `tests.fuzz.run`, which watches it. The figures go to a small file in memory that the parent reads at any
time, together with the input that is at work, so that a hang or a kill leaves the input behind.
"""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import os
import random
import resource
import struct
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Inputs, refusals, failures, peak memory in KiB, memory before the first input in KiB, length of the input at work.
FIGURES = struct.Struct("6Q")
LARGEST = 1 << 20
#: One input may not raise the peak of the process by more than this many bytes.
MOST_MEMORY = 600 << 20
#: Inputs that are kept for each place that fails.
KEPT = 3


def _kept_module(name: str) -> bool:
    return name == "farfield" or name.startswith("farfield.")


class Counter:
    """Runs inputs, counts them, and keeps those that fail."""

    def __init__(self, folder: Path, consume: Any, refused: tuple[type[BaseException], ...]) -> None:
        self._consume, self._refused, self._folder = consume, refused, folder
        self._file = open(folder / "figures", "r+b")  # noqa: SIM115, held until the process ends
        self._map = mmap.mmap(self._file.fileno(), FIGURES.size + LARGEST)
        self.figures = list(FIGURES.unpack_from(self._map))
        self._peak = self.figures[4] = _peak()
        self._places: dict[str, int] = {}

    def take(self, data: bytes) -> None:
        """Run one input."""
        shown = data[:LARGEST]
        self._map[FIGURES.size : FIGURES.size + len(shown)] = shown
        self.figures[5] = len(shown)
        FIGURES.pack_into(self._map, 0, *self.figures)
        problem = None
        try:
            self._consume(data)
        except self._refused:
            self.figures[1] += 1
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            problem = error
        self.figures[0] += 1
        peak = _peak()
        grown, self._peak = (peak - self._peak) * 1024, peak
        self.figures[3] = peak
        if problem is not None:
            self._fail(data, _place(problem), "".join(traceback.format_exception(problem)))
        elif grown > MOST_MEMORY:
            self._fail(data, "memory", f"this input takes {grown >> 20} MB\n")
        FIGURES.pack_into(self._map, 0, *self.figures)

    def _fail(self, data: bytes, place: str, text: str) -> None:
        self.figures[2] += 1
        self._places[place] = self._places.get(place, 0) + 1
        if self._places[place] <= KEPT:
            name = f"{hashlib.sha256(place.encode()).hexdigest()[:8]}-{self._places[place]}"
            (self._folder / f"{name}.bin").write_bytes(data)
            (self._folder / f"{name}.txt").write_text(f"{place}\n{text}", errors="replace")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _place(error: BaseException) -> str:
    """Name a failure by its class and the last line of Farfield's own code in it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f"{frame.filename.split('/farfield/')[-1]}:{frame.lineno}" for frame in frames if "/farfield/" in frame.filename
    ]
    return f"{type(error).__name__} at {own[-1] if own else 'the target itself'}"


def main(name: str, inputs: int, seed: int, engine: str, folder: Path) -> None:
    """Run so many inputs through a target."""
    warnings.simplefilter("ignore")
    if engine == "guided" and importlib.util.find_spec("atheris") is None:
        engine = "random"
    if engine == "guided":
        import atheris

        with atheris.instrument_imports(include=["farfield"], enable_loader_override=False):
            seeds, counter = _open(name, folder)
        _guided(seeds, counter, inputs, seed, folder)
    else:
        seeds, counter = _open(name, folder)
        chance = random.Random(seed)
        from tests.fuzz.mutation import mutate

        while counter.figures[0] < inputs:
            counter.take(mutate(chance.choice(seeds), chance))
    os._exit(0)


def _open(name: str, folder: Path) -> tuple[Sequence[Any], Counter]:
    import torch

    from tests.fuzz.all_targets import TARGETS
    from tests.fuzz.target import refusals

    torch.set_num_threads(1)
    work = folder / "work"
    work.mkdir()
    seeds, consume = TARGETS[name].open(work)
    for each in seeds[:: max(1, len(seeds) // 7)]:  # what was not changed must pass, or no later answer means anything
        consume(each.data)
    return seeds, Counter(folder, consume, refusals())


def _guided(seeds: Sequence[Any], counter: Counter, inputs: int, seed: int, folder: Path) -> None:
    """Let libFuzzer choose by coverage which inputs to change further; changes are its own and ours in turn."""
    import atheris

    from tests.fuzz.mutation import Seed, mutate

    corpus = folder / "corpus"
    corpus.mkdir()
    for number, each in enumerate(seeds):
        (corpus / str(number)).write_bytes(each.data)
    formats = {each.prefix: each.format for each in seeds}
    prefixes = sorted(formats, key=len, reverse=True)

    def change(data: bytes, most: int, number: int) -> bytes:
        prefix = next((each for each in prefixes if data.startswith(each)), None)
        if prefix is None:
            return bytes(atheris.Mutate(data, most))
        chance = random.Random(number)
        body = data[len(prefix) :]
        if chance.random() < 0.4:
            return prefix + bytes(atheris.Mutate(body, max(1, most - len(prefix))))
        return mutate(Seed(body, formats[prefix], prefix), chance)[:most]

    longest = max(4096, *(4 * len(each.data) for each in seeds))
    arguments = [
        sys.argv[0], str(corpus), f"-runs={inputs}", f"-seed={seed % 2**31 or 1}", f"-max_len={longest}",
        "-timeout=120", "-rss_limit_mb=0", "-print_final_stats=0", "-verbosity=0", "-len_control=0",
        f"-artifact_prefix={folder}/",
    ]  # fmt: skip

    def one(data: bytes) -> None:
        counter.take(data)
        if counter.figures[0] >= inputs:  # libFuzzer counts the seeds apart
            os._exit(0)

    atheris.Setup(arguments, one, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
