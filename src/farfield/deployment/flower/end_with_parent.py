"""Runs a command that must not outlive whoever started it: `python end_with_parent.py PARENT_PID COMMAND ...`.

Flower's processes are started by ours; if ours is killed with no chance to tidy up, they would run on and hold a port.
Started as a file, not as a module, so that it imports nothing but what is below.
"""

import os
import signal
import subprocess
import sys

#: Seconds between looks.
LOOK = 0.5


def main(parent: int, command: list[str]) -> int:
    """The command's exit code. When the parent is gone, the whole group of processes is ended."""
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while True:
        try:
            return child.wait(LOOK)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
