"""A running server's own arguments, compared with the requested ones; and removing secrets from text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from deployer.records.effect import ArgumentInEffect
from deployer.sglang.log.changed_values import reason
from deployer.sglang.server.equality import same

REDACTED = "***"

_T = TypeVar("_T")
_SECRET_NAME = (
    r"(?:[a-z0-9]{1,30}[_-]){0,4}(?:api[_-]?key|password|secret|auth[_-]?token|access[_-]?token|hf[_-]?token|hub[_-]?token"
    r"|watermark[_-]key(?:[_-]b)?)"
)
_SECRET_KEY = re.compile(_SECRET_NAME, re.IGNORECASE)
_IN_TEXT = re.compile(
    rf"(?P<key>(?<![A-Za-z0-9])(?:--)?{_SECRET_NAME}['\"]?(?:\s*[=:]\s*|\s+(?=[^\s-])))"
    r"(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s,;'\")}\]]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<key>\bBearer\s+)(?P<value>[^\s'\",]+)", re.IGNORECASE)
#: One of these is in every secret's name: a text without any of them holds no secret.
_NAMES = ("key", "password", "secret", "auth", "access", "hf", "hub", "bearer")
#: The least number of characters of a long text that are searched together.
_CHUNK = 1 << 14
_NOT_SECRET = {"None", "null", "True", "False", '""', "''", REDACTED}

#: One concept under several names: what was requested under one may be shown under another.
_ALIASES = (
    ("cuda_graph_max_bs", "cuda_graph_max_bs_decode"),
    ("ep_size", "expert_parallel_size"),
    ("dp_size", "attn_dp_size"),
    ("tp_size", "tensor_parallel_size"),
    ("pp_size", "pipeline_parallel_size"),
    ("pp_max_micro_batch_size", "max_micro_batch_size"),
)


def redact(value: _T, secrets: Iterable[str] = ()) -> _T:
    """Return the same text or JSON without secrets: the given values, and whatever has a secret's name.

    In text that is ``--api-key X``, ``api_key='X'``, ``"api_key": "X"`` and ``Bearer X``.
    """
    longest_first = sorted({secret for secret in secrets if len(secret) >= 4}, key=len, reverse=True)
    return cast(_T, _redact(value, longest_first))


def effective_arguments(info: Mapping[str, Any], rank: int = 0) -> dict[str, Any]:
    """Return the arguments in effect, by SGLang's field names, from ``/server_info`` of any version.

    The top level (or its ``server_args``) holds what was resolved at the start, ``internal_states[rank]`` what the
    scheduler of that data-parallel rank uses: if it has a value, that one wins.
    """
    merged = {key: value for key, value in info.items() if key not in ("internal_states", "server_args")}
    merged.update(mapping(info.get("server_args")))
    states = internal_states(info)
    live = states[rank] if rank < len(states) else {}
    for source in (mapping(live.get("server_args")), live):
        merged.update({key: value for key, value in source.items() if value is not None or key not in merged})
    return merged


def internal_states(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what each data-parallel rank's scheduler reports of itself; empty if the version does not report it."""
    states = info.get("internal_states")
    listed = states if isinstance(states, list) else [states]
    return [state for state in listed if isinstance(state, Mapping)]


def compare(
    requested: Mapping[str, Any],
    info: Mapping[str, Any],
    secrets: Iterable[str] = (),
    lines: Sequence[str] = (),
) -> list[ArgumentInEffect]:
    """Compare every requested argument with the server's, in the given order; secrets are ``***``.

    ``lines`` is the start's log, for the reasons of changes. An argument has changed if any data-parallel rank has
    another value.
    """
    views = [effective_arguments(info, rank) for rank in range(max(1, len(internal_states(info))))]
    checks = []
    for argument, value in requested.items():
        by_rank = [_check(argument, value, view) for view in views]
        check = next((one for one in by_rank if one.verdict == "changed"), by_rank[0])
        if check.verdict == "changed":
            check = replace(check, reason=redact(reason(argument, lines), secrets))
        if not is_secret(argument):
            check = replace(
                check, requested=redact(check.requested, secrets), effective=redact(check.effective, secrets)
            )
        checks.append(check)
    return checks


