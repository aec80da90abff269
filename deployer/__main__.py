"""`python -m deployer`, and the `deployer` command. What is imported here, Python has loaded already."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the program. It is imported here, so that a Ctrl-C while it loads ends it as quietly as one later."""
    try:
        import signal

        usual = signal.getsignal(signal.SIGINT)
        if usual is signal.default_int_handler:
            # Raised amid an import, KeyboardInterrupt may become another error, or be lost in a callback.
            signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
        import gc

        gc.set_threshold(50_000)  # what imports create stays; to look through it again and again is 4 % of a start
        from deployer.cli.main import run

        signal.signal(signal.SIGINT, usual)
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        os._exit(130)
    leave(status)


def leave(status: int) -> None:
    """End the process at once: taking all modules apart first would cost a third of the time it took to load them.

    Commands end their threads themselves; what still runs has nothing left to do.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # the reader is gone; closed; no stream
            continue
    os._exit(status)


if __name__ == "__main__":
    main()
