"""Reading the variables of SGLang's versions from their sources."""

from __future__ import annotations

import json
from pathlib import Path

from tools.variables import DATA, document, named

SOURCE = """
class Envs:
    SGLANG_PORT = EnvInt(3)
    SGLANG_OTHER = _DeprecatedEnv("SGL_OLD", 1)

x = os.environ["SGLANG_QUOTED"]  # not SGLANG_IN_WORDS
prefix = "SGLANG_DUMPER_"
"""


def test_variables_are_found_where_they_are_declared_and_read() -> None:
    assert named(SOURCE) == {"SGLANG_PORT", "SGLANG_OTHER", "SGL_OLD", "SGLANG_QUOTED"}


def test_each_has_its_first_and_last_version() -> None:
    text = document({"0.5.1": {"SGL_A", "SGL_B"}, "0.5.2": {"SGL_B"}, "0.5.3": {"SGL_B", "SGL_C"}})
    spans = {(item["first"], item["last"]): item["names"] for item in json.loads(text)["spans"]}
    assert spans == {("0.5.1", "0.5.1"): ["SGL_A"], ("0.5.1", "0.5.3"): ["SGL_B"], ("0.5.3", "0.5.3"): ["SGL_C"]}


def test_the_shipped_file_is_as_it_is_written() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    versions = data["versions"]
    found: dict[str, set[str]] = {version: set() for version in versions}
    for span in data["spans"]:
        for version in versions[versions.index(span["first"]) : versions.index(span["last"]) + 1]:
            found[version].update(span["names"])
    assert document(found) == Path(DATA).read_text(encoding="utf-8")
