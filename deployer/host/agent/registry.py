"""The table of operations, and the agent's own text."""

from __future__ import annotations

import hashlib
from typing import Callable, Dict, Set

from . import source
from .base import Call, Json
from .lease import Session

Operation = Callable[[Session, Json, Call], Json]
OPERATIONS: Dict[str, Operation] = {}
AUDITED: Set[str] = set()


def operation(name: str, audited: bool = False) -> Callable[[Operation], Operation]:
    """Register a function as an operation. ``audited``: it changes the host, so each call leaves a line."""

    def register(function: Operation) -> Operation:
        OPERATIONS[name] = function
        if audited:
            AUDITED.add(name)
        return function

    return register


def own_hash() -> str:
    return hashlib.sha256(source()).hexdigest()[:12]
