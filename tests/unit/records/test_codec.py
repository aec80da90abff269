"""Records from JSON and back: types, absence, unknown keys, and what is said of a document of another shape."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.records.codec import BadRecord, Record, named, sparse, unwritten


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Part(Record):
    name: str
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Whole(Record):
    number: int
    parts: tuple[Part, ...] = ()
    first: Part | None = None
    sizes: dict[int, float] = field(default_factory=dict)
    pair: tuple[int, str] | None = None
    from_: str | None = named("from", default=None)
    colour: Colour = Colour.RED
    bound: Literal["min", "max"] = "min"
    either: int | str = 0
    flag: bool = False
    loose: Any = None
    rare: tuple[str, ...] = sparse(default=())
    memory: str = unwritten(default="")


@dataclass(frozen=True, slots=True)
class Lenient(Record):
    tolerant: ClassVar[bool] = True
    name: str
    size: int | None = None
    parts: tuple[Part, ...] = ()


FULL = {
    "number": 3,
    "parts": [{"name": "a", "weight": 1.5}, {"name": "b", "weight": 2}],
    "first": {"name": "a", "weight": 0.0},
    "sizes": {"1": 2.0},
    "pair": [1, "x"],
    "from": "here",
    "colour": "blue",
    "bound": "max",
    "either": "text",
    "flag": True,
    "loose": {"any": ["thing"]},
}


def test_every_kind_of_field_is_read_and_written_back() -> None:
    whole = Whole.from_json(FULL)
    assert whole.parts[1] == Part("b", 2.0)
    assert whole.sizes == {1: 2.0}
    assert whole.pair == (1, "x")
    assert whole.from_ == "here"
    assert whole.colour is Colour.BLUE
    assert json.loads(json.dumps(whole.as_json())) == {**FULL, "sizes": {"1": 2.0}}


def test_what_is_missing_or_null_is_the_default() -> None:
    assert Whole.from_json({"number": 1, "parts": None, "first": None}) == Whole(1)


def test_unknown_keys_are_kept_at_every_depth() -> None:
    document = {"number": 1, "new": [1], "parts": [{"name": "a", "newer": {"x": 1}}]}
    written = Whole.from_json(document).as_json()
    assert written["new"] == [1]
    assert written["parts"][0]["newer"] == {"x": 1}


def test_what_is_only_in_memory_is_neither_read_nor_written() -> None:
    whole = Whole.from_json({"number": 1, "memory": "not ours"})
    assert whole.memory == ""
    assert Whole(1, memory="ours").as_json().get("memory") is None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "number: missing"),
        ({"number": "3"}, "number: expected a whole number, got '3'"),
        ({"number": True}, "number: expected a whole number, got True"),
        ({"number": 1.5}, "number: expected a whole number, got 1.5"),
        ({"number": float("inf")}, "number: expected a whole number, got inf"),
        ({"number": 1, "parts": [{"name": "a"}, {"name": 2}]}, "parts[1].name: expected text, got 2"),
        ({"number": 1, "parts": {"a": 1}}, "parts: expected a list, got {'a': 1}"),
        ({"number": 1, "first": {"name": "a", "weight": float("nan")}}, "first.weight: expected a finite number"),
        ({"number": 1, "parts": [{"name": "a", "weight": 10**400}]}, "parts[0].weight: expected a number, got 1000"),
        ({"number": 1, "pair": [1]}, "pair: expected a list of 2 values, got [1]"),
        ({"number": 1, "sizes": {"x": 1}}, "sizes: expected whole numbers as keys, got {'x': 1}"),
        ({"number": 1, "colour": "green"}, "colour: expected one of red, blue, got 'green'"),
        ({"number": 1, "bound": []}, "bound: expected one of min, max, got []"),
        ({"number": 1, "flag": 1}, "flag: expected true or false, got 1"),
        ({"number": 1, "first": "x" * 100}, "first: expected an object, got 'xxx"),
    ],
)  # fmt: skip
def test_another_shape_is_refused_with_its_place(document: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as caught:
        Whole.from_json(document)
    assert str(caught.value).startswith(message)


def test_a_tolerant_record_takes_what_is_unfit_as_missing_and_keeps_it() -> None:
    document = {"name": "a", "size": "big", "parts": [{"weight": 1}]}
    record = Lenient.from_json(document)
    assert record == Lenient("a")
    assert record.as_json() == document
    with pytest.raises(BadRecord):
        Lenient.from_json({"size": 1})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FULL, "x"]), inner, max_size=4),
    )
)
def test_no_document_raises_anything_else(document: Any) -> None:
    for record in (Whole, Lenient):
        with contextlib.suppress(BadRecord):
            record.from_json(document).as_json()


def test_what_is_sparse_is_written_only_if_there_is_something() -> None:
    assert "rare" not in Whole(1).as_json()
    assert Whole(1, rare=("x",)).as_json()["rare"] == ["x"]
