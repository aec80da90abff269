"""What holds after every disturbed change, whatever it was."""

from __future__ import annotations

import json
from collections.abc import Iterator

from deployer.errors import DeployerError
from deployer.host.channel import FLAGS
from tests.e2e.conftest import Site
from tests.patience import until

#: States of a release that no change is under way for. One stays staged if the operator died before the transition.
SETTLED = {"live", "staged", "superseded", "failed", "abandoned", "interrupted", "inconclusive"}
#: How the agent was started, as pgrep and pkill match it.
AGENT = f"^[^ ]*python3 {' '.join(FLAGS)} -c import sys, zlib"
_PROCESSES = r"""
units=/sglang-[a-z]*\.service
for pid in $(pgrep -f '[s]glang\.launch_server|^sglang::'); do
    grep -q "$units" "/proc/$pid/cgroup" 2>/dev/null || echo "$pid $(tr '\0' ' ' < /proc/$pid/cmdline | head -c 80)"
done
"""


def violations(site: Site) -> Iterator[str]:
    """Yield what is not as it must be."""
    try:
        seen = site.status()
    except (AssertionError, ValueError) as error:
        yield f"status: {str(error)[:300]}"
        return
    live, unit = seen["live"], seen["unit"]
    if not live or live["release"] != unit["running"]:
        yield f"live is {live and live['release']}, running is {unit['running']}"
    if not seen["health"]["ok"]:
        yield f"health: {seen['health']['status']}"
    for name in ("candidate", "transition", "lease", "hold"):
        if seen[name] is not None:
            yield f"{name} is left: {seen[name]}"
    for text in seen["drift"]:
        yield f"drift: {text}"
    yield from _of_the_host(site)
    states = [item["state"] for item in site.json("history")["releases"]]
    if states.count("live") != 1 or not set(states) <= SETTLED:
        yield f"states of releases: {states}"
    try:
        again = site.json("apply", live["profile"], "--yes")
    except AssertionError as error:
        yield f"the next apply: {str(error)[:300]}"
    else:
        if again["outcome"] not in ("unchanged", "live"):
            yield f"the next apply: {again['outcome']}"


def _of_the_host(site: Site) -> Iterator[str]:
    def run(text: str) -> str:
        return site.host.run(["sh", "-c", text]).strip()

    try:
        until(lambda: run("systemctl is-active deployer-guard@kimi.service || true") in ("inactive", "failed"), 20.0)
        until(lambda: not run(f"pgrep -f '{AGENT}' || true"), 20.0)
    except AssertionError:
        yield "the guard or an agent still runs"
    if foreign := run(_PROCESSES):
        yield f"servers outside the unit: {foreign}"
    for line in run("cat /var/lib/deployer/kimi/audit.jsonl").splitlines():
        try:
            json.loads(line)
        except ValueError:
            yield f"a torn line of the audit: {line[:80]}"
    try:
        run("ls /var/lib/deployer/*.corrupt* /var/lib/deployer/kimi/*.corrupt* 2>/dev/null && exit 1 || exit 0")
    except DeployerError:
        yield "a state file was damaged and set aside"
