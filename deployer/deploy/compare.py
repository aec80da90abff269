"""Finding the benchmark of a release by number, name or profile."""

from __future__ import annotations

import json

from deployer.deploy.model import Json
from deployer.deploy.session import Session
from deployer.errors import Refused


def read_bench(session: Session, wanted: str) -> tuple[str, Json]:
    """The release's name and its bench.json. ``wanted`` is a number, a release's name, or a profile (its newest)."""
    manifest = choose(session.state().releases, wanted)
    if manifest is None:
        raise Refused(
            f"no release {wanted!r} with a benchmark on {session.service.name}",
            remedy="`deployer history` lists the releases and their speeds",
        )
    text = session.client.release_read(session.service.name, manifest["release"], ["bench.json"]).files[
        "bench.json"
    ]
    if text is None:
        raise Refused(f"release {manifest['release']} has no benchmark: it did not come that far")
    bench: Json = json.loads(text)
    return manifest["release"], bench


def choose(manifests: tuple[Json, ...], wanted: str) -> Json | None:
    """The release meant by ``wanted``; by profile the newest that was benchmarked."""
    for manifest in manifests:
        if wanted in (str(manifest.get("number")), manifest.get("release")):
            return manifest
    measured = [item for item in manifests if item.get("profile") == wanted and item.get("bench_summary")]
    return measured[-1] if measured else None
