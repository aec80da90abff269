"""The load client as a program: ``python -m deployer.bench.load``, or its zipapp on a host.

It reads a JSON spec from stdin and the API key from ``DEPLOYER_BENCH_API_KEY``, and writes JSON lines to stdout:
progress, and last ``{"event": "result", "bench": {...}}``. Exit status: 0 measured (whatever the result), 2 the spec
is invalid, 130 interrupted (the result then says what was cut). ``--worker`` and ``--sampler`` are its further
processes.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the process that the arguments name."""
    if sys.argv[1:] == ["--sampler"]:
        from deployer.bench.load import sampler

        return sampler.main()
    # httpx's own command line, with click and rich, takes a third of its import; httpx does without it.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    from deployer.bench.load import client

    return client.worker() if sys.argv[1:] == ["--worker"] else client.main()


if __name__ == "__main__":
    sys.exit(main())
