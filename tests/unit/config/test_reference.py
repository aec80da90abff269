from __future__ import annotations

import re
from pathlib import Path

from deployer.config.fields import STALL_DEFAULTS
from deployer.config.inventory import HostConfig, ServiceConfig
from deployer.config.profile import Profile
from deployer.config.settings import Settings
from deployer.resources import package_root
from tools.reference import security
from tools.reference.configuration import reference


def test_the_page_is_up_to_date() -> None:
    """``python -m tools.reference.configuration`` writes it."""
    page = Path(package_root() / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference()


def test_the_page_about_the_unit_is_up_to_date() -> None:
    """``python -m tools.reference.security`` writes it."""
    page = Path(package_root() / "docs" / "security.md").read_text(encoding="utf-8")
    assert page == security.reference()


def test_every_key_has_a_meaning() -> None:
    def walk(model: type) -> None:
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            if not field.exclude:
                assert field.description, f"{model.__name__}.{name}"
                default = field.default
                if hasattr(type(default), "model_fields"):
                    walk(type(default))

    for model in (HostConfig, ServiceConfig, Profile, Settings):
        walk(model)


def test_the_page_about_waiting_has_the_same_stall_times() -> None:
    page = Path(package_root() / "docs" / "waiting.md").read_text(encoding="utf-8")
    said = page.partition("`deadlines.stall` does not say, in seconds:")[2].partition(".")[0]
    found = {name: float(seconds) for name, seconds in re.findall(r"`([a-z-]+)`\s+(\d+)", said)}
    assert found == dict(STALL_DEFAULTS)
