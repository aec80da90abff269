"""The agent: the program that deployer sends to the host, where it runs as root on the host's own Python.

These modules run there, not here. `source` packs them, text by text and in the order of `MODULES`, into one file of
Python 3.8 and its standard library; `deployer.host.channel` feeds that file to ``python3`` on the host and speaks JSON
lines with it (the protocol of ``docs/architecture.md``). A transition leaves the file on the host's disk, where systemd
runs it without any operator: ``guard SERVICE`` finishes a transition whose operator is gone, ``recover SERVICE`` tidies
up after a power cut. It decides nothing that the operator's side could decide.

The modules import only each other, downwards, and those of `SHARED`, which travel with them. All that touches the
machine is a method of `machine.Machine`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

#: What they share with the operator's side: modules of `deployer` itself.
SHARED = ("metrics", "reach")
#: The modules, each after those it imports.
MODULES = (
    ("base", "files", "procs", "machine", "gpus")  # what all use
    + ("lease", "service", "survey", "look")  # what there is
    + ("releases", "transition", "stop", "converge", "watch", "run")  # what is done
    + ("guard", "main")  # who does it
)

_LOADER = '''\
"""deployer's agent, packed from its modules."""
import sys
import types


def load():
    text = globals().get("SOURCE")
    if text is None:
        with open(__file__, "rb") as file:
            text = file.read()
    package = types.ModuleType("deployer_agent")
    package.__path__ = []
    package.source = lambda: text
    sys.modules["deployer_agent"] = package
    for name, code in MODULES:
        module = types.ModuleType(name)
        module.__package__ = name.rpartition(".")[0]
        sys.modules[name] = module
        exec(compile(code, name.replace(".", "/") + ".py", "exec", dont_inherit=True), module.__dict__)
    return sys.modules["deployer_agent.main"].main(sys.argv[1:])


sys.exit(load())
'''


@lru_cache(maxsize=1)
def source() -> bytes:
    """Return the agent as one Python program."""
    folder = Path(__file__).parent
    paths = {f"deployer.{name}": folder.parents[1] / f"{name}.py" for name in SHARED}
    paths |= {f"deployer_agent.{name}": folder / f"{name}.py" for name in MODULES}
    lines = "".join(f"    ({name!r}, {path.read_text(encoding='utf-8')!r}),\n" for name, path in paths.items())
    head, _, tail = _LOADER.partition("\n\n\n")
    return f"{head}\n\nMODULES = [\n{lines}]\n\n\n{tail}".encode()
