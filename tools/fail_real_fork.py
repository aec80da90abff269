"""SGLang with everything imported, ready to be forked: the other half of ``fail_real.py``, run by the engine's Python.

A launch is half a minute of imports in three processes, and a second of work. Here the imports are done once; a line of
JSON on stdin (``args``, ``env``, ``cwd``, ``log``) forks a server, which forks its ranks. From there on all is SGLang's
own code. Answers on stdout: the process id; for ``{"poll": pid}`` the return code, or null.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import resource
import runpy
import subprocess
import sys
import tempfile
import traceback


def hinder(by: dict) -> None:
    """Give this process less than it wants: full file systems of its own, limits, a user without rights."""
    for path, options in by["tmpfs"].items():
        if not by.get("apart"):
            ctypes.CDLL(None, use_errno=True).unshare(0x00020000)  # CLONE_NEWNS
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            by["apart"] = True
        os.makedirs(path, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", path], check=True)
    for name, value in by["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    if by["user"]:
        os.setgroups([])
        os.setgid(by["user"])
        os.setuid(by["user"])


def server(asked: dict) -> None:
    """Become the server that was asked for."""
    os.setsid()
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(file, number)
    sys.stdout.reconfigure(line_buffering=True)
    os.chdir(asked["cwd"])
    os.environ.update(asked["env"])
    tempfile.tempdir = None
    hinder(asked["hindered"])
    sys.argv = ["launch_server.py", *asked["args"]]
    code = 0
    try:
        runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:  # as the interpreter would, without the frame of this program
        behind = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, behind)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    for child in multiprocessing.active_children():  # as multiprocessing does at exit
        if child.daemon:
            child.terminate()
    for child in multiprocessing.active_children():
        child.join()
    os._exit(code)


def main() -> None:
    """Import, then serve requests."""
    multiprocessing.set_start_method("fork")
    multiprocessing.set_start_method = lambda *_, **__: None
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda *_: fork
    sys.argv = ["launch_server.py"]
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry  # noqa: F401

    sys.modules.pop("sglang.launch_server", None)
    print(json.dumps("ready"), flush=True)
    codes: dict[int, int] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "poll" in asked:
            pid = asked["poll"]
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
            print(json.dumps(codes.get(pid)), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            server(asked)
        print(json.dumps(pid), flush=True)


if __name__ == "__main__":
    main()
