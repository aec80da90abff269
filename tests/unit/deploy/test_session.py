"""The API key of a release is the one it was staged with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.reach import config_key, secret_variables
from deployer.units.quoting import file_line
from tests.unit.deploy.test_apply import LIVE, session, world


@given(st.text(min_size=1))
def test_the_key_of_a_release_is_read_back(key: str) -> None:
    assert config_key(f"api-key: {json.dumps(key)}\n") == key


@pytest.mark.parametrize("text", ["", "other: 1\n", "\n\n"])
def test_there_may_be_none(text: str) -> None:
    assert config_key(text) is None


@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1), st.text('\\"`$\n a', min_size=1))
def test_the_secrets_of_its_environment_are_read_back(first: str, second: str) -> None:
    lines = file_line("HF_TOKEN", first) + file_line("OTHER", second)
    assert secret_variables(lines) == {"HF_TOKEN": first, "OTHER": second}


def test_no_secret_of_a_release_is_in_the_log_that_is_shown() -> None:
    made = world()
    made.make_live("kimi", LIVE)
    service = made.service("kimi")
    files = {
        "config.yaml": 'api-key: "key-0123"\n',
        "env": file_line("HF_TOKEN", 'tok"en $7') + file_line("X", "plain"),
    }
    for name, text in files.items():
        Path(service.release_dir(LIVE), name).write_text(text)
    with session(made) as opened:
        endpoint = opened.endpoint(opened.state().release(LIVE), key=True)
    assert endpoint.secrets == ("key-0123", 'tok"en $7', "plain")
    assert not any(secret in repr(endpoint) for secret in endpoint.secrets)
