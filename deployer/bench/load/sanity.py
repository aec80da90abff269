"""Whether what came back is sane: outputs that are text at all, and a fixed prompt that answers the same.

Broken numerics show as empty answers, one token over and over, or bytes that decode to nothing; a server that
answers one prompt at temperature 0 in two ways is at least not deterministic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from deployer.bench.load.spec import Json
from deployer.bench.load.stats import Request, one_token_repeated

#: Sent before and after the levels. Plain enough that a sound model of any size goes on in one way.
FIXED_PROMPT = (
    "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday. "
    "The months of the year are January, February, March,"
)
FIXED_TOKENS = 32

#: More than this share of outputs has to be odd before it counts: single odd ones come from odd prompts.
ODD_SHARE = 0.1
#: A text with more than this share of U+FFFD (what no character decodes to) is not text. An answer that ends within
#: a character has one.
UNDECODED_SHARE = 0.05


def undecoded(text: str) -> bool:
    """Return whether much of the text is bytes that are not characters."""
    count = text.count("\ufffd")
    return count > 2 and count > UNDECODED_SHARE * len(text)


def fixed_prompt(answers: Sequence[Request]) -> Json | None:
    """Return what the fixed prompt gave, before the load and again after it. None if it was never answered."""
    texts = [r.text for r in answers if r.completed]
    if not texts:
        return None
    return {
        "prompt": FIXED_PROMPT,
        "text": texts[0],
        "sha256": hashlib.sha256(texts[0].encode("utf-8", "surrogatepass")).hexdigest(),
        "same_twice": texts[0] == texts[-1] if len(texts) > 1 else None,
    }


def sanity(outputs: Sequence[Request], answers: Sequence[Request]) -> Json:
    """Return the ``sanity`` of the bench document, from all measured requests and the answers to the fixed prompt.

    ``{"ok", "checks": [{"name", "ok", "text"}], "fixed_prompt"}``; ok is None if there was nothing to check.
    """
    texts = [r.text for r in outputs if r.completed]
    checks = [
        _share("not-empty", "nothing but blanks", [not text.strip() for text in texts]),
        _share("no-repetition", "one token over and over", [one_token_repeated(text) for text in texts]),
        _share("decodes", "bytes that are not characters", [undecoded(text) for text in texts]),
    ]
    prompt = fixed_prompt(answers)
    same = prompt["same_twice"] if prompt else None
    text = {
        True: "the fixed prompt was answered the same before and after the load",
        False: "the fixed prompt was answered in two ways at temperature 0",
        None: "the fixed prompt was not answered twice",
    }[same]
    checks.append({"name": "same-twice", "ok": same, "text": text})
    return {"ok": verdict([check["ok"] for check in checks]), "checks": checks, "fixed_prompt": prompt}


def verdict(values: Sequence[bool | None]) -> bool | None:
    """Return False if a check failed, True if some passed and none failed, None if none could be made."""
    return False if False in values else (True if True in values else None)


def _share(name: str, what: str, odd: Sequence[bool]) -> Json:
    if not odd:
        return {"name": name, "ok": None, "text": "there were no outputs"}
    return {
        "name": name,
        "ok": sum(odd) <= ODD_SHARE * len(odd),
        "text": f"{sum(odd)} of {len(odd)} outputs are {what}",
    }
