"""One service as it is on the machine: its units and paths, what runs, its releases and its transition."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import Any, List, Optional

from deployer.reach import secret_variables, unit_name

from .base import Fail, Json, checked
from .files import Shape, read_intact, read_json, read_text
from .machine import Machine

NUMBER_OR_NONE = (int, float, type(None))
TRANSITION: Shape = {
    "to": str,
    "boot_id": str,
    "grace": NUMBER_OR_NONE,
    "lease": NUMBER_OR_NONE,
    "drain": NUMBER_OR_NONE,
    "stop_timeout": NUMBER_OR_NONE,
    "port": NUMBER_OR_NONE,
    "started_boottime": NUMBER_OR_NONE,
    "exclusive": (list, type(None)),
}
#: What a transition was begun with, in a file of its own: with it, a damaged ``transition.json`` loses no way back.
BEGUN: Shape = {
    "to": str,
    "was_active": bool,
    "was_enabled": bool,
    "exclusive": (list, type(None)),
}
#: What the guard or recovery did last: when, which of the two, what and why, and what came of it.
DEED: Shape = {"t": (int, float), "by": str, "what": str, "why": str, "result": str}
#: What came of the last boot, as `assess` found it; ``tried``: the release that was started in the live one's place.
BOOT: Shape = {
    "t": (int, float),
    "boot_id": str,
    "release": str,
    "outcome": str,
    "text": str,
    "tried": (dict, type(None)),
}
START = 2700.0  # seconds that a release's start may take, where its manifest does not say
#: Whom the host tells what it did, and where it writes metrics (``hooks.set``).
HOOKS: Shape = {
    "host": str,
    "programs": dict,
    "timeout": (int, float),
    "webhook": (dict, type(None)),
    "metrics_dir": (str, type(None)),
}
MANIFEST: Shape = {"release": str, "argv": (list, type(None))}
UNIT_MODE = 0o644
#: Variables that systemd sets by itself for what it starts.
SYSTEMDS_OWN = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_.*|TERM|PWD|SHLVL|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_.*|"
    "MEMORY_PRESSURE_.*|NOTIFY_SOCKET|LISTEN_.*|FDSTORE|MAINPID|MANAGERPID.*|WATCHDOG_.*|CREDENTIALS_DIRECTORY|"
    "(RUNTIME|STATE|CACHE|LOGS|CONFIGURATION)_DIRECTORY|TRIGGER_.*|MONITOR_.*|XDG_.*"
)


def unit_release(text: str) -> Optional[str]:
    """``Release=`` of a unit text's ``[X-Deployer]`` section."""
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line
        elif section == "[X-Deployer]" and line.startswith("Release="):
            return line[len("Release=") :].strip()
    return None


def unit_file(path: str) -> Optional[Json]:
    """A unit file and its release, None if there is none or it is a mask."""
    if os.path.islink(path) and os.path.realpath(path) == "/dev/null":
        return None
    text = read_text(path)
    return None if text is None else {"release": unit_release(text), "text": text, "path": path}


def keys_of(text: str) -> List[str]:
    """The settings that a unit file or drop-in makes, in order, each once."""
    lines = [line for line in text.splitlines() if line.lstrip()[:1] not in ("#", ";")]
    joined = re.sub(r"\\\r?\n", " ", "\n".join(lines))
    return list(dict.fromkeys(re.findall(r"^[ \t]*([A-Za-z][A-Za-z0-9-]*)[ \t]*=", joined, re.M)))


