"""Prompts: reproducible, distinct, of the length asked for, and of many kinds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deployer.bench.prompts import _KINDS, _PIECE, _SLOTS, prompt


@given(st.text(max_size=20), st.integers(1, 600), st.integers(0, 200))
def test_the_same_arguments_give_the_same_text_of_the_length_asked_for(
    seed: str, pieces: int, shared: int
) -> None:
    text = prompt(seed, pieces, shared=shared, common="c")
    assert text == prompt(seed, pieces, shared=shared, common="c")
    assert text.strip()
    # Where the two parts meet pieces may join.
    assert abs(len(_PIECE.findall(text)) - pieces - shared) <= 1


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
    text = prompt("seed", 400)  # all kinds once are about 300 pieces
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
        assert "{who" not in prompt(str(seed), 400)
    assert all(len(words) >= 8 for words in _SLOTS.values())
    assert len(_KINDS) >= 16
