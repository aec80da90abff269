"""`python -m deployer`, and the `deployer` command."""

from __future__ import annotations

import contextlib
import os
import sys


def main() -> None:
    """Run the program. Imported here, so that a Ctrl-C while it loads ends it as quietly as one later."""
    try:
        from deployer.cli.main import run
    except KeyboardInterrupt:
        sys.exit(130)
    leave(run(sys.argv[1:]))


def leave(status: int) -> None:
    """End the process at once: to take all modules apart first costs a third of what it took to load them.

    Whatever runs beside this has nothing left to do: commands end their threads themselves.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a reader that left; closed; none
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
