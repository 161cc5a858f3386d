"""Run folders: what was configured, what happened, what came out, and how to go on after a kill."""

from farfield.records.run import Checkpoint, RecordsError, RunFolder, difference, read_config, sole_writer, write_config

__all__ = ["Checkpoint", "RecordsError", "RunFolder", "difference", "read_config", "sole_writer", "write_config"]
