"""The agent: the program that deployer sends to the host, where it runs as root on the host's own Python.

These modules run there, not here. `source` packs them, text by text and in the order of `MODULES`, into one file of
Python 3.8 and its standard library; `deployer.host.channel` feeds that file to ``python3`` on the host and speaks JSON
lines with it (the protocol of ``docs/architecture.md``). A transition leaves the file on the host's disk, where systemd
runs it without any operator: ``guard SERVICE`` finishes a transition whose operator is gone, ``recover SERVICE`` tidies
up after a power cut, ``assess SERVICE`` looks after a boot whether the live release comes up, ``notify SERVICE`` tells
others what these did. It decides nothing that the operator's side could decide.

The modules import only each other, downwards, and those of `SHARED`, which travel with them. All that touches the
machine is a method of `machine.Machine`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

#: What they share with the operator's side: modules of `deployer` itself.
SHARED = ("draining", "exposition", "metrics", "notice", "reach")
#: The modules, each after those it imports.
MODULES = (
    ("base", "files", "procs", "outward", "machine", "gpus")  # what all use
    + ("lease", "greet", "service", "survey", "strays", "gauges", "look")  # what there is
    + ("releases", "drain", "stop", "exclusion", "transition", "converge", "watch", "run")  # what is done
    + ("notify", "guard", "assess", "main")  # who does it
)

_LOADER = '''\
"""deployer's agent, packed from its modules. Each is compiled when it is first imported."""
import sys
from importlib.machinery import ModuleSpec


class Packed:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=not MODULES[name]) if name in MODULES else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        module.source = source
        code = compile(MODULES[name], name.replace(".", "/") + ".py", "exec", dont_inherit=True)
        exec(code, module.__dict__)


def source():
    if "SOURCE" in globals():
        return SOURCE
    with open(__file__, "rb") as file:
        return file.read()


sys.meta_path.insert(0, Packed())
from deployer_agent.main import main

sys.exit(main(sys.argv[1:]))
'''


@lru_cache(maxsize=1)
def source() -> bytes:
    """Return the agent as one Python program."""
    folder = Path(__file__).parent
    paths = {f"deployer.{name}": folder.parents[1] / f"{name}.py" for name in SHARED}
    paths |= {f"deployer_agent.{name}": folder / f"{name}.py" for name in MODULES}
    texts = {"deployer": "", "deployer_agent": ""} | {name: path.read_text("utf-8") for name, path in paths.items()}
    lines = "".join(f"    {name!r}: {text!r},\n" for name, text in texts.items())
    head, _, tail = _LOADER.partition("\n\n\n")
    return f"{head}\n\nMODULES = {{\n{lines}}}\n\n\n{tail}".encode()
