"""Figures of earlier releases: what a start takes, how fast a benchmark was. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from deployer.deploy.model import Json


def earlier_start(manifests: Sequence[Json], profile: str) -> tuple[list[Json], str] | None:
    """The timeline of the last start of this profile that became ready, else of this service's, and its release.

    None without one. A start that failed on its way tells nothing of how long one takes.
    """
    known = [
        item for item in manifests if any(span.get("name") == "ready" for span in item.get("timeline") or ())
    ]
    same = [item for item in known if item.get("profile") == profile]
    chosen = same or known
    return (list(chosen[-1]["timeline"]), str(chosen[-1].get("release") or "")) if chosen else None


def summary(bench: Json) -> Json:
    """The few figures of a benchmark that `status` and `history` show."""
    return {
        "single_stream_tok_s": bench.get("single_stream_tok_s"),
        "levels": {
            str(level["concurrency"]): level.get("aggregate_tok_s") for level in bench.get("levels") or ()
        },
    }
