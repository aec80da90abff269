"""What clients, benchmarks and monitoring meet: names, keys, metrics, time limits."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from deployer.sglang.flags.extra import secret_looking
from deployer.sglang.flags.versions import known_versions
from deployer.sglang.rules.base import Hit, Severity, Theme
from deployer.sglang.rules.facts import GIB, Facts

THEME = Theme("serving", "Serving and secrets")

#: SGLang's default of --watchdog-timeout, in seconds.
WATCHDOG = 300.0


@THEME.rule("running-below-levels")
def running_below_levels(facts: Facts) -> Iterator[Hit]:
    most = facts.at_a_time
    above = [level for level in facts.levels if most is not None and level > most]
    if above:
        limit = "max_running_requests" if facts.cap is None else f"loop {facts.profile.loop_size} x cap {facts.cap}"
        yield Hit(
            f"at most {most} run at a time ({limit}), so {', '.join(f'C={level}' for level in above)} "
            f"would have {', '.join(str(level - (most or 0)) for level in above)} waiting"
        )


@THEME.rule("served-name-colon")
def served_name_colon(facts: Facts) -> Iterator[Hit]:
    name = facts.service.served_model_name
    if name and ":" in name and not name.startswith(("s3://", "gs://", "az://")):
        place = ("services", facts.service.name, "served_model_name")
        yield Hit(f"{name!r}", place, None if facts.since("0.5.9") else Severity.WARNING)


@THEME.rule("open-without-key")
def open_without_key(facts: Facts) -> Iterator[Hit]:
    if facts.service.api_key is None and not ipaddress.ip_address(facts.service.bind).is_loopback:
        yield Hit(
            f"bound to {facts.service.bind}:{facts.service.port} without an api_key",
            ("services", facts.service.name, "bind"),
        )


@THEME.rule("api-key-shown")
def api_key_shown(facts: Facts) -> Iterator[Hit]:
    if facts.service.api_key is None:
        return
    who = f"SGLang {facts.version}" if facts.version else "every known version of SGLang"
    beyond = facts.version is not None and facts.version > known_versions()[-1]
    prints = "probably prints" if beyond else "prints"
    yield Hit(
        f"{who} {prints} the key into the journal of {facts.host.name} at each start, where root and the groups "
        "systemd-journal and adm can read it",
        ("services", facts.service.name, "api_key"),
    )


@THEME.rule("secret-argument")
def secret_argument(facts: Facts) -> Iterator[Hit]:
    for option, (_, value) in facts.extra.items():
        if secret_looking(option, value):
            yield Hit(f"{option} looks like a secret, which must not be on a command line", facts.at(option))


@THEME.rule("metrics-off")
def metrics_off(facts: Facts) -> Iterator[Hit]:
    if not facts.on("--enable-metrics"):
        yield Hit("--enable-metrics is not set", ("services", facts.service.name, "extra_args"))


@THEME.rule("skip-server-warmup")
def skip_server_warmup(facts: Facts) -> Iterator[Hit]:
    if facts.on("--skip-server-warmup"):
        yield Hit("/health says nothing about readiness", facts.at("--skip-server-warmup"))


@THEME.rule("watchdog-short")
def watchdog_short(facts: Facts) -> Iterator[Hit]:
    value = facts.number("--watchdog-timeout")
    if value is not None and value < WATCHDOG:
        yield Hit(f"{value:g} s", facts.at("--watchdog-timeout"))


@THEME.rule("start-deadline")
def start_deadline(facts: Facts) -> Iterator[Hit]:
    reading, limit = (facts.seen.weight_bytes or 0) / GIB, facts.service.deadlines.start
    if limit < reading + 120:
        yield Hit(
            f"{limit:g} s; reading {reading:.0f} GiB at 1 GiB/s takes {reading:.0f} s before capture begins",
            ("services", facts.service.name, "deadlines", "start"),
        )


@THEME.rule("hub-download")
def hub_download(facts: Facts) -> Iterator[Hit]:
    if not facts.service.model.startswith("/"):
        yield Hit(f"{facts.service.model} is downloaded from the hub", ("services", facts.service.name, "model"))


@THEME.rule("hub-offline")
def hub_offline(facts: Facts) -> Iterator[Hit]:
    offline = facts.truthy("HF_HUB_OFFLINE") or facts.truthy("TRANSFORMERS_OFFLINE")
    if offline and not facts.service.model.startswith("/"):
        yield Hit(f"{facts.service.model} must already be in the cache", ("services", facts.service.name, "model"))
