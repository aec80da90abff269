"""Figures of earlier releases: what a start takes, how fast a benchmark was. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from deployer.deploy.model import Json


def estimate(manifests: Sequence[Json], profile: str) -> list[Json] | None:
    """The timeline of the last start of this profile, else of this service; None without one."""
    known = [item for item in manifests if item.get("timeline")]
    same = [item for item in known if item.get("profile") == profile]
    chosen = same or known
    return list(chosen[-1]["timeline"]) if chosen else None


def summary(bench: Json) -> Json:
    """The few figures of a benchmark that `status` and `history` show."""
    return {
        "single_stream_tok_s": bench.get("single_stream_tok_s"),
        "levels": {
            str(level["concurrency"]): level.get("aggregate_tok_s") for level in bench.get("levels") or ()
        },
    }
