"""Small pieces of English."""

from __future__ import annotations


def count_of(number: int, noun: str) -> str:
    """Return ``number`` and a noun that has a regular plural, such as ``1 change`` or ``2 changes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
