"""Which earlier starts count, for whom, and which only tell of the noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deployer.deploy.baseline import Baseline, choose, configuration
from deployer.records.release import Release
from deployer.records.verdict import Verdict
from tests.unit.deploy.builders import release

ENGINE = ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]


def proven(number: int, profile: str, *flags: str, **changes: Any) -> Release:
    """A release that was live and measured."""
    return release(
        number,
        profile,
        argv=[*ENGINE, *flags],
        was_live=True,
        state="live",
        bench_summary={"levels": {"8": 100.0}},
        **changes,
    )


def candidate(number: int, profile: str, *flags: str) -> Release:
    return release(number, profile, argv=[*ENGINE, *flags])


def test_starts_of_the_same_profile_count_the_newest_first() -> None:
    known = [proven(n, "tp8", "--tp-size", "8") for n in (1, 2, 3)]
    found = choose(known, candidate(4, "tp8", "--tp-size", "8", "--new-flag"), "0003-tp8", starts=2)
    assert found.starts == ("0003-tp8", "0002-tp8")
    assert found.name == "tp8"
    assert found.beside is None
    assert found.groups == (("0003-tp8", "0002-tp8", "0001-tp8"),)


def test_another_profile_that_is_live_is_beside_and_does_not_decide() -> None:
    known = [proven(1, "pp8", "--pp-size", "8"), proven(2, "tp8", "--tp-size", "8")]
    found = choose(known, candidate(3, "pp8", "--pp-size", "8"), "0002-tp8")
    assert found.starts == ("0001-pp8",)
    assert found.beside == "0002-tp8"
    first = choose(known, candidate(3, "ep8", "--ep-size", "8"), "0002-tp8")
    assert (first.starts, first.beside) == ((), "0002-tp8")


def test_the_live_release_decides_where_that_is_wanted_and_nothing_where_not() -> None:
    known = [proven(1, "pp8", "--pp-size", "8"), proven(2, "tp8", "--tp-size", "8")]
    wanted = candidate(3, "pp8", "--pp-size", "8")
    assert choose(known, wanted, "0002-tp8", baseline="live").starts == ("0002-tp8",)
    assert choose(known, wanted, "0002-tp8", baseline="none") == Baseline(
        groups=(("0002-tp8",), ("0001-pp8",)), beside="0002-tp8"
    )


def test_starts_of_an_older_configuration_do_not_count() -> None:
    known = [
        proven(1, "tp8", "--tp-size", "8", sglang="0.5.9"),
        proven(2, "tp8", "--tp-size", "8"),
        proven(3, "tp8", "--tp-size", "8", "--port", "30001"),
    ]
    found = choose(known, candidate(4, "tp8", "--tp-size", "8"), "0003-tp8")
    assert found.starts == ("0003-tp8", "0002-tp8"), "the port has no part in the speed; the engine has"
    assert len(found.groups) == 2


def test_after_a_rollback_the_live_one_is_the_reference() -> None:
    known = [proven(1, "tp8"), proven(2, "tp8", "--slow")]
    assert choose(known, candidate(3, "tp8", "--new"), "0001-tp8").starts == ("0001-tp8",)


def test_what_was_never_live_or_never_measured_does_not_count() -> None:
    known = [release(1, "tp8", bench_summary={"levels": {}}), release(2, "tp8", was_live=True)]
    assert choose(known, candidate(3, "tp8"), "0002-tp8") == Baseline()


def undecided(number: int, *flags: str, check: str = "pass", result: str = "inconclusive") -> Release:
    verdict = {"relative": {"effect": -0.04, "result": result}, "checks": [{"result": check}]}
    return replace(candidate(number, "tp8", *flags), state="inconclusive", verdict=Verdict.from_json(verdict))


def test_inconclusive_starts_of_the_same_configuration_count_with_the_candidate() -> None:
    known = [proven(1, "tp8"), undecided(2, "--new"), undecided(3, "--other"), undecided(4, "--new")]
    known += [undecided(5, "--new", check="inconclusive"), undecided(6, "--new", result="pass")]
    found = choose(known, candidate(7, "tp8", "--new"), "0001-tp8")
    assert found.earlier == ("0004-tp8", "0002-tp8")
    assert ("0004-tp8", "0002-tp8") in found.groups, "they tell of the noise too"
    settled = [*known, proven(7, "tp8", "--new")]
    assert choose(settled, candidate(8, "tp8", "--new"), "0007-tp8").earlier == ()


def test_the_name_of_the_release_is_no_part_of_a_configuration() -> None:
    one, two = (
        replace(
            proven(n, "tp8", "--config", f"/var/lib/deployer/kimi/releases/000{n}-tp8/config.yaml"),
            environment={"DEPLOYER_RELEASE": f"000{n}-tp8"},
        )
        for n in (1, 2)
    )
    assert configuration(one) == configuration(two)


@given(st.lists(st.tuples(st.sampled_from(["tp8", "pp8"]), st.booleans(), st.sampled_from("ab")), max_size=8))
def test_a_baseline_is_of_one_configuration_and_proven(history: list[tuple[str, bool, str]]) -> None:
    known = [
        replace(proven(n, profile, flag), was_live=live) for n, (profile, live, flag) in enumerate(history, start=1)
    ]
    for baseline in ("profile", "live", "none"):
        live = next((item.release for item in reversed(known) if item.was_live), None)
        found = choose(known, candidate(99, "tp8", "a"), live, baseline=baseline, starts=3)
        used = [item for item in known if item.release in found.starts]
        assert all(item.was_live for item in used)
        assert len({configuration(item) for item in used}) <= 1
        assert len(found.starts) <= 3
        assert found.beside not in found.starts
