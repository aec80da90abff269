"""Nothing that works is called an error: official commands, by the versions they are for."""

from __future__ import annotations

import tomllib

import pytest
from pydantic import ValidationError

from deployer.sglang.flags.versions import known_versions
from deployer.sglang.rules import Severity, judge
from tests.paths import ROOT
from tests.unit.sglang.rules.builders import DENSE, KIMI, facts
from tests.unit.sglang.rules.commands import read

COMMANDS = tomllib.loads((ROOT / "tests/data/commands/official.toml").read_text(encoding="utf-8"))["command"]
#: The version that the commands are written for.
WRITTEN_FOR = "0.5.10.post1"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda item: item["text"][:60])
def test_an_official_command_has_no_error(command: dict[str, str]) -> None:
    for version in map(str, known_versions()):
        try:
            given = read(command["text"], version)
        except KeyError:
            assert version != WRITTEN_FOR, "its flags are that version's"
            continue  # a flag that this version does not have
        if version != WRITTEN_FOR and lacks_a_choice(given, version):
            continue
        report = judge(facts(version=version, **given))
        assert [str(item) for item in report.of(Severity.ERROR)] == [], (version, command["source"])


def lacks_a_choice(given: dict[str, dict[str, object]], version: str) -> bool:
    """Whether a version does not know the value of a flag yet, such as a parser of a newer model."""
    rendering = facts(version=version, **given).rendering
    return any("not a choice" in item.text for item in rendering.problems)


def test_there_are_enough_of_them() -> None:
    assert len(COMMANDS) >= 40


REFUSED = tomllib.loads((ROOT / "tests/data/commands/refused.toml").read_text(encoding="utf-8"))["command"]
MODELS = {"kimi": KIMI, "dense": DENSE}


@pytest.mark.parametrize("command", REFUSED, ids=lambda item: f"{item['rule']}-{item['version']}")
def test_a_command_that_cannot_work_is_refused(command: dict[str, str]) -> None:
    try:
        given = facts(
            version=command["version"],
            model=MODELS.get(command.get("model", "")),
            **read(command["text"], command["version"]),
        )
    except ValidationError:
        assert command["rule"] == "rendering", "the profile itself does not allow it"
        return
    errors = judge(given).of(Severity.ERROR)
    assert command["rule"] in {item.rule for item in errors}, [str(item) for item in errors]


def test_there_are_enough_that_cannot_work() -> None:
    assert len(REFUSED) >= 30