class Service:
    """A service of this name on a machine, deployed or not."""

    def __init__(self, machine: Machine, name: Any) -> None:
        self.machine, self.name = machine, checked(name, "service")
        self.unit = unit_name(name)
        self.guard_unit, self.recover_unit, self.assess_unit = (
            "deployer-%s@%s.service" % (kind, name) for kind in ("guard", "recover", "assess")
        )
        self.live_path = os.path.join(machine.live_dir, self.unit)
        self.candidate_path = os.path.join(machine.run_dir, self.unit)
        self.enable_link, self.recover_link, self.assess_link = (
            os.path.join(machine.wants_dir, unit) for unit in (self.unit, self.recover_unit, self.assess_unit)
        )
        self.folder = os.path.join(machine.state_dir, self.name)
        self.releases = os.path.join(self.folder, "releases")
        self.transition_path = os.path.join(self.folder, "transition.json")
        self.begun_path = os.path.join(self.folder, "begun.json")
        self.deed_path = os.path.join(self.folder, "guard.json")
        self.boot_path = os.path.join(self.folder, "boot.json")
        self.hooks_path = os.path.join(self.folder, "hooks.json")

    # -- the unit and its processes -----------------------------------------------------------------------------

    def state(self) -> Json:
        return self.machine.unit_state(self.unit)

    def pids(self) -> List[int]:
        return self.machine.unit_pids(self.unit)

    def listeners(self, port: int) -> List[Json]:
        """The sockets in LISTEN on ``port`` (0: none) that belong to the unit."""
        pids = self.pids()
        return [item for item in (self.machine.listeners(port, pids) if port else []) if item["pid"] in pids]

    def running(self, state: Json) -> Optional[Json]:
        """The main process with the release it was started from; None if there is none."""
        process = self.machine.process(state["MainPID"])
        if process is None:
            return None
        release = process["environment"].get("DEPLOYER_RELEASE")
        return {
            "pid": state["MainPID"],
            "release": release,
            "argv": process["argv"],
            "started": process["started"],
        }

    def variables(self, pid: int, manifest: Json) -> Json:
        """The main process's environment beside what its release gave it. No value of a secret leaves the host.

        ``environment``: the variables of the manifest that are set; ``secrets``: names of those of the release's file
        ``env`` that are not set to what it says; ``others``: names that neither the release nor systemd has set.
        """
        actual = (self.machine.process(pid) or {}).get("environment") or {}
        recorded = manifest.get("environment")
        recorded = recorded if isinstance(recorded, dict) else {}
        text = read_text(os.path.join(self.release_dir(manifest["release"]), "env")) or ""
        secrets = secret_variables(text)
        known = {*recorded, *secrets}
        others = {name for name in actual if name not in known and not SYSTEMDS_OWN.fullmatch(name)}
        if others:  # the manager may have been given them for everything that it starts
            others -= self.machine.manager_variables()
        return {
            "environment": {name: actual[name] for name in recorded if name in actual},
            "secrets": sorted(name for name, value in secrets.items() if actual.get(name) != value),
            "others": sorted(others),
        }

    # -- files --------------------------------------------------------------------------------------------------

    def live_file(self) -> Optional[Json]:
        """The live unit file with its mode and time, and ``kept``: the text of it that its release keeps."""
        file = unit_file(self.live_path)
        if file is None:
            return None
        info, kept = os.stat(self.live_path), None
        with contextlib.suppress(Fail):  # an edited file may name anything as its release
            kept = self.kept_unit(file["release"])
        return dict(file, mode=stat.S_IMODE(info.st_mode), modified=info.st_mtime, kept=kept)

    def kept_unit(self, release: Any) -> Optional[str]:
        """The unit text of a release as it was staged; None if it is gone, or not that release's."""
        text = read_text(os.path.join(self.release_dir(release), "unit"))
        return text if text is not None and unit_release(text) == release else None

    def restore_unit(self) -> bool:
        """Make the live unit file what its release keeps, if it does; return whether it was not. Under the lock."""
        file = self.live_file()
        if file is None or file["kept"] is None or (file["text"], file["mode"]) == (file["kept"], UNIT_MODE):
            return False
        self.machine.write_file(self.live_path, file["kept"], UNIT_MODE)
        return True

    def drop_ins(self, state: Json) -> List[Json]:
        """The unit's drop-ins as they are on disk, each with the settings that it makes."""
        current = state["LoadState"] == "loaded" and not state["NeedDaemonReload"]
        paths = state["DropInPaths"] if current else self.machine.drop_ins(self.unit)
        return [{"path": path, "keys": keys_of(read_text(path) or "")} for path in paths]

    def live_release(self) -> Optional[str]:
        release: Optional[str] = (unit_file(self.live_path) or {}).get("release")
        return release

    def is_enabled(self) -> bool:
        return os.path.lexists(self.enable_link)

    def shadows(self, state: Json) -> List[str]:
        """Unit files and drop-ins that outrank or change ours."""
        paths = [os.path.join(folder, self.unit) for folder in self.machine.outranking]
        paths = [path for path in paths if os.path.lexists(path)]
        paths += [self.candidate_path] if os.path.islink(self.candidate_path) else []
        return paths + list(state["DropInPaths"])

    def transition(self, problems: Optional[List[str]] = None) -> Optional[Json]:
        """The transition under way; None if there is none or its file is damaged."""
        return read_intact(self.transition_path, TRANSITION, problems)

    def begun(self) -> Optional[Json]:
        """What the transition under way was begun with, for use if its own file is damaged; None if it is not known."""
        return read_intact(self.begun_path, BEGUN)

    def last_deed(self, problems: Optional[List[str]] = None) -> Optional[Json]:
        """What the guard or recovery did last; None if they never had to do anything."""
        return read_intact(self.deed_path, DEED, problems)

    def last_boot(self, problems: Optional[List[str]] = None) -> Optional[Json]:
        """What came of the last boot that was assessed; None if none was."""
        return read_intact(self.boot_path, BOOT, problems)

    def hooks(self) -> Optional[Json]:
        """Whom the host tells what it did, and where it writes metrics; None if it does neither."""
        return read_intact(self.hooks_path, HOOKS)

    def release_dir(self, release: Any) -> str:
        return os.path.join(self.releases, checked(release, "release"))

    def manifest_path(self, release: Any) -> str:
        return os.path.join(self.release_dir(release), "manifest.json")

    def manifest(self, release: Any) -> Json:
        manifest = read_json(self.manifest_path(release), MANIFEST)
        if manifest is None:
            raise Fail("not-found", f"{self.name} has no release {release}")
        return manifest

    def manifests(self, problems: Optional[List[str]] = None) -> List[Json]:
        """The manifests of all releases, by number. A damaged one shows as state ``corrupt``, and hides no other."""
        names = os.listdir(self.releases) if os.path.isdir(self.releases) else []
        items = [
            self.listed(name, problems)
            for name in names
            if not name.startswith(".") and os.path.isdir(os.path.join(self.releases, name))
        ]
        return sorted(items, key=lambda item: (item["number"], item["release"]))

    def listed(self, name: str, problems: Optional[List[str]]) -> Json:
        path, damage = os.path.join(self.releases, name, "manifest.json"), []  # type: str, List[str]
        manifest = read_intact(path, MANIFEST, damage)
        if manifest and manifest["release"] == name and isinstance(manifest.get("number") or 0, int):
            return dict(manifest, number=manifest.get("number") or 0)
        if problems is not None:
            problems.append((damage or ["%s is damaged: it is not the manifest of %s" % (path, name)])[0])
        digits = re.match(r"[0-9]*", name)
        number = int((digits.group() if digits else "") or 0)
        return {"release": name, "number": number, "state": "corrupt", "was_live": False}

    def argv(self, release: Optional[str]) -> Optional[List[str]]:
        """The command line in a release's manifest; None if it is not known."""
        argv: Optional[List[str]] = self.recorded(release, "argv")
        return argv

    def recorded(self, release: Optional[str], key: str) -> Any:
        """What a release's manifest says; None if it does not, or cannot be read."""
        return next((item.get(key) for item in self.manifests() if item["release"] == release), None)

    def start_seconds(self, release: Optional[str]) -> float:
        """How long a start of a release may take."""
        seconds = self.recorded(release, "ready_timeout")
        return float(seconds) if isinstance(seconds, (int, float)) else START

    def gpus(self, release: Optional[str]) -> List[int]:
        """The GPUs that a release was proven on, by their indices; none if that is not known."""
        indices = self.recorded(release, "gpus")
        return [index for index in indices if isinstance(index, int)] if isinstance(indices, list) else []

    def argument(self, release: Optional[str], flag: str) -> str:
        """The value of a flag in a release's command line; empty if it is not given."""
        words = self.argv(release) or []
        return str(words[words.index(flag) + 1]) if flag in words[:-1] else ""

    def port(self, release: Optional[str] = None) -> int:
        """Where a release (the live one) listens, by its command line; 0 if that does not say."""
        text = self.argument(release or self.live_release(), "--port")
        return int(text) if text.isdigit() else 0
