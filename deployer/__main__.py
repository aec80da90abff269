"""`python -m deployer`, and the `deployer` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program. Imported here, so that a Ctrl-C while it loads ends it as quietly as one later."""
    try:
        from deployer.cli.main import run
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
