"""Measure `diagnose` on a folder of logs: right, unknown, wrong.

    python -m tools.score_logs FOLDER [--max-wrong PERCENT] [--min-right PERCENT]

FOLDER holds logs in any format and an `expect.toml`, with a table for each log:

    ["some.log"]
    signature = ["weights_names", "weights_shape"]    # any of them is right; "none": nothing failed; "stopped"
    words = "input_layernorm"                         # optional: the cause must hold these words
    phase = "load"                                    # optional

`unknown` counts as right only if it is among the expected signatures (nothing better can be said); then `words` say
which of the exception's own words must be shown. Elsewhere it is counted as unknown: honest, and no help.
Exit code 1 if more is wrong than --max-wrong, or less right than --min-right; 2 if FOLDER has no expectations.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deployer.inspect.diagnose import of_file
from deployer.sglang.log.diagnosis import NONE, Diagnosis
from deployer.sglang.log.failures import UNKNOWN

RIGHT, WRONG = "right", "wrong"


@dataclass(frozen=True)
class Expected:
    """What a log's diagnosis must be."""

    signatures: tuple[str, ...]
    words: str = ""
    phase: str = ""


@dataclass(frozen=True)
class Score:
    """The verdicts on the logs of a folder, by file name: right, unknown or wrong, and what was said."""

    verdicts: dict[str, str]
    said: dict[str, str]

    def share(self, verdict: str) -> float:
        """Return the percentage of logs with a verdict."""
        return 100.0 * Counter(self.verdicts.values())[verdict] / max(len(self.verdicts), 1)


def expectations(folder: Path) -> dict[str, Expected]:
    """Return what is expected of each log of a folder. Raise FileNotFoundError, or ValueError for a wrong table."""
    tables = tomllib.loads((folder / "expect.toml").read_text("utf-8"))
    found = {}
    for name, table in tables.items():
        unknown = set(table) - {"signature", "words", "phase"}
        if unknown or "signature" not in table:
            raise ValueError(f"{folder / 'expect.toml'}: [{name}] needs `signature`, and takes `words` and `phase`")
        names = table["signature"]
        signatures = (names,) if isinstance(names, str) else tuple(names)
        found[name] = Expected(signatures, table.get("words", ""), table.get("phase", ""))
    return found


def verdict(expected: Expected, diagnosis: Diagnosis) -> str:
    """Return whether a diagnosis is right, unknown or wrong."""
    cause = diagnosis.cause
    signature = cause.signature if cause else NONE
    shown = f"{cause.cause} {cause.quote} {' '.join(cause.evidence)}" if cause else ""
    fits = expected.words in shown and expected.phase in ("", diagnosis.phase)
    if signature in expected.signatures and fits:
        return RIGHT
    return UNKNOWN if signature == UNKNOWN else WRONG


def score(folder: Path) -> Score:
    """Return the verdicts on all logs of a folder that have an expectation."""
    verdicts, said = {}, {}
    for name, expected in expectations(folder).items():
        diagnosis = of_file(str(folder / name))
        verdicts[name] = verdict(expected, diagnosis)
        said[name] = f"{diagnosis.cause.signature if diagnosis.cause else NONE}: {diagnosis.verdict}"
    return Score(verdicts, said)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the score of a folder; return the exit code."""
    parser = argparse.ArgumentParser(prog="score_logs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--max-wrong", type=float, default=5.0, metavar="PERCENT")
    parser.add_argument("--min-right", type=float, default=0.0, metavar="PERCENT")
    options = parser.parse_args(arguments)
    try:
        result = score(options.folder)
    except (OSError, ValueError) as error:
        print(f"score_logs: {error}", file=sys.stderr)
        return 2
    for name, one in sorted(result.verdicts.items(), key=lambda item: (item[1] != WRONG, item[1], item[0])):
        print(f"{one:8}{name}" + ("" if one == RIGHT else f"\n        {result.said[name][:300]}"))
    shares = ", ".join(f"{one} {result.share(one):.1f} %" for one in (RIGHT, UNKNOWN, WRONG))
    print(f"{len(result.verdicts)} logs: {shares}")
    wrong = result.share(WRONG) > options.max_wrong or result.share(RIGHT) < options.min_right
    return 1 if wrong or not result.verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
