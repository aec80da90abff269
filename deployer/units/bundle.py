"""Everything that goes to a host for one release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bundle:
    """A rendered release. ``files`` holds secrets and is therefore never shown."""

    release: str
    profile: str
    #: The server's argument vector, program first.
    argv: list[str]
    #: The environment the unit sets, without the secret variables (those are in the file ``env``).
    environment: dict[str, str]
    #: Text of the live and of the candidate unit.
    unit: str
    candidate: str
    #: Name -> {"text": .., "mode": 0o600}: unit, unit.candidate; config.yaml and env where there are secrets.
    files: Mapping[str, Mapping[str, Any]] = field(repr=False)
    #: Keys of the unit's [Service] section that take effect only with a restart.
    restart_keys: dict[str, str]
    #: What /server_info must show: dest -> value.
    requested: dict[str, Any]
    #: Remarks for the operator.
    notes: tuple[str, ...] = ()
