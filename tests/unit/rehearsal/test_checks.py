"""What may be said to the stand-in engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployer.errors import UsageError
from deployer_rehearsal import checks, hosts, machine
from deployer_rehearsal.engine.sglang import faults
from deployer_rehearsal.engine.sglang.faults import NAMES
from deployer_rehearsal.engine.sglang.settings import load_settings

DOCS = Path(__file__).parents[3] / "docs"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(sorted(checks.SETTINGS)), JSON)
def test_what_is_accepted_as_a_setting_the_stand_in_can_read(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    try:
        checks.check_settings({key: value})
    except UsageError:
        return
    path = tmp_path_factory.mktemp("settings") / "standin.json"
    path.write_text(json.dumps({key: value}))
    read = getattr(load_settings({"SGLANG_STANDIN_CONFIG": str(path)}), key)
    assert read == value or key == "seed"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": "abc"}, 'scale of the stand-in engine must be a number from 0.01 to 1000, not "abc"'),
        ({"scale": True}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"speed": 0}, "speed"),
        ({"gpus": 2.5}, "gpus of the stand-in engine must be a whole number"),
        ({"scael": 1}, "did you mean scale?"),
        ({"version": "0.5.23"}, "version cannot be changed by --set"),
        ({"strict_memory": "yes"}, "true or false"),
    ],
)
def test_wrong_settings(
    settings: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEPLOYER_REHEARSAL_DIR", str(tmp_path / "state"))
    with pytest.raises(UsageError) as caught:
        hosts.up("mine", settings=settings)
    assert message in caught.value.message
    assert not (tmp_path / "state").exists(), "nothing may be written"


def test_unknown_names_come_with_those_that_are_known() -> None:
    with pytest.raises(UsageError) as caught:
        checks.check_settings({"bogus": 1})
    assert caught.value.remedy is not None
    assert all(name in caught.value.remedy for name in checks.SETTINGS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "slow",
            {"percent": "abc"},
            'percent of the fault slow must be a number from 0 to 100000, not "abc"',
        ),
        ("slow", {"bogus": 1}, '"bogus" is not a valid option of the fault slow'),
        ("slow", {"precent": 1}, "did you mean percent?"),
        ("slow", {"once": "yes"}, "true or false"),
        ("crash-in-load", {"at": 3}, "at of the fault crash-in-load"),
        ("crash-in-load", {"rank": "x"}, "rank"),
        ("never-ready", {"at": 1}, "not a valid option"),
        ("wrong-argument", {"argument": "pp_size"}, "needs value"),
        ("wrong-argument", {}, "needs argument and value"),
        ("slow", {"when_argv_contains": []}, "when_argv_contains"),
        ("clear", {"once": True}, "takes no options"),
    ],
)
def test_wrong_options_of_faults(
    name: str, options: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEPLOYER_REHEARSAL_DIR", str(tmp_path))
    monkeypatch.setattr(machine, "require_root", lambda: None)
    with pytest.raises(UsageError) as caught:
        hosts.fault("none", None, name, options)
    assert message in caught.value.message


def test_the_documents_tell_every_setting_fault_and_option() -> None:
    for text, mark in (((DOCS / "rehearsal.md").read_text(), "`"), (str(faults.__doc__), "")):
        rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
        table = {row[1].strip(): row[2] for row in rows if row[1].strip(" `") in NAMES}
        assert set(table) == {f"{mark}{name}{mark}" for name in NAMES}
        for name, options in checks.FAULT_OPTIONS.items():
            told = set(
                re.findall(
                    r"\b(at|rank|exception|percent|argument|value|text|status|every|how|tokens|endpoint)\b",
                    table[f"{mark}{name}{mark}"],
                )
            )
            assert told == set(options), name
        assert all(condition in text for condition in checks.CONDITIONS)
    page = (DOCS / "rehearsal.md").read_text().partition("## Settings")[2].partition("## Faults")[0]
    assert set(re.findall("`([a-z_]+)`", page)) == set(checks.SETTINGS)


def test_right_options() -> None:
    checks.check_fault("slow", {"percent": 40, "once": True, "when_argv_contains": ["--pp-size", "--tp-size"]})
    checks.check_fault("wrong-argument", {"argument": "pp_size", "value": 4})
    checks.check_fault("crash-in-load", {"at": 0.25, "rank": 2, "exception": "ValueError: no such thing"})
    checks.check_fault("garbage-output", {"text": ""})
    checks.check_settings({"scale": 0.25, "speed": 4, "seed": 0, "strict_memory": False})
    assert set(checks.FAULT_OPTIONS) == NAMES
