"""Between JSON and records: one codec for everything that comes from a host or a file, or goes there.

A record is a frozen dataclass derived from `Record`. Its fields are its JSON keys, unless `named` gives another key.
Keys that a record does not know are kept in ``extra`` and written back, so that an older deployer loses nothing of
what a newer one wrote. (msgspec and pydantic are faster or stricter, but drop unknown keys of nested records or cost
a command a tenth of a second at its start.)
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Self

Json = dict[str, Any]
Decoder = Callable[[Any, str], Any]


class _Key(NamedTuple):
    """A field in JSON. ``absent`` is what a missing value stands for, ``written`` whether an empty one is written."""

    name: str
    key: str
    decode: Decoder
    required: bool
    absent: Json
    written: bool


_KEYS_OF: dict[type, tuple[_Key, ...]] = {}


class BadRecord(ValueError):
    """A document does not have the shape of its record. The message starts with the place of the offending value."""


def named(key: str, **options: Any) -> Any:
    """A field whose JSON key is ``key``; ``options`` are those of `dataclasses.field`."""
    return field(metadata={"key": key}, **options)


def unwritten(**options: Any) -> Any:
    """A field that exists in memory only: neither read from JSON nor written to it."""
    return field(metadata={"key": None}, **options)


def sparse(key: str | None = None, **options: Any) -> Any:
    """A field that is not written while it is empty or None; ``key`` as in `named`."""
    return field(metadata={"sparse": True, **({"key": key} if key else {})}, **options)


@dataclass(frozen=True, slots=True)
class Record:
    """The base of all records.

    A missing key or null is the field's default, or None if the type allows it; else it raises BadRecord, as does a
    value of another type. In a ``tolerant`` record such a value counts as missing (and is kept in ``extra``, as is a
    list of which items were left out).
    """

    tolerant: ClassVar[bool] = False
    extra: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], place: str = "") -> Self:
        """Return the record that ``data`` describes. Raise BadRecord if it does not have its shape."""
        if not isinstance(data, Mapping):
            raise BadRecord(f"{place or cls.__name__}: expected an object, got {_shown(data)}")
        values: dict[str, Any] = {}
        extra = dict(data)
        for item in _keys(cls):
            where = f"{place}.{item.key}" if place else item.key
            value = data.get(item.key)
            if value is None:
                if item.required:
                    raise BadRecord(f"{where}: missing")
                values |= item.absent
                extra.pop(item.key, None)
                continue
            try:
                values[item.name] = item.decode(value, where)
            except BadRecord:
                if not cls.tolerant or item.required:
                    raise
                values |= item.absent
                continue
            if not isinstance(value, list) or len(values[item.name]) == len(value):
                del extra[item.key]
        return cls(**values, extra=extra)

    def as_json(self) -> Json:
        """Return the JSON object that `from_json` reads, unknown keys included."""
        known = {
            item.key: encode(value)
            for item in _keys(type(self))
            if (value := getattr(self, item.name)) or item.written or value == 0
        }
        return {**known, **self.extra}


@dataclass(frozen=True, slots=True)
class Tolerant(Record):
    """The base of records that outlive a damaged value."""

    tolerant: ClassVar[bool] = True


def encode(value: Any) -> Any:
    """Return ``value`` as JSON: records as objects, tuples as lists, enumerations as their values."""
    if isinstance(value, Record):
        return value.as_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item) for item in value]
    return value


def _keys(cls: type[Record]) -> tuple[_Key, ...]:
    """Return how the fields of a record are read and written."""
    if cls not in _KEYS_OF:
        hints = typing.get_type_hints(cls)
        _KEYS_OF[cls] = tuple(
            _Key(
                item.name,
                item.metadata.get("key", item.name),
                _decoder(hints[item.name]),
                *_absence(item, hints[item.name]),
                written=not item.metadata.get("sparse"),
            )
            for item in fields(cls)
            if item.name != "extra" and item.metadata.get("key", item.name) is not None
        )
    return _KEYS_OF[cls]


def _absence(item: Field[Any], hint: Any) -> tuple[bool, Json]:
    if item.default is not MISSING or item.default_factory is not MISSING:
        return False, {}
    nullable = types.NoneType in typing.get_args(hint)
    return not nullable, {item.name: None} if nullable else {}


def _decoder(hint: Any) -> Decoder:
    """The function that reads a value of one type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        kinds = [item for item in arguments if item is not types.NoneType]
        return _either([_decoder(kind) for kind in kinds])
    if origin is typing.Literal:
        return _member(dict.fromkeys(arguments))
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            kind = arguments[0]
            lenient = isinstance(kind, type) and issubclass(kind, Record) and kind.tolerant
            return _sequence(_decoder(kind), lenient)
        return _fixed([_decoder(item) for item in arguments])
    if origin in (dict, Mapping):
        return _mapping(_KEYS.get(arguments[0], str), _decoder(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _member({item.value: item for item in hint})
    return _SCALARS[hint]


def _either(decoders: list[Decoder]) -> Decoder:
    if len(decoders) == 1:
        return decoders[0]

    def decode(value: Any, place: str) -> Any:
        for one in decoders[:-1]:
            try:
                return one(value, place)
            except BadRecord:
                continue
        return decoders[-1](value, place)

    return decode


def _sequence(item: Decoder, lenient: bool) -> Decoder:
    """``lenient``: the items are tolerant records, and what is not an object is left out."""

    def decode(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise _unfit(place, "a list", value)
        if lenient:
            value = [one for one in value if isinstance(one, Mapping)]
        return tuple(item(one, f"{place}[{index}]") for index, one in enumerate(value))

    return decode


def _fixed(items: list[Decoder]) -> Decoder:
    def decode(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) != len(items):
            raise _unfit(place, f"a list of {len(items)} values", value)
        return tuple(item(one, f"{place}[{index}]") for index, (item, one) in enumerate(zip(items, value, strict=True)))

    return decode


def _mapping(key: Callable[[str], Any], item: Decoder) -> Decoder:
    def decode(value: Any, place: str) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _unfit(place, "an object", value)
        try:
            return {key(name): item(one, f"{place}.{name}") for name, one in value.items()}
        except ValueError as error:
            raise (error if isinstance(error, BadRecord) else _unfit(place, "whole numbers as keys", value)) from None

    return decode


def _member(members: Mapping[Any, Any]) -> Decoder:
    def decode(value: Any, place: str) -> Any:
        if not isinstance(value, (str, int)) or value not in members:
            raise _unfit(place, f"one of {', '.join(map(str, members))}", value)
        return members[value] or value

    return decode


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise _unfit(place, "text", value)
    return value


def _whole(value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        raise _unfit(place, "a whole number", value)
    return int(value)


def _number(value: Any, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _unfit(place, "a number", value)
    try:
        number = float(value)
    except OverflowError:
        raise _unfit(place, "a number", value) from None
    if not math.isfinite(number):
        raise _unfit(place, "a finite number", value)
    return number


def _truth(value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        raise _unfit(place, "true or false", value)
    return value


_KEYS: dict[Any, Callable[[str], Any]] = {str: str, int: int}
_SCALARS: dict[Any, Decoder] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _truth,
    Any: lambda value, _: value,
    object: lambda value, _: value,
}


def _unfit(place: str, expected: str, value: Any) -> BadRecord:
    return BadRecord(f"{place}: expected {expected}, got {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
