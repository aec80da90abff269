"""The agent: deployer's side of the conversation that runs on the host, as root.

A small program for Python 3.8 and its standard library. It speaks JSON lines on stdin and stdout (the protocol of
``docs/architecture.md``), watches over transitions (``guard SERVICE``), and tidies up after a power cut (``recover
SERVICE``). It decides nothing that the operator's side could decide. Its modules import only each other and
`deployer.metrics`; `source` packs them into the one file that goes to the host.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

#: The modules, each after those it imports.
MODULES = (
    "base",
    "procs",
    "systemd",
    "lease",
    "registry",
    "leasing",
    "survey",
    "reading",
    "sampling",
    "releases",
    "transition",
    "stopping",
    "converge",
    "watching",
    "guard",
    "main",
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
    """The agent as one Python program."""
    folder = Path(__file__).parent
    paths = {"deployer.metrics": folder.parents[1] / "metrics.py"}
    paths |= {f"deployer_agent.{name}": folder / f"{name}.py" for name in MODULES}
    lines = "".join(
        f"    ({name!r}, {path.read_text(encoding='utf-8')!r}),\n" for name, path in paths.items()
    )
    head, _, tail = _LOADER.partition("\n\n\n")
    return f"{head}\n\nMODULES = [\n{lines}]\n\n\n{tail}".encode()
