"""The operation run: a program on the host, its standard output line by line."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from typing import Dict, List, Optional

from .base import CHILD_ENV, Call, Fail, Json, checked, operation
from .lease import Session


def private_folder(files: Json) -> str:
    """Make a new folder with these files: in the usual place or, if that is full, in memory."""
    trouble: Optional[OSError] = None
    for place in (None, "/dev/shm", "/run"):
        folder = None
        try:
            folder = tempfile.mkdtemp(prefix="deployer-run-", dir=place)
            for name, text in files.items():
                with open(os.path.join(folder, checked(name, "file")), "w", encoding="utf-8") as file:
                    file.write(text)
            return folder
        except OSError as error:
            trouble = trouble or error
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
    raise Fail("no-space", "there is no room for temporary files: %s" % trouble)


def give_away(folder: str, uid: int, gid: int) -> None:
    """Give a private folder and its files to an account; the folder last, for its owner may put a link into it."""
    for path in [os.path.join(folder, name) for name in os.listdir(folder)] + [folder]:
        os.lchown(path, uid, gid)


@operation("run")
def run(session: Session, args: Json, call: Call) -> Json:
    """Run a program in a private folder. No shell is involved."""
    folder = private_folder(args.get("files") or {})
    argv, env = list(args["argv"]), dict(CHILD_ENV)
    try:
        if args.get("user"):
            account = pwd.getpwnam(args["user"])
            give_away(folder, account.pw_uid, account.pw_gid)
            env.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name)
            words = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups", "--"]
            argv = ["setpriv", *words, *argv]
        env.update(args.get("env") or {})
        timeout = float(args.get("timeout") or 3600.0)
        return run_child(call, argv, env, folder, args.get("stdin") or "", timeout)
    except KeyError as error:
        raise Fail("no-user", f"the host has no account {args.get('user')}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_child(call: Call, argv: List[str], env: Dict[str, str], folder: str, stdin: str, timeout: float) -> Json:
    try:
        child = call.spawn(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=folder)
    except OSError as error:
        raise Fail("command", f"{argv[0]} cannot be run: {error.strerror}", argv=argv) from error
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    tail: List[bytes] = []

    def feed() -> None:
        with contextlib.suppress(OSError), child.stdin as pipe:  # type: ignore[union-attr]
            pipe.write(stdin.encode("utf-8"))

    def collect() -> None:
        for line in child.stderr:  # type: ignore[union-attr]
            tail.append(line)
            del tail[:-200]

    late = threading.Timer(timeout, call.end)
    helpers = [threading.Thread(target=feed, daemon=True), threading.Thread(target=collect, daemon=True)]
    for thread in [*helpers, late]:
        thread.daemon = True
        thread.start()
    try:
        for line in child.stdout:
            call.emit({"line": line.decode("utf-8", "replace").rstrip("\r\n")})
        status = child.wait()
        for thread in helpers:
            thread.join(2.0)
    finally:
        late.cancel()
        timed_out = call.ended.is_set() and not call.cancelled
        call.end()
    call.check()
    text = b"".join(tail).decode("utf-8", "replace")[-8192:]
    if timed_out:
        raise Fail("timeout", f"{argv[0]} took longer than {timeout:g} s", stderr=text)
    return {"status": status, "stderr": text}
