"""The tables [hooks] and [services.NAME.hooks]."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from deployer.config.hooks import EVENTS, Event
from deployer.config.inventory import Inventory, inventory_from
from deployer.errors import ConfigError

SERVICE = {"host": "gpu1", "model": "/m", "engine": {"python": "/opt/sglang/bin/python"}}


def load(everywhere: dict[str, Any], **own: Any) -> Inventory:
    tables = {"hosts": {"gpu1": {}}, "services": {"kimi": {**SERVICE, **own}}, "hooks": everywhere}
    return inventory_from(tables, Path("i.toml"))


def test_a_service_has_the_hooks_of_all_and_its_own() -> None:
    own = {"programs": {"after_stop": ["/b"]}, "webhook": {"url_secret": {"env": "URL"}, "format": "slack"}}
    hooks = (
        load(
            {"timeout": 5, "programs": {"before_stop": ["/a", "x"]}, "webhook": {"url": "https://a.example"}},
            hooks=own,
        )
        .service()
        .hooks
    )
    assert hooks.programs == {"before_stop": ["/a", "x"], "after_stop": ["/b"]}
    assert hooks.timeout == 5
    assert hooks.webhook is not None
    assert hooks.webhook.url is None


def test_the_moments_are_four_times_two() -> None:
    assert set(get_args(Event)) == set(EVENTS)


@pytest.mark.parametrize(
    ("hooks", "place"),
    [
        ({"programs": {"before_lunch": ["/a"]}}, "before_lunch"),
        ({"programs": {"before_stop": ["a"]}}, "absolute path"),
        ({"programs": {"before_stop": []}}, "before_stop"),
        ({"webhook": {}}, "exactly one of url and url_secret"),
        ({"webhook": {"url": "https://a.example", "header": "a: b\n"}}, "header"),
        ({"webhook": {"url": "https://a.example", "secret": "plain"}}, "secret"),
    ],
)
def test_what_is_wrong_is_shown_where_it_was_written(hooks: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(hooks)
    assert place in caught.value.message
    assert "services" not in caught.value.message
