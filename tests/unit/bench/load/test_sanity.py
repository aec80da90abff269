"""What is sane output, and what a fixed prompt tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load.sanity import FIXED_PROMPT, sanity, undecoded, verdict
from deployer.bench.load.stats import Request


def answer(text: str, kind: str | None = None) -> Request:
    return Request(0, 8, 0.0, 0.0, [0.1, 0.2], 0.3, 8, 7, text, kind)


GOOD = [answer(f"the {i}th answer goes on in its own way") for i in range(20)]


@pytest.mark.parametrize(
    ("odd", "failed"),
    [("   ", "not-empty"), ("!!!!!!!!!!!!!!!!", "no-repetition"), ("\ufffd\ufffd\ufffda", "decodes")],
)
def test_some_odd_outputs_are_odd_prompts_and_many_are_a_broken_model(odd: str, failed: str) -> None:
    assert sanity([*GOOD, answer(odd)], [])["ok"] is True
    found = sanity([*GOOD, *[answer(odd)] * 3], [])
    assert found["ok"] is False
    assert [check["name"] for check in found["checks"] if check["ok"] is False] == [failed]
    assert sanity([*GOOD, *[answer(odd, "cut")] * 30], [])["ok"] is True, "only whole answers count"


def test_nothing_seen_is_no_verdict() -> None:
    found = sanity([], [])
    assert (found["ok"], found["fixed_prompt"]) == (None, None)
    assert {check["ok"] for check in found["checks"]} == {None}


def test_an_answer_cut_within_a_character_is_text() -> None:
    assert not undecoded("日本\ufffd")
    assert not undecoded("\ufffd\ufffd\ufffd" + "a" * 100)
    assert undecoded("\ufffd" * 8)


@given(st.text(), st.text())
def test_the_fixed_prompt_before_and_after(before: str, after: str) -> None:
    found = sanity(GOOD, [answer(before), answer(after)])
    assert found["fixed_prompt"]["prompt"] == FIXED_PROMPT
    assert found["fixed_prompt"]["text"] == before
    assert found["fixed_prompt"]["same_twice"] is (before == after)
    assert found["ok"] is (before == after)
    once = sanity(GOOD, [answer(before), answer("", "timeout")])
    assert (once["ok"], once["fixed_prompt"]["same_twice"]) == (True, None)


@given(st.lists(st.sampled_from([True, False, None])))
def test_one_failed_check_decides(values: list[bool | None]) -> None:
    found = verdict(values)
    assert found is (False if False in values else True if True in values else None)
