"""What a running server says it was started with, against what was asked; and taking secrets out of text. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

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
_NOT_SECRET = {"None", "null", "True", "False", '""', "''", REDACTED}

#: One concept under several names: what was asked under the one may be shown under another.
_ALIASES = (
    ("cuda_graph_max_bs", "cuda_graph_max_bs_decode"),
    ("ep_size", "expert_parallel_size"),
    ("dp_size", "attn_dp_size"),
    ("tp_size", "tensor_parallel_size"),
    ("pp_size", "pipeline_parallel_size"),
    ("pp_max_micro_batch_size", "max_micro_batch_size"),
)


@dataclass(frozen=True)
class ArgumentCheck:
    """One argument: what was asked, what is in force, and a verdict.

    ``equal``, ``changed``, or ``missing`` (this version does not show it).
    """

    argument: str
    requested: Any
    effective: Any
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "argument": self.argument,
            "requested": self.requested,
            "effective": self.effective,
            "verdict": self.verdict,
        }


def redact(value: _T, secrets: Iterable[str] = ()) -> _T:
    """The same text or JSON without secrets: the given values, and whatever stands under a secret's name.

    In text that is ``--api-key X``, ``api_key='X'``, ``"api_key": "X"`` and ``Bearer X``.
    """
    known = sorted({secret for secret in secrets if len(secret) >= 4}, key=len, reverse=True)
    return cast(_T, _redact(value, known))


def effective_arguments(info: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in force, by SGLang's field names, from ``/server_info`` of any version.

    The top level (or its ``server_args``) holds what was resolved at the start, ``internal_states[0]`` what
    the scheduler works with: where it has a value, that one wins.
    """
    merged = {key: value for key, value in info.items() if key not in ("internal_states", "server_args")}
    merged.update(_mapping(info.get("server_args")))
    live = _first_state(info)
    for source in (_mapping(live.get("server_args")), live):
        merged.update({key: value for key, value in source.items() if value is not None or key not in merged})
    return merged


def compare(
    requested: Mapping[str, Any], info: Mapping[str, Any], secrets: Iterable[str] = ()
) -> list[ArgumentCheck]:
    """Every requested argument against what the server says, in the order asked; secrets as ``***``."""
    effective = effective_arguments(info)
    checks = []
    for argument, asked in requested.items():
        shown, value = _look_up(argument, effective)
        if _SECRET_KEY.fullmatch(argument):
            verdict = "equal" if shown and (value is not None) == (asked is not None) else "missing"
            checks.append(ArgumentCheck(argument, _hidden(asked), _hidden(value), verdict))
            continue
        verdict = "missing" if not shown else "equal" if _same(asked, value) else "changed"
        if argument == "max_running_requests" and verdict == "equal":
            ceiling = _ceiling(effective)
            if ceiling is not None and isinstance(asked, int) and ceiling < asked:
                verdict, value = "changed", ceiling
        checks.append(ArgumentCheck(argument, redact(asked, secrets), redact(value, secrets), verdict))
    return checks


def differences(checks: Iterable[ArgumentCheck]) -> list[ArgumentCheck]:
    """Those in force with another value than asked."""
    return [check for check in checks if check.verdict == "changed"]


def _redact(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, REDACTED)
        return _BEARER.sub(_hide, _IN_TEXT.sub(_hide, value))
    if isinstance(value, Mapping):
        return {
            key: _hidden(item) if _SECRET_KEY.fullmatch(str(key)) else _redact(item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(_redact(item, secrets) for item in value)
    return value


def _hide(found: re.Match[str]) -> str:
    value = found["value"]
    if value in _NOT_SECRET:
        return found[0]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{found['key']}{quote}{REDACTED}{quote}"


def _hidden(value: Any) -> Any:
    return REDACTED if value not in (None, "") else value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first_state(info: Mapping[str, Any]) -> Mapping[str, Any]:
    states = info.get("internal_states")
    if isinstance(states, list):
        return _mapping(states[0]) if states else {}
    return _mapping(states)


def _look_up(argument: str, effective: Mapping[str, Any]) -> tuple[bool, Any]:
    """Whether the argument is shown, and its value; newer versions keep graph settings in one config."""
    group: tuple[str, ...] = next((group for group in _ALIASES if argument in group), ())
    names = (argument, *(name for name in group if name != argument))
    shown = [effective[name] for name in names if name in effective]
    value = next((item for item in shown if item is not None), None)
    graphs = _mapping(_mapping(effective.get("cuda_graph_config")).get("decode"))
    if argument in ("cuda_graph_max_bs", "cuda_graph_max_bs_decode") and value is None and "max_bs" in graphs:
        return True, graphs["max_bs"]
    if argument == "disable_cuda_graph" and not value and "backend" in graphs:
        return True, graphs["backend"] == "disabled"
    return bool(shown), value


def _same(asked: Any, value: Any) -> bool:
    if isinstance(asked, bool) or isinstance(value, bool):
        flags = isinstance(asked, bool | None) and isinstance(value, bool | None)
        return flags and bool(asked) == bool(value)
    if _is_number(asked) and _is_number(value):
        return abs(float(asked) - float(value)) <= 1e-9 * max(1.0, abs(float(asked)))
    if isinstance(asked, list | tuple) and isinstance(value, list | tuple):
        return len(asked) == len(value) and all(_same(a, b) for a, b in zip(asked, value, strict=True))
    if isinstance(asked, list | tuple) and len(asked) == 1:
        return _same(asked[0], value)
    if isinstance(asked, str) and isinstance(value, Mapping | list):
        return bool(_parsed(asked) == value)
    if isinstance(asked, str) and isinstance(value, str):
        return asked == value or (len(asked) > 1 and asked.rstrip("/") == value.rstrip("/"))
    return bool(asked == value)


def _is_number(value: Any) -> bool:
    if isinstance(value, int | float):
        return True
    return isinstance(value, str) and bool(re.fullmatch(r"-?\d{1,15}(?:\.\d{1,12})?", value, re.ASCII))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _ceiling(effective: Mapping[str, Any]) -> int | None:
    """How many requests really run at once: what was asked is capped by the token pool, per data-parallel rank."""
    per_rank = effective.get("effective_max_running_requests_per_dp")
    ranks = effective.get("dp_size") or 1
    return per_rank * ranks if isinstance(per_rank, int) and isinstance(ranks, int) else None
