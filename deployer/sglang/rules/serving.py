"""What clients, benchmarks and monitoring meet: names, keys, metrics, time limits."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from deployer.sglang.flags.extra import secret_looking
from deployer.sglang.rules.base import Hit, Need, Severity, Theme
from deployer.sglang.rules.facts import GIB, Facts

THEME = Theme("serving", "Serving and secrets")

#: SGLang's default of --watchdog-timeout, in seconds.
WATCHDOG = 300.0


@THEME.rule(
    "running-below-levels",
    Severity.WARNING,
    "a benchmark level is above what can run at a time",
    about="""Requests above the limit wait in the queue, so a level above it measures the limit instead of the
    level: throughput stays the same, times to the first token grow. In a pipeline the limit is
    min(max_running_requests, loop size x micro-batch cap).""",
    remedy="raise limits.max_running_requests (or the micro-batch cap), or leave the level out of bench.levels",
    references=["0.5.12.post1:srt/managers/scheduler.py:2607", "0.5.23:srt/managers/scheduler.py:4034"],
)
def running_below_levels(facts: Facts) -> Iterator[Hit]:
    most = facts.at_a_time
    above = [level for level in facts.levels if most is not None and level > most]
    if above:
        limit = (
            "max_running_requests"
            if facts.cap is None
            else f"loop {facts.profile.loop_size} x cap {facts.cap}"
        )
        yield Hit(
            f"at most {most} run at a time ({limit}), so {', '.join(f'C={level}' for level in above)} "
            f"would have {', '.join(str(level - (most or 0)) for level in above)} waiting"
        )


@THEME.rule(
    "served-name-colon",
    Severity.ERROR,
    "no colon in the served model name",
    about="""A colon separates model and adapter (model:adapter), so an assertion refuses it in
    --served-model-name. It is in 0.5.9 and later; addresses of object stores (s3://, gs://, az://) are
    accepted.""",
    remedy="use another character, such as -",
    references=["0.5.9:srt/server_args.py:5157", "0.5.23:srt/arg_groups/validation_hook.py:216"],
)
def served_name_colon(facts: Facts) -> Iterator[Hit]:
    name = facts.service.served_model_name
    if name and ":" in name and not name.startswith(("s3://", "gs://", "az://")):
        place = ("services", facts.service.name, "served_model_name")
        yield Hit(f"{name!r}", place, None if facts.since("0.5.9") else Severity.WARNING)


@THEME.rule(
    "open-without-key",
    Severity.WARNING,
    "the endpoint is open to the network without a key",
    about="""SGLang has no user accounts: whoever reaches the port may generate, read /server_info and, without
    an admin key, flush the cache or change settings of the running server.""",
    remedy="set the service's api_key, bind to 127.0.0.1 behind a proxy, or keep the port behind a firewall",
    references=["0.5.23:srt/utils/auth.py"],
)
def open_without_key(facts: Facts) -> Iterator[Hit]:
    if facts.service.api_key is None and not ipaddress.ip_address(facts.service.bind).is_loopback:
        yield Hit(
            f"bound to {facts.service.bind}:{facts.service.port} without an api_key",
            ("services", facts.service.name, "bind"),
        )


@THEME.rule(
    "api-key-shown",
    Severity.ADVICE,
    "SGLang shows the API key on the host",
    about="""deployer passes the key in a file that only its owner can read, but SGLang prints it to its journal
    (the line server_args=), shows it in /server_info to whoever has a key, and copies it into benchmark files
    of its own.""",
    remedy="give access to the host's journal only to those who may have the key",
    references=["measured: 0.5.23"],
)
def api_key_shown(facts: Facts) -> Iterator[Hit]:
    if facts.service.api_key is not None:
        yield Hit("the key is in the unit's journal", ("services", facts.service.name, "api_key"))


@THEME.rule(
    "secret-argument",
    Severity.ERROR,
    "a secret among the flags",
    about="""Everybody on the host can read a command line (ps), and it ends up in the unit, the journal and
    /server_info.""",
    remedy="""for the API key use the service's api_key; otherwise a secret environment variable ({env = ".."},
    {file = ".."} or {command = [..]}) if SGLang reads one""",
    references=["measured: 0.5.23 prints server_args="],
)
def secret_argument(facts: Facts) -> Iterator[Hit]:
    for option, (_, value) in facts.extra.items():
        if secret_looking(option, value):
            yield Hit(f"{option} looks like a secret, which must not be on a command line", facts.at(option))


@THEME.rule(
    "metrics-off",
    Severity.WARNING,
    "without metrics foreign traffic goes unnoticed",
    about="""The counters of /metrics show whether somebody else used the server during a benchmark, and how
    many requests are in flight before it is stopped. SGLang has them only with --enable-metrics.""",
    remedy="set extra_args.enable-metrics = true in the service",
    references=["docs/benchmark.md", "0.5.23: /metrics only with --enable-metrics"],
)
def metrics_off(facts: Facts) -> Iterator[Hit]:
    if not facts.on("--enable-metrics"):
        yield Hit("--enable-metrics is not set", ("services", facts.service.name, "extra_args"))


@THEME.rule(
    "skip-server-warmup",
    Severity.WARNING,
    "the server's own warm-up is skipped",
    about="""With --skip-server-warmup /health is 200 at once, before anything was generated, and the first
    request waits for kernels that are compiled on first use.""",
    remedy="leave extra_args.skip-server-warmup out",
    references=["measured: 0.5.11 and 0.5.23"],
)
def skip_server_warmup(facts: Facts) -> Iterator[Hit]:
    if facts.on("--skip-server-warmup"):
        yield Hit("/health says nothing about readiness", facts.at("--skip-server-warmup"))


@THEME.rule(
    "watchdog-short",
    Severity.WARNING,
    "the watchdog's time is shorter than SGLang's default",
    about="""The watchdog ends the server when a forward pass makes no progress for --watchdog-timeout seconds
    (it fires after 1.0 to 1.5 times that). First passes compile kernels; 300 s, the default, has been too short
    for some.""",
    remedy="leave it at 300 or raise it; 0 or a very large number turns it off",
    references=["issue 3752", "issue 5862", "issue 33642"],
)
def watchdog_short(facts: Facts) -> Iterator[Hit]:
    value = facts.number("--watchdog-timeout")
    if value is not None and value < WATCHDOG:
        yield Hit(f"{value:g} s", facts.at("--watchdog-timeout"))


@THEME.rule(
    "start-deadline",
    Severity.ADVICE,
    "the time allowed for a start is short for these weights",
    about="""deadlines.start covers load, KV pool, capture and warm-up. Loads of 32 minutes (163 shards) and
    captures of 22 minutes have been reported; a disk that reads 1 GiB a second is a good one. A failure is
    proven by the log and the unit, so a long deadline costs nothing when something goes wrong.""",
    remedy="raise services.NAME.deadlines.start; the default is 2700 s",
    references=["issue 5457", "issue 4233"],
    needs=[Need.WEIGHTS],
)
def start_deadline(facts: Facts) -> Iterator[Hit]:
    reading, limit = (facts.seen.weight_bytes or 0) / GIB, facts.service.deadlines.start
    if limit < reading + 120:
        yield Hit(
            f"{limit:g} s; reading {reading:.0f} GiB at 1 GiB/s takes {reading:.0f} s before capture begins",
            ("services", facts.service.name, "deadlines", "start"),
        )


@THEME.rule(
    "hub-download",
    Severity.ADVICE,
    "the model is a hub id, not a path",
    about="""SGLang downloads what is not in the cache (HF_HOME) before it loads: minutes to hours that count as
    launch, and tomorrow it may be another revision.""",
    remedy="put the checkpoint on the host and set its path",
    references=["0.5.23:srt/utils/hf_transformers_utils.py"],
)
def hub_download(facts: Facts) -> Iterator[Hit]:
    if not facts.service.model.startswith("/"):
        yield Hit(
            f"{facts.service.model} is downloaded from the hub", ("services", facts.service.name, "model")
        )


@THEME.rule(
    "hub-offline",
    Severity.WARNING,
    "a hub id while the hub is turned off",
    about="""With HF_HUB_OFFLINE=1 nothing is downloaded: a hub id works only while the whole model is in the
    cache of the user that the server runs as; otherwise the start fails with "couldn't connect to
    huggingface.co".""",
    remedy="set the model's path on the host, or remove HF_HUB_OFFLINE",
    references=["measured: 0.5.23 (transformers/utils/hub.py)"],
)
def hub_offline(facts: Facts) -> Iterator[Hit]:
    offline = facts.truthy("HF_HUB_OFFLINE") or facts.truthy("TRANSFORMERS_OFFLINE")
    if offline and not facts.service.model.startswith("/"):
        yield Hit(
            f"{facts.service.model} must already be in the cache", ("services", facts.service.name, "model")
        )
