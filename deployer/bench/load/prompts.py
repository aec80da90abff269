"""Prompts for the benchmark: short texts of many subjects, languages and notations, drawn by a seed.

A mixture-of-experts model routes tokens by what they are about. One repeated word, or one word list, sends
all of them to the same few experts and measures something no user sees. So every prompt strings together
sentences of different kinds, each kind once before any comes again; names and numbers differ from prompt to
prompt, and so do its first words, so that a prefix cache has nothing to answer from.
"""

from __future__ import annotations

import random
import re

#: What stands for ``{name}`` in a sentence.
_SLOTS = {
    slot: words.split()
    for slot, _, words in (
        line.partition(": ")
        for line in """\
who: Ada Bruno Chidi Dalia Emil Farah Goran Hana Ivo Jun Kofi Lena Marek Nadia Omar Petra Qiu Rosa Sven Tala
town: Accra Bergen Cusco Dakar Essen Fukuoka Graz Hanoi Izmir Jaipur Kyiv Lima Malmö Nantes Oulu Porto
drug: metformin ibuprofen warfarin amoxicillin insulin cortisone digoxin heparin
organ: liver kidney lung heart thyroid spleen knee retina
food: lentils saffron aubergine barley fennel mackerel tamarind walnuts
beast: heron badger octopus lynx beetle tortoise swift narwhal
stuff: copper basalt glass rubber graphite cedar ice tungsten
deed: lease will patent mortgage contract licence subpoena treaty
tool: lathe compass loom sextant bellows chisel pump winch
tune: waltz fugue samba raga polka ballad chorale tango
name: queue index total buffer cache graph token ledger
""".splitlines()
    )
}

_KINDS: tuple[tuple[str, ...], ...] = (
    (
        "After {n} mg of {drug} the patient from {town} had pain in the {organ}, and {who} ordered a scan.",
        "A biopsy of the {organ} was clear; {who} stopped the {drug} after {n} days.",
    ),
    (
        "Under clause {n} of the {deed}, {who} may appeal to the court in {town} within thirty days.",
        "The judge held that the {deed} of {year} was void because {who} had never signed it.",
    ),
    (
        "Simmer the {food} with garlic for {n} minutes, then let it rest while you toast the {food2}.",
        "{who} swears that {food} from the market in {town} tastes better with vinegar.",
    ),
    (
        "A rod of {stuff} at {n} kelvin expands; derive its length if the coefficient is 1.{n}e-5.",
        "Light crosses {stuff} more slowly than air, so the beam bends by about {n} degrees.",
    ),
    (
        "In {year} the {beast} returned to the hills near {town}, where {n} pairs now breed.",
        "The {beast} sleeps by day and, as {who} noted in {year}, hunts only when the moon is new.",
    ),
    (
        "Shares of the {tool} maker in {town} fell {n} percent after its bond was downgraded in {year}.",
        "{who} hedged the loan with a swap, paying {n} basis points over the central bank's rate.",
    ),
    (
        '"Did you bring the {tool}?" asked {who}. "No," said {who2}, "I left it in {town}, with the {beast}."',
        '"{n} to one," {who} whispered, and the whole choir began the {tune} again.',
    ),
    (
        "The {tune} modulates from D minor at bar {n}; {who} plays it with a mute, almost without vibrato.",
        "Down two sets, {who} saved {n} break points and won the final in {town} on a double fault.",
    ),
    (
        "def {name}_{n}(items):\n    return sorted(set(items), key=lambda x: (-x.{name2}, x.id))[:{n}]\n",
        "for i in range({n}):\n    {name}[i] ^= ({name2}[i] << 3) & 0xff  # {who}\n",
    ),
    (
        "SELECT {name}_id, COUNT(*) FROM {name2}s WHERE year > {year} GROUP BY 1 HAVING COUNT(*) > {n};\n",
        '{{"{name}": {n}, "{name2}": [{year}, null, true], "owner": "{who}", "city": "{town}"}}\n',
    ),
    (
        "static int {name}(const char *p) {{ while (*p && *p != '{n}') p++; return *p ? {n} : -1; }}\n",
        "$ grep -rn '{name}' src/{name2} | sort -u | head -{n} > /tmp/{name}.txt && wc -l /tmp/{name}.txt\n",
    ),
    (
        "Let G be a group of order {n}; if every proper subgroup is cyclic, is G abelian? Prove it.",
        "Solve x^2 - {n}x + {year} = 0 over the integers modulo 97, and state how many roots there are.",
    ),
    (
        "Le {n} mars {year}, {who} prit le train pour {town} sans prévenir sa famille.",
        "Im Jahr {year} baute {who} bei {town} eine Brücke, die {n} Meter überspannte.",
    ),
    (
        "En {town} llovió durante {n} días y {who} perdió la cosecha de {year}.",
        "Nel {year} {who} vendette la bottega di {town} per {n} fiorini e partì.",
    ),
    (
        "В {year} году {who} переехала в город {town} и открыла там школу на {n} учеников.",
        "W roku {year} {who} wróciła do miasta {town} i napisała {n} listów.",
    ),
    (
        "{year}年，{who}在{town}开了一家书店，第一天就卖出了{n}本书。",
        "{who}さんは{year}年に{town}へ引っ越して、毎朝{n}分ほど川沿いを走っています。",
    ),
)

