"""Counter-based randomness: a generator comes from a key, never from what ran before it.

The key says what the numbers are for, so the same key gives the same numbers in any process and in any order:

    generator(seed, round, client, "batches")
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch


def derive_seed(*key: int | str) -> int:
    """A number in [0, 2**63) that depends on every part of the key, on its type and on its place."""
    digest = blake2b(digest_size=8)
    for part in key:
        # The tag keeps 1 and "1" apart, the length keeps ("ab", "c") and ("a", "bc") apart.
        tag, content = (b"s", part) if isinstance(part, str) else (b"i", str(operator.index(part)))
        encoded = content.encode()
        digest.update(tag + len(encoded).to_bytes(8, "big") + encoded)
    return int.from_bytes(digest.digest(), "big") >> 1


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator of its own for this key.

    PyTorch's CPU generator reads only the low 32 bits of a seed, so among a million keys about a hundred pairs share
    a stream. That is harmless for shuffles and initial weights; do not build secrets on it.
    """
    return torch.Generator().manual_seed(derive_seed(*key))


def seed_layers(device: torch.device, seed: int) -> None:
    """Start what layers and losses draw from, on the CPU and on this device, with this seed."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Leave torch's own generators, the CPU's and this device's, as they were before."""
    if device.type == "mps":
        before = torch.mps.get_rng_state()
        with torch.random.fork_rng(devices=[]):
            yield
        torch.mps.set_rng_state(before)
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
