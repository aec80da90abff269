"""`python -m deployer`, and the `deployer` command."""

from __future__ import annotations

import contextlib
import gc
import os
import sys


def main() -> None:
    """Run the program. It is imported here, so that a Ctrl-C while it loads ends it as quietly as one later."""
    gc.set_threshold(50_000)  # what imports create stays; to look through it again and again is 4 % of a start
    try:
        from deployer.cli.main import run
    except KeyboardInterrupt:
        sys.exit(130)
    leave(run(sys.argv[1:]))


def leave(status: int) -> None:
    """End the process at once: taking all modules apart first would cost a third of the time it took to load them.

    Commands end their threads themselves; what still runs has nothing left to do.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the reader is gone; closed; no stream
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
