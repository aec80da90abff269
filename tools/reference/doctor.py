"""docs/doctor.md, made from the checks. ``python -m tools.reference.doctor`` writes it."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from deployer.inspect.doctor.checkup import THEMES
from deployer.inspect.doctor.collect import BUDGET, FEWER_LINES, HEALTH_SECONDS, RESERVE
from deployer.inspect.doctor.evidence import REQUESTS

_HEAD = """\
# Doctor

`deployer doctor` looks once at a running service and its host and reports what may make it slower or worse than it
could be:

    deployer doctor                  watches the GPUs for 5 s; takes less than 15 s in all
    deployer doctor --seconds 20     watches for longer
    deployer doctor --json           prints one JSON document

It changes nothing and takes no lease. It requests and reads:

{requests}

`/health` may take {health:g} s. All requests are made side by side. nvidia-smi has 5 s: one that does not answer, or
prints without end, is stopped and reported (`gpus-unseen`). What does not answer in time is left out, and what cannot
be judged without it is listed as unclear. If the machine is so busy that the command's own start takes more than
{late:g} s, doctor watches the GPUs for less than requested (at least 1 s), reads the newest {fewer} lines, and says so:
at a load of 10 on two processors it took 9 to 25 s in all, on an idle machine 8.

Somebody else's change of the host is reported (`change-under-way`) with its owner. While a candidate starts,
`not-serving` reports its phase and advises to leave it alone.

Every finding has the figures and log lines that show it, and what to try next: a **hypothesis to measure**, with the
command that measures it. What helped on one machine did harm on another, so only a benchmark is a verdict. What is fine
is listed too, and so is what is unclear, with the reason.

Exit code 6 if nothing healthy serves (`not-serving`), else 0, whatever else was found.

Under a pipeline three numbers are easily misread. `#running-req` in the log, `num_running_reqs` in `/v1/loads` and the
gauge of that name in `/metrics` all count *one micro-batch*, the one in turn; there are `pp_size +
pp_async_batch_depth` of them. (SGLang 0.5.23, pp 2 with depth 2 and 8 requests under way: `/v1/loads` reported 2.) The
queue, `#token`, the usage of the KV pool and the throughput are the whole server's. Therefore doctor takes the total
number of requests from the open connections to the port, and the mean size of a micro-batch from the growth of `#token`
from one decode line to the next.
"""


def reference() -> str:
    """Return the text of docs/doctor.md."""
    requests = "\n".join(f"* {item}" for item in REQUESTS)
    late = BUDGET - RESERVE
    parts = [_HEAD.format(fewer=FEWER_LINES, requests=requests, health=HEALTH_SECONDS, late=late)]
    for theme in THEMES:
        parts.append(f"## {theme.title}\n")
        for symptom in theme.symptoms:
            command = symptom.measure.format_map({"live": "LIVE", "profile": "PROFILE", "number": "N"})
            parts += [
                f"### {symptom.id}\n\n*{symptom.severity}:* {symptom.title}.\n",
                _wrapped(f"Trips when: {symptom.trips}."),
                _wrapped(f"Next: {symptom.next}."),
                f"    {command}\n",
            ]
    return "\n".join(parts)


def _wrapped(text: str) -> str:
    return fill(text, 100, break_long_words=False, break_on_hyphens=False) + "\n"


if __name__ == "__main__":
    (Path(__file__).parents[2] / "docs" / "doctor.md").write_text(reference(), encoding="utf-8")
