"""Flower's `flwr` command, which speaks to the running SuperLink as its operator.

One process runs all commands of a start, because a new Python takes more than a second for each, and a server may have
hundreds of keys to register. `flower_commands` is that process: it reads one command per line, and ends the output of
each with a line that no command prints.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from farfield.deployment.flower import flower_commands
from farfield.deployment.flower.private_files import UMASK
from farfield.deployment.flower.processes import END_SECONDS, ProcessError, environment

#: A file in the folder of Flower's files: the secret that this user's own requests show to the gate.
SECRET = "secret"
#: The name of the connection in Flower's own configuration.
LINK = "farfield"
#: Seconds that one command may take.
COMMAND_SECONDS = 120.0


def gated(folder: Path) -> list[str]:
    """Return the beginning of the commands that pass the gate of the server whose Flower files are in a folder."""
    return [sys.executable, "-P", flower_commands.__file__, str(folder / SECRET)]


class FlowerCommand:
    """Runs `flwr` against the server whose Flower files are in a folder. Its process starts with the first command."""

    def __init__(self, folder: Path, seconds: float = COMMAND_SECONDS) -> None:
        self._folder, self._seconds = folder, seconds
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command. Raises ProcessError if the SuperLink does not answer in time."""
        if self._process is None:
            self._process = self._start()
        process, late = self._process, threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self._seconds, give_up)
        timer.start()
        try:
            code, printed = self._ask(process, arguments)
        finally:
            timer.cancel()
        if late.is_set():
            self.end()
            raise ProcessError(
                f"the SuperLink has not answered in {self._seconds:g} s; try again, or stop the server first (see "
                f"'{self._folder / 'superlink.log'}')"
            )
        return subprocess.CompletedProcess(arguments, code, printed)

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*gated(self._folder), "flwr"],
            env=environment(self._folder / "home"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            umask=UMASK,
        )

    @staticmethod
    def _ask(process: subprocess.Popen[str], arguments: tuple[str, ...]) -> tuple[int, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its output says why
            process.stdin.write(json.dumps(arguments) + "\n")
            process.stdin.flush()
        printed: list[str] = []
        for line in process.stdout:
            if line.startswith(flower_commands.END_OF_OUTPUT):
                return int(line.removeprefix(flower_commands.END_OF_OUTPUT)), "".join(printed)
            printed.append(line)
        return process.wait() or 1, "".join(printed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End its process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def flower_error(text: str) -> str:
    """Return the error in the output of Flower's command: the one in its JSON, or its last line."""
    found = re.search(r'"error-message":\s*"((?:[^"\\]|\\.)*)"', text)
    if found:
        return " ".join(str(json.loads(f'"{found[1]}"')).split())
    lines = [line.strip(" │╭╰─╮╯{}") for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "it gave no reason")
