"""The documentation: links lead somewhere, files that are named exist, tables fit a screen."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from deployer.host.agent.main import all_operations
from tests.paths import DOCS, ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests/README.md", *DOCS.glob("*.md")])
#: Folders of the repository: a path in backticks that begins with one has to exist.
FOLDERS = (
    "benchmarks/",
    "deployer/",
    "deployer_rehearsal/",
    "docs/",
    "inventories/",
    "templates/",
    "tests/",
    "tools/",
)
#: Written by a command, so not part of the repository.
MADE = {"deployer/asked"}

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@cache
def text(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors GitHub gives to the headings of a page."""
    seen: dict[str, int] = {}
    names = set(re.findall(r'<a (?:id|name)="([^"]+)"', text(page)))
    for heading in re.findall(r"^#{1,6} (.*)$", text(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        names.add(f"{slug}-{count}" if count else slug)
    return frozenset(names)


def links(page: Path) -> list[str]:
    targets = ["".join(groups) for groups in LINK.findall(text(page))]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(file), f"{target}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    for word in re.findall(r"`([\w./*<>{}-]+)`", text(page)):
        if word.startswith(FOLDERS) and word not in MADE and not re.search(r"[<{]|[A-Z]{3,}\b(?!\.md)", word):
            assert any(ROOT.glob(word.rstrip("/"))), f"there is no {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_fit_a_screen(page: Path) -> None:
    wide = [line for line in text(page).splitlines() if line.startswith("|") and len(line) > 100]
    assert not wide, f"{len(wide)} rows over 100 characters, the first: {wide[0]}"


def test_every_page_is_in_the_index() -> None:
    index = set(links(DOCS / "README.md"))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= index


def test_every_operation_of_the_agent_is_documented() -> None:
    page = text(DOCS / "architecture.md")
    assert not [name for name in all_operations() if f"**`{name}`**" not in page]


def test_every_test_that_contributing_names_exists() -> None:
    names = set(re.findall(r"`(test_\w+)`", text(ROOT / "CONTRIBUTING.md")))
    defined = {
        name
        for path in (ROOT / "tests" / "unit").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert not names - defined
