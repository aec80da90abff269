"""What the words of `compare` mean: releases, profiles, later benchmarks, files, several as starts of one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployer.bench import document
from deployer.bench.load import run
from deployer.errors import ConfigError, DeployerError, Refused, UsageError
from deployer.inspect.compare import (
    BenchStore,
    DifferentArgument,
    compare_words,
    different_arguments,
    subjects,
)
from deployer.records.bench import About
from deployer.records.failure import Failure
from deployer.records.release import BenchSummary, ModelRef, Release
from deployer.report.comparison_view import all_doubts

Json = dict[str, Any]


def bench(rate: float, **more: Any) -> Json:
    return {
        "levels": [{"concurrency": 8, "aggregate_tok_s": rate, "failed": {}}],
        "singles": {"tok_s": [rate / 4]},
        "single_stream_tok_s": rate / 4,
        "workload": {"prompt_tokens": 128},
        "place": "host",
        **more,
    }


def release(number: int, profile: str, *arguments: str) -> Release:
    name = f"{number:04d}-{profile}"
    return Release(
        "kimi",
        name,
        number=number,
        profile=profile,
        argv=("python", "-m", "sglang.launch_server", "--port", str(number), *arguments),
        environment={"DEPLOYER_RELEASE": name, "A": "1"},
        was_live=True,
        bench_summary=BenchSummary(),
        model=ModelRef("/m", "f"),
        sglang="0.5.12",
    )


RELEASES = [
    release(1, "tp8", "--tp", "8"),
    release(2, "tp8", "--tp", "8", "--mem-fraction-static", "0.8"),
    release(3, "pp8", "--pp", "8", "--disable-cuda-graph"),
    release(4, "tp8", "--tp", "8", "--mem-fraction-static", "0.8"),
    replace(release(5, "pp8"), bench_summary=None),
]
FILES = {(item.release, "bench.json"): bench(100.0 + item.number) for item in RELEASES[:4]}
FILES["0004-tp8", "bench-1.json"] = bench(200.0)


def shelf() -> BenchStore:
    return BenchStore(RELEASES, lambda release, name: json.dumps(FILES.get((release, name))), "gpu1")


@pytest.mark.parametrize(
    ("word", "name", "starts"),
    [
        ("1", "0001-tp8", ("0001-tp8",)),
        ("0003", "0003-pp8", ("0003-pp8",)),
        ("0003-pp8", "0003-pp8", ("0003-pp8",)),
        ("4@1", "0004-tp8@1", ("0004-tp8",)),
        ("pp8", "0003-pp8", ("0003-pp8",)),
        ("tp8", "tp8 (2 starts)", ("0004-tp8", "0002-tp8")),
        ("4+4@1", "0004-tp8+0004-tp8@1", ("0004-tp8", "0004-tp8")),
    ],
)
def test_a_word_names_benchmarks(word: str, name: str, starts: tuple[str, ...]) -> None:
    found = subjects([word], shelf)[0]
    assert (found.name, found.starts) == (name, starts)
    assert found.about.host == "gpu1"


def test_the_name_of_a_profile_means_its_proven_starts() -> None:
    states = {6: "failed", 7: "inconclusive", 8: "interrupted"}
    tried = [
        replace(release(number, "tp8", "--tp", "8", "--mem-fraction-static", "0.8"), was_live=False, state=state)
        for number, state in states.items()
    ]
    more = [*tried, replace(release(9, "ep8"), was_live=False, state="failed", failure=Failure("gate-fail", "slow"))]
    files = {**FILES, **{(item.release, "bench.json"): bench(10.0) for item in more}}
    made = BenchStore([*RELEASES, *more], lambda name, file: json.dumps(files.get((name, file))))
    assert subjects(["tp8"], lambda: made)[0].starts == ("0004-tp8", "0002-tp8")
    assert [subject.starts for subject in subjects(["6", "7", "8"], lambda: made)] == [
        ("0006-tp8",),
        ("0007-tp8",),
        ("0008-tp8",),
    ]
    with pytest.raises(Refused) as caught:
        subjects(["ep8"], lambda: made)
    assert caught.value.message == "ep8 has no proven start: 0009-ep8 was never live: failed (gate-fail)"
    assert caught.value.remedy is not None
    assert caught.value.remedy.endswith("by its number: 9")


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["9"], Refused, "'9' has no benchmark"),
        (["9@1"], Refused, "no release '9'"),
        (["5"], Refused, "it did not get that far"),
        (["1@2"], Refused, "has no benchmark 2"),
        (["1", "0001"], UsageError, "0001-tp8 is named twice"),
        (["/nowhere.json"], ConfigError, "/nowhere.json cannot be read"),
        ([""], Refused, "''"),
        (["1++2"], Refused, "''"),
    ],
)
def test_a_word_that_names_nothing_is_an_error(words: list[str], error: type[DeployerError], said: str) -> None:
    with pytest.raises(error) as caught:
        subjects(words, shelf)
    assert said in caught.value.message


def test_a_file_needs_no_host(tmp_path: Path) -> None:
    plain, wrapped = tmp_path / "old.json", tmp_path / "new.json"
    plain.write_text(json.dumps(bench(50.0)))
    wrapped.write_text(json.dumps({"bench": bench(60.0), "about": {"profile": "tp8", "releases": 3, "x": 1}}))

    def nobody() -> BenchStore:
        raise AssertionError("the host was asked")

    found = subjects([str(plain), str(wrapped)], nobody)
    assert [item.name for item in found] == ["old", "new"]
    assert found[1].about == About(profile="tp8")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"bench": 3}', '{"levels": 3}', "\x00"])
def test_a_file_that_is_not_a_benchmark_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json is not"):
        subjects([str(path)], shelf)


def test_what_was_measured_otherwise_is_not_taken_together(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(bench(50.0, place="operator")))
    with pytest.raises(Refused, match="cannot be taken together: the load came from the host"):
        subjects([f"1+{path}"], shelf)


def test_arguments_that_differ() -> None:
    rows = different_arguments(subjects(["1", "pp8"], shelf))
    assert rows == [
        DifferentArgument("--tp", {"0001-tp8": "8", "0003-pp8": None}),
        DifferentArgument("--pp", {"0001-tp8": None, "0003-pp8": "8"}),
        DifferentArgument("--disable-cuda-graph", {"0001-tp8": None, "0003-pp8": ""}),
    ]


def test_a_damaged_benchmark_is_left_out_of_the_noise() -> None:
    texts = {name: json.dumps(found) for name, found in FILES.items()}
    texts["0004-tp8", "bench.json"] = "{"
    damaged = BenchStore(RELEASES, lambda release, name: texts.get((release, name)))
    assert damaged.noise().starts == 3
    assert shelf().noise().starts == 4


def test_what_is_not_comparable_is_refused_unless_anyway(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(bench(50.0, place="operator")))
    with pytest.raises(Refused) as caught:
        compare_words(["1", str(path)], shelf)
    assert caught.value.exit_code == 3
    assert "x: the load came from the host and comes from the operator" in caught.value.message
    found = compare_words(["1", str(path)], shelf, anyway=True)
    assert found.differences == ("x: the load came from the host and comes from the operator",)
    assert found.levels() == [1, 8]
    assert found.noise.starts == 4


def test_a_benchmark_does_not_count_twice(tmp_path: Path) -> None:
    for name in ("one", "copy"):
        document = {"levels": [], "started": 5.0, "spec": {"salt": "a"}}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match="copy is in one\\+copy twice"):
        subjects([f"{tmp_path}/one.json+{tmp_path}/copy.json"], lambda: pytest.fail("no host is needed"))


def test_one_benchmark_under_two_names_is_not_compared_with_itself(tmp_path: Path) -> None:
    known = bench(100.0, started=17.0, spec={"salt": "abc"})
    other = bench(90.0, started=18.0, spec={"salt": "def"})
    for name, content in (("one", known), ("copy", known), ("other", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    one, copy, two = (str(tmp_path / f"{name}.json") for name in ("one", "copy", "other"))
    for words in ([one, copy], [one, f"{two}+{copy}"]):
        with pytest.raises(UsageError, match="holds a benchmark that is named before it"):
            subjects(words, shelf)
    assert len(subjects([one, two], shelf)) == 2


def test_files_of_one_name_are_called_by_their_folders(tmp_path: Path) -> None:
    for folder, rate in (("before/x", 100.0), ("after/x", 90.0)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "bench.json").write_text(json.dumps(bench(rate)))
    paths = [str(tmp_path / folder / "x" / "bench.json") for folder in ("before", "after")]
    assert [one.name for one in subjects(paths, shelf)] == ["before/x/bench", "after/x/bench"]
    with pytest.raises(UsageError, match="bench is named twice"):
        subjects([paths[0], str(tmp_path / "before" / "." / "x" / "bench.json")], shelf)


@pytest.mark.parametrize(("schema", "known"), [(1, True), (2, True), (None, True), (3, False), ("x", False)])
def test_a_document_of_a_newer_deployer_is_not_guessed_at(tmp_path: Path, schema: object, known: bool) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps(bench(100.0, schema=schema)))
    if known:
        assert subjects([str(path)], shelf)[0].name == "b"
        return
    with pytest.raises(ConfigError, match=f"it is of version {schema}, and this deployer reads those up to 2"):
        subjects([str(path)], shelf)


def test_a_release_that_never_was_live_is_called_that() -> None:
    failure = Failure("gate-fail", "too slow")
    gone = replace(RELEASES[2], was_live=False, state="failed", failure=failure)
    made = BenchStore([RELEASES[0], gone], shelf().read)
    said = all_doubts(compare_words(["1", "3"], lambda: made))
    assert said[0] == "0003-pp8 was never live: failed (gate-fail)"
    assert not any("0001-tp8 was never" in text for text in said)


def test_the_newest_version_is_the_one_that_is_written() -> None:
    assert run.SCHEMA == document.NEWEST