def defaulted(
    requested: Mapping[str, Any],
    info: Mapping[str, Any],
    defaults: Mapping[str, Any],
    secrets: Iterable[str] = (),
    lines: Sequence[str] = (),
) -> list[ArgumentInEffect]:
    """Return the arguments that were not requested, by name, with the version's ``defaults`` (name -> value).

    A default that SGLang filled in or changed has the log's reason, if the log gives one.
    """
    effective = effective_arguments(info)
    requested_names = {name for argument in requested for name in aliases(argument)}
    checks = []
    for argument in sorted(set(defaults) - requested_names):
        if argument not in effective:
            continue
        default, value = defaults[argument], effective[argument]
        why = None if same(default, value) else redact(reason(argument, lines), secrets)
        if is_secret(argument):
            default, value = _hidden(default), _hidden(value)
        checks.append(ArgumentInEffect(argument, default, redact(value, secrets), "defaulted", why))
    return checks


def aliases(argument: str) -> tuple[str, ...]:
    """Return an argument's name, and the names that other versions have for the same concept."""
    group: tuple[str, ...] = next((group for group in _ALIASES if argument in group), ())
    return (argument, *(name for name in group if name != argument))


def is_secret(argument: str) -> bool:
    """Return whether an argument's value must never be shown."""
    return bool(_SECRET_KEY.fullmatch(argument))


def mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a table, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _redact(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, REDACTED)
        return _in_text(value)
    if isinstance(value, Mapping):
        return {
            key: _hidden(item) if _SECRET_KEY.fullmatch(str(key)) else _redact(item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(_redact(item, secrets) for item in value)
    return value


def _in_text(text: str) -> str:
    """Return a text without its secrets; only parts of a long text that name any are searched in full.

    Such a part is searched together with the next one, because a value may be on the line after its name.
    """
    done, named = [], list[str]()
    for part in _parts(text):
        low = part.lower()
        named.append(part)
        if not any(word in low for word in _NAMES):
            done.append(_hide_all("".join(named)) if len(named) > 1 else part)
            named.clear()
    return "".join([*done, _hide_all("".join(named))])


def _parts(text: str) -> Iterator[str]:
    """Yield a text in parts of whole lines, of `_CHUNK` characters and the rest of a line."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _CHUNK) + 1 or len(text)
        yield text[start:end]
        start = end


def _hide_all(text: str) -> str:
    return _BEARER.sub(_hide, _IN_TEXT.sub(_hide, text))


def _hide(match: re.Match[str]) -> str:
    value = match["value"]
    if value in _NOT_SECRET:
        return match[0]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{match['key']}{quote}{REDACTED}{quote}"


def _hidden(value: Any) -> Any:
    return REDACTED if value not in (None, "") else value


def _check(argument: str, requested: Any, effective: Mapping[str, Any]) -> ArgumentInEffect:
    shown, value = _look_up(argument, effective)
    if is_secret(argument):
        verdict = "equal" if shown and (value is not None) == (requested is not None) else "missing"
        return ArgumentInEffect(argument, _hidden(requested), _hidden(value), verdict)
    if not shown:
        return ArgumentInEffect(argument, requested, None, "missing")
    if not same(requested, value):
        return ArgumentInEffect(argument, requested, value, "changed")
    if argument == "max_running_requests":
        ceiling = running_ceiling(effective)
        if ceiling is not None and isinstance(requested, int) and ceiling < requested:
            return ArgumentInEffect(argument, requested, ceiling, "changed")
    return ArgumentInEffect(argument, requested, value, "equal")


def _look_up(argument: str, effective: Mapping[str, Any]) -> tuple[bool, Any]:
    """Return whether the argument is shown, and its value; newer versions keep graph settings in one config."""
    shown = [effective[name] for name in aliases(argument) if name in effective]
    value = next((item for item in shown if item is not None), None)
    graphs = mapping(mapping(effective.get("cuda_graph_config")).get("decode"))
    if argument in ("cuda_graph_max_bs", "cuda_graph_max_bs_decode") and value is None and "max_bs" in graphs:
        return True, graphs["max_bs"]
    if argument == "disable_cuda_graph" and not value and "backend" in graphs:
        return True, graphs["backend"] == "disabled"
    return bool(shown), value


def running_ceiling(effective: Mapping[str, Any]) -> int | None:
    """Return how many requests can really run at once: the token pool of each data-parallel rank limits them."""
    per_rank = effective.get("effective_max_running_requests_per_dp")
    ranks = effective.get("dp_size") or 1
    return per_rank * ranks if isinstance(per_rank, int) and isinstance(ranks, int) else None
