"""`compare`: benchmarks side by side, of releases, profiles and files, with the noise that the service has shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from deployer.bench.comparison import Comparison, Subject, compare, differences
from deployer.bench.document import LARGEST, newer, read_document, read_json
from deployer.bench.noise import learn
from deployer.bench.relative import measured_alike
from deployer.deploy.baseline import WITHOUT_SPEED, configuration, noise_groups
from deployer.deploy.session import Session
from deployer.errors import ConfigError, Refused, UsageError
from deployer.records.bench import About, BenchRun
from deployer.records.codec import Record
from deployer.records.release import OWN_VARIABLE, Release
from deployer.records.verdict import Noise
from deployer.units.text import comparable, grouped_arguments

#: The newest starts of a profile's configuration that are taken together.
MOST_STARTS = 5
_LATER = re.compile(r"(?P<release>.+)@(?P<number>[1-9][0-9]*)", re.S)

#: Reads a file of a release, by the names of both; returns None if there is none.
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

    def subject(self, word: str) -> Subject:
        """Return the subject that a release's number or name, ``RELEASE@N``, or a profile stands for.

        Raise Refused if there is none.
        """
        name, number = word, None
        if match := _LATER.fullmatch(word):
            name, number = match["release"], match["number"]
        release = self._named(name)
        if release is None:
            if number is None:
                return self._profile(word)
            raise Refused(f"there is no release {name!r}", remedy="`deployer history` lists them")
        bench = self.bench(release.release, f"bench-{number}.json" if number else "bench.json")
        if bench is None:
            lacks = f"has no benchmark {number}" if number else "has no benchmark: it did not get that far"
            raise Refused(
                f"release {release.release} {lacks}",
                remedy="`deployer history` lists the releases with their benchmarks",
            )
        title = f"{release.release}@{number}" if number else release.release
        return Subject(title, (bench,), (release.release,), self.describe([release]))

    def describe(self, releases: Sequence[Release]) -> About:
        """Return what is known of a subject made of these releases; from the first one if they differ."""
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
            host=self.host,
            gpus=tuple(self.gpus),
        )

    def _named(self, word: str) -> Release | None:
        names = ((str(item.number), f"{item.number:04d}", item.release) for item in self.releases)
        return next((item for item, own in zip(self.releases, names, strict=True) if word in own), None)

    def _profile(self, profile: str) -> Subject:
        """Return the proven starts of the newest proven configuration of a profile, the newest first."""
        measured = [item for item in reversed(self.releases) if item.profile == profile and item.bench_summary]
        proven = [item for item in measured if item.proven]
        if not proven:
            raise _nothing_proven(profile, measured)
        equal = [item for item in proven if configuration(item) == configuration(proven[0])]
        starts = [(item, bench) for item in equal[:MOST_STARTS] if (bench := self.bench(item.release))]
        if not starts:
            raise Refused(f"the benchmark of release {proven[0].release} cannot be read")
        starts = [(item, bench) for item, bench in starts if not measured_alike(bench, starts[0][1])]
        releases, benches = zip(*starts, strict=True)
        names = tuple(item.release for item in releases)
        title = names[0] if len(names) == 1 else f"{profile} ({len(names)} starts)"
        return Subject(title, benches, names, self.describe(releases))


def _nothing_proven(profile: str, measured: Sequence[Release]) -> Refused:
    if not measured:
        return Refused(
            f"{profile!r} has no benchmark: it is not a file, a measured release or a measured profile",
            remedy="`deployer history` lists the releases and their speeds",
        )
    numbers = " or ".join(str(item.number) for item in measured[:MOST_STARTS])
    return Refused(
        f"{profile} has no proven start: {'; '.join(_never_live(item) for item in measured[:MOST_STARTS])}",
        remedy=f"a profile's name stands for its proven starts; name any other by its number: {numbers}",
    )


def _never_live(release: Release) -> str:
    """Return what became of a release instead of going live."""
    why = f" ({release.failure.signature})" if release.failure else ""
    return f"{release.release} was never live: {release.state}{why}"


def is_file(word: str) -> bool:
    """Return whether a word names a file rather than something of a service."""
    return word.endswith((".json", ".jsonl")) or "/" in word


def from_file(path: str) -> Subject:
    """Return the benchmark in a file: a bench.json, or what ``bench --json`` or ``apply --json`` printed.

    Raise ConfigError if it cannot be read.
    """
    remedy = "name a bench.json, or what `deployer bench --json` printed"
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ConfigError(f"{path} is not a benchmark: it is larger than {LARGEST >> 20} MiB", remedy=remedy)
        document = read_json(content.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}", remedy=remedy) from error
    about = About()
    if isinstance(document, Mapping) and isinstance(document.get("bench"), Mapping):
        if isinstance(document.get("about"), Mapping):
            about = About.from_json(document["about"])
        document = document["bench"]
    if not isinstance(document, Mapping) or not isinstance(document.get("levels"), list):
        raise ConfigError(f"{path} is not a benchmark: it has no levels", remedy=remedy)
    bench = BenchRun.from_json(document)
    if why := newer(bench):
        raise ConfigError(f"{path} cannot be read: {why}", remedy="compare with the deployer that wrote it")
    return Subject(Path(path).name.removesuffix(".json"), (bench,), (str(Path(path).resolve()),), about)


def together(parts: Sequence[Subject]) -> Subject:
    """Return several subjects as starts of one (``A+B``).

    Raise Refused if they were not measured alike, UsageError if a benchmark is among them twice.
    """
    if len(parts) == 1:
        return parts[0]
    for part in parts[1:]:
        if why := measured_alike(part.benches[0], parts[0].benches[0]):
            raise Refused(f"{part.name} and {parts[0].name} cannot be taken together: {why}")
    name = "+".join(part.name for part in parts)
    _check_distinct(parts, f"is in {name} twice and would count as two")
    return Subject(
        name,
        tuple(bench for part in parts for bench in part.benches),
        tuple(start for part in parts for start in part.starts),
        replace(parts[0].about, releases=tuple(name for part in parts for name in part.about.releases)),
    )


def subjects(words: Sequence[str], store: Callable[[], BenchStore]) -> list[Subject]:
    """Return what the words of the command line stand for; ``store`` is called only if one is not a file."""
    named = []
    for word in words:
        parts = [word] if is_file(word) and Path(word).exists() else word.split("+")
        named.append(together([from_file(one) if is_file(one) else store().subject(one) for one in parts]))
    named = [_with_folder(subject, named) for subject in named]
    names = [subject.name for subject in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{', '.join(twice)} is named twice", remedy="name each benchmark once")
    _check_distinct(named, "holds a benchmark that is named before it, too")
    return named


def _check_distinct(named: Sequence[Subject], trouble: str) -> None:
    """Raise UsageError if one benchmark is there twice: it would count as two measurements that agree."""
    seen: set[tuple[object, object]] = set()
    for subject in named:
        for bench in subject.benches:
            identity = (bench.started, bench.spec and bench.spec.salt)
            if identity in seen and None not in identity:
                raise UsageError(f"{subject.name} {trouble}", remedy="name each benchmark once")
            seen.add(identity)


def _with_folder(subject: Subject, among: Sequence[Subject]) -> Subject:
    """Return the subject; a file is named by as much of its path as tells it from others of its name."""
    others = [one for one in among if one.name == subject.name and one.starts != subject.starts]
    if not others or len(subject.starts) > 1 or not is_file(subject.starts[0]):
        return subject
    parts = Path(subject.starts[0]).parts
    for depth in range(2, len(parts) + 1):
        if all(Path(one.starts[0]).parts[-depth:] != parts[-depth:] for one in others):
            return replace(subject, name=str(Path(*parts[-depth:])).removesuffix(".json"))
    return subject


@dataclass(frozen=True)
class DifferentArgument(Record):
    """An argument or variable and its value in each subject, None if the subject does not set it."""

    name: str
    values: Mapping[str, str | None]


def different_arguments(compared: Sequence[Subject]) -> list[DifferentArgument]:
    """Return what is not the same in all subjects whose arguments are known: files may not have any."""
    settings = {subject.name: _settings(subject.about) for subject in compared if subject.about.argv}
    names = dict.fromkeys(name for own in settings.values() for name in own)
    rows = [DifferentArgument(name, {one: own.get(name) for one, own in settings.items()}) for name in names]
    return [row for row in rows if len(set(row.values.values())) > 1]


def _settings(about: About) -> dict[str, str]:
    pairs = grouped_arguments(comparable(about.argv))
    settings = {str(flag): " ".join(str(value).split()) for flag, value in pairs if flag not in WITHOUT_SPEED}
    return settings | {name: value for name, value in about.environment.items() if name != OWN_VARIABLE}


@dataclass(frozen=True)
class Compared:
    """The subjects (the first is the reference), the others against it, and what differs.

    ``differences`` says why the subjects are not really comparable (with ``--anyway``).
    """

    subjects: tuple[Subject, ...]
    comparisons: tuple[Comparison, ...]
    noise: Noise
    differences: tuple[str, ...] = ()
    arguments: tuple[DifferentArgument, ...] = ()

    def levels(self) -> list[int]:
        """Return every level that some subject has a figure of; 1 is the single stream."""
        return sorted({level for subject in self.subjects for level in subject.levels()})


def compared(subjects: Sequence[Subject], noise: Noise, *, anyway: bool = False) -> Compared:
    """Compare all with the first. Raise Refused if they are not comparable, unless ``anyway``."""
    reference, others = subjects[0], subjects[1:]
    differ = tuple(f"{other.name}: {text}" for other in others for text in differences(reference, other))
    if differ and not anyway:
        raise Refused(
            f"not comparable with {reference.name}: {'; '.join(differ)}",
            remedy="compare what was measured alike, or add --anyway to see the figures side by side",
            detail={"differences": list(differ)},
        )
    return Compared(
        subjects=tuple(subjects),
        comparisons=tuple(compare(reference, other, noise) for other in others),
        noise=noise,
        differences=differ,
        arguments=tuple(different_arguments(subjects)),
    )


def compare_words(words: Sequence[str], open_store: Callable[[], BenchStore], *, anyway: bool = False) -> Compared:
    """Compare what the words stand for. The host is connected (``open_store``) only if one is not a file."""
    store = cache(open_store)
    named = subjects(words, store)
    opened = store.cache_info().currsize > 0
    return compared(named, store().noise() if opened else Noise(), anyway=anyway)
