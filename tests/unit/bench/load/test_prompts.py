"""Prompts: reproducible, distinct, of the length asked for, and of many kinds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.load.prompts import _KINDS, _SLOTS, estimate, prompt


@given(st.text(max_size=20), st.integers(12, 600), st.integers(0, 200))
def test_the_same_arguments_give_the_same_text_of_the_length_asked_for(seed: str, length: int, shared: int) -> None:
    text = prompt(seed, length, shared=shared, common="c")
    assert text == prompt(seed, length, shared=shared, common="c")
    alone = prompt(seed, length)
    assert text.endswith(alone)
    # Half of the longest piece, and what joins where two pieces meet.
    assert abs(estimate(alone) - length) <= 8
    assert not shared or abs(estimate(text.removesuffix(alone)) - shared) <= 8


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        # As byte-pair vocabularies of 100 000 and 200 000 entries cut them (cl100k_base, o200k_base: the mean).
        ("Simmer the lentils with garlic for 12 minutes, then let it rest while you toast the barley.", 22),
        ("def cache_12(items):\n    return sorted(set(items), key=lambda x: (-x.index, x.id))[:12]\n", 26),
        ("В 1950 году Ada переехала в город Lima и открыла там школу на 12 учеников.", 29),
        ("1950年，Ada在Lima开了一家书店，第一天就卖出了12本书。", 25),
        ("Im Jahr 1950 baute Ada bei Lima eine Brücke, die 12 Meter überspannte.", 23),
    ],
)
def test_a_text_has_about_as_many_tokens_as_is_estimated(text: str, tokens: int) -> None:
    assert estimate(text) == pytest.approx(tokens, rel=0.25)


def test_prompts_differ_from_their_first_words_on() -> None:
    texts = [prompt(f"0/salt/level 64/{i}", 128) for i in range(500)]
    assert len({text[:24] for text in texts}) == 500


@given(st.integers(1, 50), st.text(max_size=5))
def test_a_shared_prefix_is_all_that_prompts_share(shared: int, common: str) -> None:
    one, two = (prompt(seed, 60, shared=shared, common=common) for seed in ("a", "b"))
    alone = prompt("a", 60)
    assert one.endswith(alone)
    prefix = one.removesuffix(alone)
    assert two.startswith(prefix)
    assert one != two


def test_a_prompt_has_every_kind_before_one_comes_twice() -> None:
    text = prompt("seed", 700)  # all kinds once are about 500 tokens
    marks = (
        ("в ", "W roku"),
        ("年",),
        ("void", "Under clause"),
        ("biopsy", "patient"),
        ("SELECT", "{"),
        ("?",),
    )
    assert all(any(mark in text for mark in kind) for kind in marks)


def test_every_template_has_its_words() -> None:
    for seed in range(200):
        assert "{who" not in prompt(str(seed), 700)
    assert all(len(words) >= 8 for words in _SLOTS.values())
    assert len(_KINDS) >= 16
