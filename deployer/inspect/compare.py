"""What `compare` puts side by side: releases, profiles, benchmarks made later, files; and the noise of the service."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from deployer.bench.comparison import Comparison, Subject, compare, differences
from deployer.bench.document import LARGEST, newer, read_document, read_json
from deployer.bench.noise import learn
from deployer.bench.relative import measured_alike
from deployer.deploy.baseline import WITHOUT_SPEED, configuration, noise_groups
from deployer.deploy.plan import grouped_arguments
from deployer.deploy.session import Session
from deployer.errors import ConfigError, Refused, UsageError
from deployer.records.bench import About, BenchRun
from deployer.records.codec import Json
from deployer.records.release import OWN_VARIABLE, Release
from deployer.records.verdict import Noise
from deployer.units.bundle import comparable

#: The newest starts of a profile's configuration that are taken together.
MOST_STARTS = 5
_LATER = re.compile(r"(?P<release>.+)@(?P<number>[1-9][0-9]*)", re.S)

#: Reads a file of a release (service, release, file's name); None where there is none.
Reader = Callable[[str, str], str | None]


@dataclass
class BenchStore:
    """The releases of one service, and their benchmarks, each read once."""

    releases: Sequence[Release]
    read: Reader
    host: str | None = None
    gpus: Sequence[str] = ()
    _kept: dict[tuple[str, str], BenchRun | None] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session) -> BenchStore:
        """Return the store of a session's service."""
        service = session.service.name

        def read(release: str, name: str) -> str | None:
            return session.client.release_file(service, release, name)

        observed = session.observe(facts=True)
        gpus = [gpu.name for gpu in observed.gpus or ()]
        return cls(observed.services[service].releases, read, session.host_config.name, gpus)

    def bench(self, release: str, name: str = "bench.json") -> BenchRun | None:
        """Return a benchmark of a release; None if it has none that can be read."""
        if (release, name) not in self._kept:
            bench = None
            with suppress(ValueError):
                bench = read_document(self.read(release, name) or "null")
            self._kept[release, name] = None if bench and newer(bench) else bench
        return self._kept[release, name]

    def noise(self) -> Noise:
        """Return what the service's own proven starts show."""
        groups = noise_groups(self.releases)
        return learn([[bench for name in group if (bench := self.bench(name))] for group in groups])

    def subject(self, wanted: str) -> Subject:
        """What a release's number or name, ``RELEASE@N``, or a profile stands for. Refused where there is none."""
        named, number = wanted, None
        if match := _LATER.fullmatch(wanted):
            named, number = match["release"], match["number"]
        record = self._named(named)
        if record is None and number is None:
            return self._profile(wanted)
        if record is None:
            raise Refused(f"there is no release {named!r}", remedy="`deployer history` lists them")
        release, file = record.release, "bench.json"
        if number is not None:
            file = f"bench-{number}.json"
        bench = self.bench(release, file)
        if bench is None:
            raise Refused(
                f"release {release} has no benchmark {number}"
                if number
                else f"release {release} has no benchmark: it did not come that far",
                remedy="`deployer history` lists the releases with their benchmarks",
            )
        name = f"{release}@{number}" if number else release
        return Subject(name, (bench,), (release,), self.describe([record]))

    def describe(self, releases: Sequence[Release]) -> About:
        """Return what is known of a subject made of these releases."""
        return about(releases, self.host, self.gpus)

    def _named(self, wanted: str) -> Release | None:
        for release in self.releases:
            if wanted in (str(release.number), f"{release.number:04d}", release.release):
                return release
        return None

    def _profile(self, wanted: str) -> Subject:
        """The starts of the newest configuration of a profile that was measured, the newest first."""
        measured = [item for item in reversed(self.releases) if item.profile == wanted and item.bench_summary]
        if not measured:
            raise Refused(
                f"there is no file, release or profile {wanted!r} with a benchmark",
                remedy="`deployer history` lists the releases and their speeds",
            )
        same = [item for item in measured if configuration(item) == configuration(measured[0])]
        found = [(item, bench) for item in same[:MOST_STARTS] if (bench := self.bench(item.release))]
        if not found:
            raise Refused(f"the benchmark of release {measured[0].release} cannot be read")
        found = [pair for pair in found if not measured_alike(pair[1], found[0][1])]
        names = tuple(item.release for item, _ in found)
        name = names[0] if len(names) == 1 else f"{wanted} ({len(names)} starts)"
        return Subject(
            name, tuple(bench for _, bench in found), names, self.describe([item for item, _ in found])
        )