_PIECE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]{1,2}|\s*[^\s\u3040-\u30ff\u4e00-\u9fff]+")
_RUN = re.compile(r"(?P<sign>[\u3040-\u30ff\u4e00-\u9fff]+)|(?P<word>[^\W\d_]+)|(?P<number>\d+)|(?P<mark>[^\s\w]+|_)")
_FIRST_WORDS = "Note {number:06d}{letter} for {who}:"
_estimates: dict[str, float] = {}


def estimate(text: str) -> float:
    """About how many tokens a text is; what is true of one tokenizer, `deployer.bench.load.run` learns as a factor.

    Fitted to the byte-pair vocabularies that today's models have (100 000 to 200 000 entries): prompts of 100 words
    scatter by 2.5 % around it, and by 7 % around the number of their words.
    """
    total = 0.0
    for match in _RUN.finditer(text):
        run = match[0]
        if match.lastgroup == "sign":
            total += len(run)
        elif match.lastgroup == "number":
            total += 1.5 * -(-len(run) // 3)
        elif match.lastgroup == "mark":
            total += 0.45 + 0.32 * len(run)
        elif run.isascii():
            total += 1.1 + 0.43 * max(0, len(run) - 6)
        else:
            total += 0.3 + 0.45 * len(run)
    return total


def prompt(seed: str, length: float, *, shared: float = 0, common: str = "") -> str:
    """A text of ``shared`` + ``length`` tokens by `estimate`, the same for the same arguments.

    It ends with the word (in Chinese and Japanese two signs) that brings it nearest to that. The first ``shared``
    follow from ``common`` alone and are those of every prompt with the same ``common``; what comes after follows from
    ``seed`` and differs from its first words on.
    """
    common_part = "".join(_cut([], f"shared/{common}", shared)) + "\n" if shared > 0 else ""
    own = random.Random(f"opening/{seed}")
    number, letter, who = own.randrange(10**6), own.choice("bcdfghjk"), own.choice(_SLOTS["who"])
    opening = _PIECE.findall(_FIRST_WORDS.format(number=number, letter=letter, who=who))
    return common_part + "".join(_cut(opening, seed, length))


def _cut(opening: list[str], seed: str, length: float) -> list[str]:
    """Pieces of text, ``opening`` first and at least one, as near to ``length`` as they come."""
    draw = random.Random(seed)
    kinds: list[tuple[str, ...]] = []
    pieces: list[str] = []
    coming, total = opening, 0.0
    while True:
        for piece in coming:
            if piece not in _estimates:
                _estimates[piece] = estimate(piece)
            weight = _estimates[piece]
            if pieces and total + weight / 2 > length:
                return pieces
            pieces.append(piece)
            total += weight
        if not kinds:
            kinds = draw.sample(_KINDS, len(_KINDS))
        coming = _PIECE.findall(" " + _sentence(draw, draw.choice(kinds.pop())))


def _sentence(draw: random.Random, template: str) -> str:
    words = {slot: draw.choice(choices) for slot, choices in _SLOTS.items()}
    again = {f"{slot}2": draw.choice(_SLOTS[slot]) for slot in ("who", "food", "name")}
    return template.format(n=draw.randint(2, 99), year=draw.randint(1700, 2030), **words, **again)
