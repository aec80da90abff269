"""docs/cli.md against the commands themselves."""

from __future__ import annotations

import re

import click
import pytest

from deployer.cli.main import cli
from deployer.resources import package_root
from tests.unit.cli.tree import commands

TEXT = (package_root() / "docs/cli.md").read_text()
#: The table of commands: first word -> its rows.
ROWS: dict[str, str] = {}
for word, row in re.findall(r"^\| `(\w+)(.*)$", TEXT, re.MULTILINE):
    ROWS[word] = ROWS.get(word, "") + row + "\n"
#: Said once for all commands.
COMMON = {"--inventory", "--service", "--json", "--help"}


ALL = dict(commands(cli))


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_each_of_its_options_is_documented(name: str) -> None:
    first, *rest = name.split()
    assert first in ROWS, f"docs/cli.md has no row for {name}"
    assert all(word in ROWS[first] for word in rest), f"the row of {first} lacks {rest}"
    # Options of commands in groups are told in the group's own document, and the row refers to it.
    row = ROWS[first] if not rest else linked(ROWS[first])
    for parameter in ALL[name].params:
        if isinstance(parameter, click.Option) and not COMMON & set(parameter.opts):
            assert any(mentions(row, spelling) for spelling in parameter.opts), f"{name} {parameter.opts[-1]}"


def test_every_documented_command_exists() -> None:
    assert set(ROWS) - {name.split()[0] for name in ALL} == set()


def linked(row: str) -> str:
    texts = [row]
    for file in re.findall(r"\]\((\w[\w-]*\.md)[)#]", row):
        texts.append((package_root() / "docs" / file).read_text())
    return "\n".join(texts)


def mentions(text: str, option: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text) is not None
