"""Run folders: what was configured, what happened, what came out, and how to go on after a kill.

Names are imported when they are first used: whoever only reads records, such as `farfield watch`, needs no torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farfield.records.errors import RecordsError
    from farfield.records.run import Checkpoint, RunFolder, difference, read_config, sole_writer, write_config

__all__ = ["Checkpoint", "RecordsError", "RunFolder", "difference", "read_config", "sole_writer", "write_config"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'farfield.records' has no attribute '{name}'")
        from pkgutil import resolve_name

        module = "farfield.records.errors" if name == "RecordsError" else "farfield.records.run"
        globals()[name] = value = resolve_name(f"{module}:{name}")
        return value
