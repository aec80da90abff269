"""docs/cli.md against the commands themselves."""

from __future__ import annotations

import re

import click
import pytest

from deployer.cli.main import cli
from deployer.resources import package_root
from tests.unit.cli.tree import commands

TEXT = (package_root() / "docs/cli.md").read_text()
#: The lists of commands: first word -> its items.
ITEMS: dict[str, str] = {}
for word, item in re.findall(r"^\* \*\*`(\w+)(.*?)(?=^\* |^#)", TEXT, re.MULTILINE | re.DOTALL):
    ITEMS[word] = ITEMS.get(word, "") + item
#: Documented once for all commands.
COMMON = {"--inventory", "--service", "--json", "--help"}


ALL = dict(commands(cli))


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_each_of_its_options_is_documented(name: str) -> None:
    first, *rest = name.split()
    assert first in ITEMS, f"docs/cli.md does not list {name}"
    assert all(word in ITEMS[first] for word in rest), f"the item of {first} lacks {rest}"
    # Options of commands in groups are described in the group's own document, which the item links to.
    item = ITEMS[first] if not rest else linked(ITEMS[first])
    for parameter in ALL[name].params:
        if isinstance(parameter, click.Option) and not COMMON & set(parameter.opts):
            assert any(mentions(item, spelling) for spelling in parameter.opts), f"{name} {parameter.opts[-1]}"


def test_every_documented_command_exists() -> None:
    assert set(ITEMS) - {name.split()[0] for name in ALL} == set()


def linked(item: str) -> str:
    texts = [item]
    for file in re.findall(r"\]\((\w[\w-]*\.md)[)#]", item):
        texts.append((package_root() / "docs" / file).read_text())
    return "\n".join(texts)


def mentions(text: str, option: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text) is not None
