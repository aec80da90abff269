"""What the demonstrations run."""

from __future__ import annotations

import pytest

from deployer.config.profile import profile_folders, profile_names
from deployer_rehearsal.demo import DEMOS


@pytest.mark.parametrize("name", sorted(DEMOS))
def test_a_demo_applies_profiles_that_ship_and_compares_what_it_applied(name: str) -> None:
    applied = [words[1] for words in DEMOS[name].commands if words[0] == "apply"]
    assert set(applied) <= set(profile_names(profile_folders()))
    compared = next(words for words in DEMOS[name].commands if words[0] == "compare")
    subjects = [word for word in compared[1:] if word in applied]
    assert len(subjects) >= 2
    assert set(compared[1:]) - set(subjects) <= {"--html", "story.html"}
    if name != "standin":
        assert sorted(subjects) == sorted(applied)


def test_the_story_asks_whether_the_cap_on_micro_batches_had_an_effect() -> None:
    compared = DEMOS["story"].commands[-1]
    assert compared[:3] == ("compare", "pp8-async", "pp8-async-mb64")
