"""What paramiko logs is not for the operator's terminal: its failures come as our errors."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

CONNECT = """
import sys
from deployer.config.inventory import HostConfig
from deployer.errors import HostUnreachable
from deployer.host import ssh
ssh.ATTEMPTS = 1
where = {"address": "127.0.0.1", "port": int(sys.argv[1]), "user": "root", "connect_timeout": 5.0}
files = {"known_hosts": "/dev/null"}
try:
    ssh.open_connection(HostConfig.model_validate({"name": "h", **where, **files}).destination)
except HostUnreachable:
    print("unreachable")
"""


def test_a_port_that_accepts_and_closes_is_one_error_and_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def slam() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=slam, daemon=True)
        thread.start()
        argv = [sys.executable, "-c", CONNECT, str(server.getsockname()[1])]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5.0)
    assert (done.stdout, done.stderr) == ("unreachable\n", "")
