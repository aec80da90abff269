"""The answers of an engine's endpoints without their values: paths of fields and the types found there.

The same questions are put to the real SGLang and to its stand-in. What the real one answered is kept in
`tests/data/engine/answers-<version>.json`, so that the stand-in is held to it where the real one is not at hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

Shape = dict[str, str]
"""Type by path: ``internal_states[].memory_usage.weight`` -> ``number``."""

_STATE = "internal_states[]."
#: Of these fields the values are compared: they are words of the interface.
_WORDS = ("object", "finish_reason", "finish_reason.type", "role")

_ROUND = {"prompt": "the of and", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
_CHAT = {"messages": [{"role": "user", "content": "the of"}], "max_tokens": 4, "temperature": 0}
_OWN = {"text": "the of and", "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}
_USAGE = {"stream": True, "stream_options": {"include_usage": True}}

#: Name of an answer, method, path, body.
QUESTIONS: tuple[tuple[str, str, str, Any], ...] = (
    ("server_info", "GET", "/server_info", None),
    ("get_server_info", "GET", "/get_server_info", None),
    ("model_info", "GET", "/model_info", None),
    ("models", "GET", "/v1/models", None),
    ("loads", "GET", "/v1/loads", None),
    ("health", "GET", "/health", None),
    ("health_generate", "GET", "/health_generate", None),
    ("completion", "POST", "/v1/completions", _ROUND),
    ("chat", "POST", "/v1/chat/completions", _CHAT),
    ("generate", "POST", "/generate", _OWN),
    ("generate_ids", "POST", "/generate", {**_OWN, "text": None, "input_ids": [5, 6, 7]}),
    ("set_cap", "POST", "/set_internal_state", {"server_args": {"pp_max_micro_batch_size": 1}}),
    (
        "set_cap_too_high",
        "POST",
        "/set_internal_state",
        {"server_args": {"pp_max_micro_batch_size": 100_000}},
    ),
    ("set_other", "POST", "/set_internal_state", {"server_args": {"max_running_requests": 3}}),
    ("flush_cache", "POST", "/flush_cache", None),
    ("no_prompt", "POST", "/v1/completions", {"max_tokens": 3}),
    ("empty_prompt", "POST", "/v1/completions", {"prompt": "", "max_tokens": 3}),
    ("no_tokens", "POST", "/v1/completions", {"prompt": "the", "max_tokens": 0}),
    ("too_long", "POST", "/v1/completions", {"prompt": [5] * 300_000, "max_tokens": 1}),
    ("not_json", "POST", "/v1/completions", b"{"),
    ("nowhere", "GET", "/nowhere", None),
    ("wrong_method", "GET", "/v1/completions", None),
    ("get_load", "GET", "/get_load", None),
)

#: Name of a streamed answer, path, body.
STREAMS: tuple[tuple[str, str, Any], ...] = (
    ("completion_stream", "/v1/completions", {**_ROUND, **_USAGE}),
    ("completion_stream_plain", "/v1/completions", {**_ROUND, "stream": True}),
    ("chat_stream", "/v1/chat/completions", {**_CHAT, **_USAGE}),
    ("generate_stream", "/generate", {**_OWN, "stream": True}),
)


def collect(url: str) -> dict[str, Any]:
    """Everything that is asked of an engine that is up, by name of the answer."""
    found: dict[str, Any] = {}
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        cap = client.get("/server_info").json()["internal_states"][0]["pp_max_micro_batch_size"]
        for name, method, path, body in QUESTIONS:
            sent = {"content": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
            found[name] = _answer(client.request(method, path, **sent))
            if name.startswith("set_"):
                found[name]["said"] = client.request(method, path, **sent).json()
        for name, path, body in STREAMS:
            found[name] = _streamed(client, path, body)
        found["metrics"] = metric_names(client.get("/metrics").text)
        as_before = {"server_args": {"pp_max_micro_batch_size": cap}}
        assert client.post("/set_internal_state", json=as_before).json() == [True]
    return found


def kept(version: str) -> Path:
    """Where the answers of the real SGLang are kept."""
    return Path(__file__).parents[1] / "data" / "engine" / f"answers-{version}.json"


def store(path: Path, found: dict[str, Any]) -> None:
    """Write a collection down. What the schedulers' states repeat of the arguments is left out."""
    fields = found["server_info"]["fields"]
    if found["get_server_info"] != found["server_info"]:
        raise ValueError("/get_server_info is no longer the same as /server_info")
    inner = {at.removeprefix(_STATE): kind for at, kind in fields.items() if at.startswith(_STATE)}
    outer = {at: kind for at, kind in fields.items() if not at.startswith("internal_states")}
    states = {at: kind for at, kind in inner.items() if outer.get(at) != kind}
    states |= {at: "absent" for at in outer if at and at not in inner}
    info = {**found["server_info"], "fields": outer, "states": states}
    packed = {**found, "server_info": info}
    del packed["get_server_info"]
    path.write_text(json.dumps(packed, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def recall(path: Path) -> dict[str, Any]:
    """A collection as `store` wrote it."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    info = found["server_info"]
    outer, states = info["fields"], info.pop("states")
    inner = {at: kind for at, kind in {**outer, **states}.items() if at and kind != "absent"}
    info["fields"] = {
        **outer,
        "internal_states": "list",
        "internal_states[]": "object",
        **{_STATE + at: kind for at, kind in inner.items()},
    }
    return {**found, "get_server_info": info}


def differences(real: Any, other: Any, where: str = "") -> list[str]:
    """What is not the same in two collections, in words; ``real`` is the measure.

    Where one side has null, or an empty list, the type and what is inside depend on configuration and history: both
    are right. An engine may leave metrics out, but may not have others.
    """
    if isinstance(real, dict) and isinstance(other, dict):
        if "/fields" in where and all(isinstance(kind, str) for kind in {**real, **other}.values()):
            return _unlike(real, other, where)
        if where.endswith("/metrics"):
            other = {**real, **other}
        return [
            text
            for name in sorted({*real, *other})
            for text in differences(real.get(name), other.get(name), f"{where}/{name}")
        ]
    return [] if real == other else [f"{where}: {real} there, {other} here"]


def _unlike(real: Shape, other: Shape, where: str) -> list[str]:
    told = []
    for path in sorted({*real, *other}):
        kinds = real.get(path, "absent"), other.get(path, "absent")
        if kinds[0] == kinds[1] or ("null" in kinds and "absent" not in kinds):
            continue
        if any(_open(shape, path) for shape in (real, other)):
            continue
        told.append(f"{where}: {path} is {kinds[0]} there, {kinds[1]} here")
    return told


def _open(shape: Shape, path: str) -> bool:
    """Whether something that ``path`` is in is null or an empty list in ``shape``."""
    inside = re.split(r"(?=\.|\[\])", path)
    for end in range(1, len(inside)):
        outer = "".join(inside[:end])
        following = inside[end]
        if shape.get(outer) == "null" or (
            following == "[]" and shape.get(outer) == "list" and outer + "[]" not in shape
        ):
            return True
    return False


def _answer(response: httpx.Response) -> dict[str, Any]:
    kind = response.headers.get("content-type", "").partition(";")[0]
    told: dict[str, Any] = {"status": response.status_code, "kind": kind}
    if kind == "application/json":
        told["fields"] = shape(response.json())
    return told


def _streamed(client: httpx.Client, path: str, body: Any) -> dict[str, Any]:
    """The kinds of events in their order, equal neighbours once, and the fields of each kind."""
    events: list[str] = []
    fields: dict[str, Shape] = {}
    with client.stream("POST", path, json=body) as response:
        kind = response.headers["content-type"].partition(";")[0]
        for line in response.iter_lines():
            if not line:
                continue
            text = line.removeprefix("data: ")
            name = "[DONE]" if text == "[DONE]" else _kind_of(json.loads(text))
            if not events or events[-1] != name:
                events.append(name)
            if text != "[DONE]":
                merge(fields.setdefault(name, {}), shape(json.loads(text)))
    return {"status": response.status_code, "kind": kind, "events": events, "fields": fields}


def _kind_of(event: dict[str, Any]) -> str:
    if "meta_info" in event:
        return "last" if event["meta_info"].get("finish_reason") else "piece"
    if not event["choices"]:
        return "usage"
    choice = event["choices"][0]
    if choice.get("finish_reason"):
        return "last" if choice.get("text") or (choice.get("delta") or {}).get("content") else "end"
    return "role" if (choice.get("delta") or {}).get("role") else "piece"


def shape(value: Any) -> Shape:
    """Type by path; the elements of a list share one path."""
    found: Shape = {}
    for path, kind in _walk(value, ""):
        merge(found, {path: kind})
    return found


def merge(into: Shape, more: Shape) -> None:
    """Add what was found elsewhere; a type is more than null, two types are both."""
    for path, kind in more.items():
        before = into.get(path, "null")
        kinds = {*before.split("|"), *kind.split("|")} - {"null"}
        into[path] = "|".join(sorted(kinds)) or "null"


def _walk(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield path, "object"
        for name, item in value.items():
            yield from _walk(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        yield path, "list"
        for item in value:
            yield from _walk(item, f"{path}[]")
    elif value is None:
        yield path, "null"
    elif isinstance(value, bool):
        yield path, "bool"
    elif isinstance(value, str):
        yield path, f"'{value}'" if path.rsplit("[].", maxsplit=1)[-1].endswith(_WORDS) else "text"
    else:
        yield path, "number"


def metric_names(text: str) -> dict[str, str]:
    """Kind by name of the metrics (``sglang:token_usage`` -> ``gauge``)."""
    return dict(re.findall(r"^# TYPE (sglang:\S+) (\S+)$", text, re.MULTILINE))
