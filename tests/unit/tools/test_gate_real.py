"""What the gate's real applies change in an inventory, and how an engine is held up."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from deployer.resources import shipped
from tools.gate_real import inventory
from tools.hold_up import PERIOD, owed

BENCH = {"levels": [2, 4], "output_tokens": 48, "repeats": 2, "discard": True, "budget": 90.0}


@pytest.mark.parametrize(
    ("name", "service", "called"),
    [("rehearsal.toml", "kimi", "kimi-3"), ("rehearsal-sglang.toml", "tiny", "tiny-3")],
)
def test_the_shipped_inventories_get_the_usual_gate_another_name_and_a_benchmark(
    name: str, service: str, called: str
) -> None:
    text = (shipped("inventories") / name).read_text()
    before, after = (tomllib.loads(words) for words in (text, inventory(text, 3, BENCH, {})))
    changed: dict[str, Any] = after["services"][service]
    assert "relative_gate" in before["services"][service], "there was one to take out"
    assert "relative_gate" not in changed
    assert changed["served_model_name"] == called
    assert changed["bench"] == {**before["services"][service]["bench"], **BENCH}
    assert {**changed, "bench": 0, "served_model_name": 0} == {
        **{key: value for key, value in before["services"][service].items() if key != "relative_gate"},
        "bench": 0,
        "served_model_name": 0,
    }


def test_any_service_with_comments_and_without_a_line_at_the_end() -> None:
    text = """# A host.
[services.my-llm]      # the only one
model = "/m"

[services.my-llm.relative_gate]  # as lenient as can be
max_loss = 0.4

[services.my-llm.limits] # limits
max_running_requests = 8"""
    service = tomllib.loads(inventory(text, 12, BENCH, {"KIND": "slower"}))["services"]["my-llm"]
    assert service == {
        "model": "/m",
        "served_model_name": "my-llm-12",
        "limits": {"max_running_requests": 8},
        "bench": BENCH,
        "environment": {"KIND": "slower"},
    }


def test_what_cannot_be_changed_line_by_line_is_refused() -> None:
    with pytest.raises(ValueError, match="line by line"):
        inventory('[services.a]\nmodel = "m"\nrelative_gate = { max_loss = 0.4 }\n', 1, BENCH, {})


def test_a_share_of_the_time_is_held_whatever_the_machine_does() -> None:
    elapsed = held = 0.0
    for cycle in range(400):
        stop = owed(0.1, elapsed, held)
        late = 0.03 if cycle % 3 == 0 else 0.0
        elapsed += max(PERIOD, stop + late) + (0.07 if cycle % 5 == 0 else 0.0)
        held += stop + (late if cycle % 6 == 0 else 0.0)
    assert held / elapsed == pytest.approx(0.1, rel=0.02)
    assert owed(0.1, 10.0, 0.0) == PERIOD / 2, "never for long at once"
