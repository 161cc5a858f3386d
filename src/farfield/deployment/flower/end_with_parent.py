"""Run a command that ends when its parent process does: `python end_with_parent.py PARENT_PID COMMAND ...`.

If farfield were killed, Flower's processes would run on and hold a port. This runs as a file, not as a module, so that
it imports only what is named below.
"""

import os
import signal
import subprocess
import sys

#: Seconds between two looks for the parent.
LOOK = 0.5


def main(parent: int, command: list[str]) -> int:
    """Run the command and return its exit code. When the parent is gone, end the whole group of processes."""
    child = subprocess.Popen(command, close_fds=False)  # with the files that this process was handed, if any
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while True:
        try:
            return child.wait(LOOK)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