def about(releases: Sequence[Release], host: str | None = None, gpus: Sequence[str] = ()) -> About:
    """Return what is known of a subject from its releases; of the first one where they differ."""
    first = releases[0]
    return About(
        releases=tuple(item.release for item in releases),
        profile=first.profile,
        created=first.created,
        sglang=first.sglang,
        model=first.model,
        argv=first.argv,
        environment=first.environment,
        timeline=first.timeline or None,
        verdict=first.verdict_text,
        never_live=tuple(_never_live(item) for item in releases if not item.was_live),
        host=host,
        gpus=tuple(gpus),
    )


def _never_live(release: Release) -> str:
    """Return what became of a release instead of going live."""
    why = f" ({release.failure.signature})" if release.failure else ""
    return f"{release.release} was never live: {release.state}{why}"


def is_file(wanted: str) -> bool:
    """Whether a word names a file rather than something of a service."""
    return wanted.endswith((".json", ".jsonl")) or "/" in wanted


def from_file(path: str) -> Subject:
    """A benchmark in a file: a bench.json, or what ``bench --json`` or ``apply --json`` wrote. ConfigError."""
    remedy = "name a bench.json, or what `deployer bench --json` printed"
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ConfigError(
                f"{path} is not a benchmark: it is larger than {LARGEST >> 20} MiB", remedy=remedy
            )
        document = read_json(content.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}", remedy=remedy) from error
    known = About()
    if isinstance(document, Mapping) and isinstance(document.get("bench"), Mapping):
        if isinstance(document.get("about"), Mapping):
            known = About.from_json(document["about"])
        document = document["bench"]
    if not isinstance(document, Mapping) or not isinstance(document.get("levels"), list):
        raise ConfigError(f"{path} is not a benchmark: it has no levels", remedy=remedy)
    bench = BenchRun.from_json(document)
    if why := newer(bench):
        raise ConfigError(f"{path} cannot be read: {why}", remedy="compare with the deployer that wrote it")
    return Subject(Path(path).name.removesuffix(".json"), (bench,), (str(Path(path).resolve()),), known)


def together(parts: Sequence[Subject]) -> Subject:
    """Several subjects as starts of one (``A+B``). Refused: not measured alike. UsageError: one is there twice."""
    if len(parts) == 1:
        return parts[0]
    for part in parts[1:]:
        if why := measured_alike(part.benches[0], parts[0].benches[0]):
            raise Refused(f"{part.name} and {parts[0].name} cannot be taken together: {why}")
    _distinct(parts, f"is in {'+'.join(one.name for one in parts)} twice and would count as two")
    return Subject(
        "+".join(part.name for part in parts),
        tuple(bench for part in parts for bench in part.benches),
        tuple(start for part in parts for start in part.starts),
        replace(parts[0].about, releases=tuple(name for part in parts for name in part.about.releases)),
    )


