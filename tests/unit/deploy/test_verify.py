from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from deployer.deploy.verify import Verification, server_info, verify
from deployer.errors import AgentError
from deployer.host.client import HostClient
from deployer.records.codec import Json
from deployer.records.endpoint import Endpoint
from tests.unit.deploy.builders import release

INFO = {"tp_size": 8, "api_key": "sk-secret-1", "internal_states": [{"max_running_requests": 64}]}
MODELS = {"object": "list", "data": [{"id": "kimi"}]}


class Box:
    """Answers ``observe`` and ``http`` from data."""

    name = "box"

    def __init__(self, **changes: Any) -> None:
        self.unit: Json = {"ActiveState": "active", "Result": "success", "InvocationID": "abc"}
        self.listeners: list[Json] = [
            {
                "address": "127.0.0.1",
                "port": 30000,
                "pid": 5,
                "comm": "python",
                "cgroup": "/system.slice/sglang-kimi.service",
                "unit": "sglang-kimi.service",
            }
        ]
        self.pages: dict[str, tuple[int, str]] = {
            "/server_info": (200, json.dumps(INFO)),
            "/v1/models": (200, json.dumps(MODELS)),
        }
        self.asked: list[Json] = []
        for name, value in changes.items():
            setattr(self, name, value)

    def call(self, op: str, args: Json | None = None, *, timeout: float = 30.0) -> Json:
        args = args or {}
        self.asked.append(args)
        if op == "observe":
            return {"boot_id": "b", "services": {"kimi": {"unit": self.unit, "listeners": self.listeners}}}
        status, body = self.pages.get(args["path"], (404, "not found"))
        if status == 0:
            raise AgentError("http", "no answer within 30 s", detail={"state": "timeout"})
        return {"status": status, "headers": {}, "body": body, "seconds": 0.1}

    def stream(self, op: str, args: Json | None = None) -> Any:
        raise AssertionError(op)

    def close(self, *, bye: bool = True) -> None:
        pass


def check(box: Box, **options: Any) -> Verification:
    requested = options.pop("requested", {"tp_size": 8, "max_running_requests": 64})
    candidate = release(requested=requested, sglang=options.pop("version", None))
    allowed = tuple(options.pop("allow_changed", ()))
    candidate = replace(candidate, requested=replace(candidate.requested, allow_changed=allowed))
    endpoint = Endpoint("kimi", options.pop("address", "127.0.0.1"), 30000, options.pop("api_key", None))
    return verify(HostClient(box), candidate, endpoint, "abc", **options)


def only(found: Verification) -> str:
    assert not found.ok
    (problem,) = found.problems
    return problem


def requested_verdicts(found: Verification) -> list[str]:
    return [item.verdict for item in found.in_effect.arguments if item.verdict != "defaulted"]


def by_default(found: Verification) -> list[str]:
    return [item.argument for item in found.in_effect.arguments if item.verdict == "defaulted"]


def test_what_was_started_is_what_answers() -> None:
    found = check(Box(), api_key="sk-secret-1")
    assert found.ok
    assert requested_verdicts(found) == ["equal", "equal"]
    assert found.effective["tp_size"] == 8
    assert "sk-secret-1" not in json.dumps(found.effective)


def test_the_key_goes_along() -> None:
    box = Box()
    check(box, api_key="sk-secret-1")
    assert box.asked[1]["headers"] == {"Authorization": "Bearer sk-secret-1"}


def test_another_start_since() -> None:
    assert "again" in only(check(Box(unit={"ActiveState": "active", "InvocationID": "other"})))


def test_unit_not_active() -> None:
    unit = {"ActiveState": "failed", "Result": "oom-kill", "InvocationID": "abc"}
    assert "failed (oom-kill)" in only(check(Box(unit=unit)))


def test_a_stranger_on_the_port() -> None:
    box = Box()
    box.listeners[0].update(unit="nginx.service")
    assert "nginx.service" in only(check(box))


def test_nobody_on_the_address() -> None:
    box = Box()
    box.listeners[0].update(address="127.0.0.9")
    assert "nothing listens" in only(check(box))
    box.listeners[0].update(address="0.0.0.0")
    assert check(box).ok


