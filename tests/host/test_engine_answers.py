"""The stand-in answers as the real SGLang does, by what was kept of the real one's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.answers import collect, differences, kept, recall, store
from tests.host.test_engine import NEW, Start, start

__all__ = ["start"]


@pytest.mark.parametrize("argv", [("--tp-size", "2"), ("--pp-size", "2", "--pp-async-batch-depth", "2")])
def test_the_stand_in_answers_as_the_real_one(start: Start, argv: tuple[str, ...]) -> None:
    engine = start(NEW, *argv, "--enable-metrics", "--served-model-name", "tiny", SGLANG_STANDIN_SPEED="10")
    assert differences(recall(kept(NEW)), collect(engine.ready().url)) == []


def test_every_kind_of_difference_is_seen(tmp_path: Path) -> None:
    real = recall(kept(NEW))
    store(tmp_path / "again.json", real)
    assert recall(tmp_path / "again.json") == real

    def other(name: str, **changes: Any) -> dict[str, Any]:
        return {**real, name: {**real[name], **changes}}

    fields = dict(real["server_info"]["fields"])
    fields["internal_states[].pp_max_micro_batch_size"] = "text"
    del fields["internal_states[].last_gen_throughput"], fields["tp_size"]
    fields["made_up"] = "number"
    changed = [
        other("health", status=204),
        other("set_other", said=[True]),
        other("completion_stream", events=["last", "[DONE]"]),
        other("metrics", **{"sglang:made_up": "gauge"}),
        other("metrics", **{"sglang:token_usage": "counter"}),
    ]
    assert [len(differences(real, one)) for one in changed] == [1] * len(changed)
    assert [text.partition(": ")[2] for text in differences(real, other("server_info", fields=fields))] == [
        "internal_states[].last_gen_throughput is number there, absent here",
        "internal_states[].pp_max_micro_batch_size is number there, text here",
        "made_up is absent there, number here",
        "tp_size is number there, absent here",
    ]