def subjects(words: Sequence[str], shelf: Callable[[], BenchStore]) -> list[Subject]:
    """What the words of the command line mean; ``shelf`` is asked only where one is no file."""
    found = []
    for word in words:
        parts = [word] if is_file(word) and Path(word).exists() else word.split("+")
        found.append(together([from_file(one) if is_file(one) else shelf().subject(one) for one in parts]))
    found = _told_apart(found)
    names = [subject.name for subject in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{', '.join(twice)} is named twice", remedy="name what is to be compared once each")
    _distinct(found, "holds a benchmark that is named before it, too")
    return found


def _distinct(found: Sequence[Subject], said: str) -> None:
    """UsageError where one benchmark is there twice: it would be taken for two measurements that agree."""
    seen: set[tuple[object, object]] = set()
    for subject in found:
        for bench in subject.benches:
            which = (bench.started, bench.spec and bench.spec.salt)
            if which in seen and None not in which:
                raise UsageError(f"{subject.name} {said}", remedy="name each benchmark once")
            seen.add(which)


def _told_apart(found: Sequence[Subject]) -> list[Subject]:
    """Files of one name from several folders are called by their paths."""
    return [_called_by_path(subject, found) for subject in found]


def _called_by_path(subject: Subject, among: Sequence[Subject]) -> Subject:
    others = [one for one in among if one.name == subject.name and one.starts != subject.starts]
    if not others or len(subject.starts) > 1 or not is_file(subject.starts[0]):
        return subject
    mine = Path(subject.starts[0]).parts
    for depth in range(2, len(mine) + 1):
        if all(Path(one.starts[0]).parts[-depth:] != mine[-depth:] for one in others):
            return replace(subject, name=str(Path(*mine[-depth:])).removesuffix(".json"))
    return subject


def different_arguments(found: Sequence[Subject]) -> list[Json]:
    """Arguments and variables that are not the same in all subjects: ``{"name", "values": {subject: text or null}}``.

    A subject whose arguments are not known (a file) has no entry.
    """
    known = [subject for subject in found if subject.about.argv]
    tables = {subject.name: _settings(subject.about) for subject in known}
    names = dict.fromkeys(name for table in tables.values() for name in table)
    rows = []
    for name in names:
        values = {subject: table.get(name) for subject, table in tables.items()}
        if len(set(values.values())) > 1:
            rows.append({"name": name, "values": values})
    return rows


def _settings(known: About) -> dict[str, str]:
    pairs = grouped_arguments(comparable(known.argv))
    settings = {str(flag): " ".join(str(value).split()) for flag, value in pairs if flag not in WITHOUT_SPEED}
    return settings | {name: value for name, value in known.environment.items() if name != OWN_VARIABLE}


@dataclass(frozen=True)
class Compared:
    """All that `compare` found: the subjects (the first is the reference), the others against it, and what differs."""

    subjects: tuple[Subject, ...]
    comparisons: tuple[Comparison, ...]
    noise: Noise
    #: Why the subjects are not really comparable (with ``--anyway``).
    differences: tuple[str, ...] = ()
    #: Arguments that are not the same in all: ``{"name", "values": {subject: text or None}}``.
    arguments: tuple[Json, ...] = ()

    def levels(self) -> list[int]:
        """Every level that some subject has a figure of; 1 is the single stream."""
        return sorted({level for subject in self.subjects for level in subject.levels()})


def compared(found: Sequence[Subject], noise: Noise, *, anyway: bool = False) -> Compared:
    """Compare all with the first. Refused where they are not comparable, unless that is wanted ``anyway``."""
    reference, others = found[0], found[1:]
    differ = tuple(f"{other.name}: {text}" for other in others for text in differences(reference, other))
    if differ and not anyway:
        raise Refused(
            f"not comparable with {reference.name}: {'; '.join(differ)}",
            remedy="compare what was measured alike, or add --anyway to see the figures side by side",
            detail={"differences": list(differ)},
        )
    return Compared(
        subjects=tuple(found),
        comparisons=tuple(compare(reference, other, noise) for other in others),
        noise=noise,
        differences=differ,
        arguments=tuple(different_arguments(found)),
    )


def compare_words(
    words: Sequence[str], open_shelf: Callable[[], BenchStore], *, anyway: bool = False
) -> Compared:
    """Find what the words mean and compare it. The host is asked (``open_shelf``) only where one is no file."""
    opened: list[BenchStore] = []

    def shelf() -> BenchStore:
        if not opened:
            opened.append(open_shelf())
        return opened[0]

    found = subjects(words, shelf)
    return compared(found, opened[0].noise() if opened else Noise(), anyway=anyway)