def test_changed_arguments_are_problems_and_hidden_ones_are_named() -> None:
    found = check(Box(), requested={"tp_size": 4, "pp_size": 2})
    assert only(found) == "tp_size is 8 in the running server; the profile requested 4"
    assert [item.argument for item in found.in_effect.changed] == ["tp_size"]
    assert found.in_effect.missing == ("pp_size",)


def test_a_change_that_the_profile_allows_is_told_and_no_problem() -> None:
    asked = {"tp_size": 8, "page_size": 16, "cuda_graph_max_bs": 64}
    info = {**INFO, "page_size": 64, "cuda_graph_max_bs_decode": 32}
    pages = {"/server_info": (200, json.dumps(info))}
    log = ["[2026-11-29 17:45:53] FlashMLA only supports a page_size of 64, change page_size to 64."]
    found = check(Box(pages=pages), requested=asked, log=lambda: log)
    assert len(found.problems) == 2
    assert "change page_size to 64" in found.problems[0]
    assert 'allow_changed = ["page_size", "cuda_graph_max_bs"]' in found.remedy
    found = check(Box(pages=pages), requested=asked, allow_changed=["page_size", "cuda_graph_max_bs_decode"])
    assert found.ok
    assert (
        found.sentence() == "our process answers; 1 requested arguments are in effect, 2 changed as the profile allows"
    )
    assert [item.argument for item in found.in_effect.changed] == ["page_size", "cuda_graph_max_bs"]
    assert any("page_size is 64" in note for note in found.notes())


def test_what_is_not_shown_is_said() -> None:
    found = check(Box(), requested={"tp_size": 8, "new_thing": 1})
    assert found.ok
    assert "1 not shown" in found.sentence()
    assert any("new_thing" in note for note in found.notes())
    assert {item.verdict for item in found.in_effect.arguments} == {"equal", "missing"}


def test_defaults_of_the_version_are_kept_where_it_is_known() -> None:
    pages = {"/server_info": (200, json.dumps({**INFO, "version": "0.5.12.post1", "page_size": 1}))}
    assert by_default(check(Box(pages=pages))) == ["api_key", "page_size"]
    assert not by_default(check(Box(), version="nonsense"))


def test_older_servers_have_another_path() -> None:
    pages = {"/get_server_info": (200, json.dumps(INFO))}
    assert check(Box(pages=pages)).ok


@pytest.mark.parametrize("page", [(401, "no key sk-secret-1"), (200, "[]"), (200, "{"), (0, "")])
def test_a_server_that_does_not_tell_is_a_problem(page: tuple[int, str]) -> None:
    problem = only(check(Box(pages={"/server_info": page}), api_key="sk-secret-1"))
    assert "/server_info" in problem
    assert "sk-secret-1" not in problem


def site(status: int, body: Any) -> httpx.MockTransport:
    return httpx.MockTransport(lambda request: httpx.Response(status, text=json.dumps(body)))


@pytest.mark.parametrize("url", ["http://llm.example", "http://llm.example/", "http://llm.example/v1"])
def test_the_advertised_address(url: str) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, text=json.dumps(MODELS))

    assert check(Box(), advertised=url, transport=httpx.MockTransport(answer)).ok
    assert asked == ["http://llm.example/v1/models"]


@pytest.mark.parametrize(
    ("status", "body", "word"),
    [
        (502, {}, "502"),
        (200, {"data": [{"id": "other"}]}, "another server"),
        (200, {"hello": 1}, "not as an SGLang"),
    ],
)
def test_an_advertised_address_that_leads_elsewhere(status: int, body: Any, word: str) -> None:
    found = check(Box(), advertised="http://llm.example", transport=site(status, body))
    assert word in only(found)


def test_an_advertised_address_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployer.deploy.verify.ADVERTISED_SECONDS", 1.0)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    tries = 0

    def refuse(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        raise httpx.ConnectError("refused")

    found = check(Box(), advertised="http://llm.example", transport=httpx.MockTransport(refuse))
    assert "does not answer" in only(found)
    assert tries == 2


def test_an_advertised_address_that_is_no_url_is_a_problem() -> None:
    assert "does not answer" in only(check(Box(), advertised="llm.example"))


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_an_account_without_end_is_none(depth: int) -> None:
    body = '{"a":' * depth + "1" + "}" * depth
    info, trouble = server_info(
        HostClient(Box(pages={"/server_info": (200, body)})), Endpoint("kimi", "127.0.0.1", 30000)
    )
    assert info is None
    assert "not a JSON object" in trouble
