"""docs/doctor.md, made from the checks. ``python -m tools.reference.doctor`` writes it."""

from __future__ import annotations

from pathlib import Path

from deployer.inspect.doctor import THEMES
from deployer.inspect.doctor.collect import ASKED, FEWER_LINES, HEALTH_SECONDS

_HEAD = """\
# Doctor

`deployer doctor` looks once at a running service and its host and says what may make it slower or worse than it could
be:

    deployer doctor                  the GPUs are watched for 5 s; it takes less than 15 s in all
    deployer doctor --seconds 20     watched for longer
    deployer doctor --json           one document

It changes nothing and takes no lease. It asks for {asked}. `/health` is given {health:g} s.

All questions are asked side by side. nvidia-smi has 5 s: one that does not answer, or prints without end, is ended
and is a finding of its own (`gpus-unseen`). What does not answer in time is left out, and the checks that need it say
so. On a machine so busy that the command's own start takes more than 7 s, GPUs are watched for less than was asked (1 s
at least), the newest {fewer} lines are read, and the report says so; at a load of 10 on two processors it took 9 to 25
s in all, on an idle one 8.

Somebody else's change of the host is a finding (`change-under-way`) that says whose it is. A candidate on its way is no
dead service then: `not-serving` tells its phase, and that it should be left alone.

A finding has the figures and log lines that show it, and what to try next: a **hypothesis to measure**, with the
command that measures it. What helped on one machine did harm on another, so nothing here is a verdict; only a
benchmark is. What was looked at and is fine is listed too, and so is what could not be looked at, with the reason.

Exit code 6 where nothing healthy serves (`not-serving`), else 0, whatever else was found.

Under a pipeline three numbers are easily misread. `#running-req` in the log, `num_running_reqs` in `/v1/loads` and the
gauge of that name in `/metrics` all count *one micro-batch*, the one in turn; there are `pp_size +
pp_async_batch_depth` of them. (SGLang 0.5.23, pp 2 with depth 2 and 8 requests under way: `/v1/loads` said 2.) The
queue, `#token`, the usage of the KV pool and the throughput are the whole server's. doctor therefore takes the number
of requests in all from the open connections to the port, and the mean size of a micro-batch from the growth of
`#token` from one decode line to the next.
"""


def reference() -> str:
    """The text of docs/doctor.md."""
    parts = [_HEAD.format(fewer=FEWER_LINES, asked="; ".join(ASKED), health=HEALTH_SECONDS)]
    for theme in THEMES:
        parts.append(f"## {theme.title}\n")
        for check in theme.checks:
            parts.append(f"### {check.id}\n\n*{check.severity}:* {check.title}.\n")
            parts.append(f"Trips when: {check.trips}.\n")
            parts.append(f"Next: {check.next}.\n")
            if check.measure:
                command = check.measure.format_map({"live": "LIVE", "profile": "PROFILE", "number": "N"})
                parts.append(f"    {command}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (Path(__file__).parents[2] / "docs" / "doctor.md").write_text(reference(), encoding="utf-8")
