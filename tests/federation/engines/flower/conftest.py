"""These tests need `farfield[flower]`."""

from importlib.util import find_spec

from tests.clock_of_sleeps import clock_of_sleeps

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]

__all__ = ["clock_of_sleeps"]
