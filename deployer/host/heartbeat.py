"""The operator's heartbeat, which keeps a lease alive."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from deployer.errors import AgentError, ChannelLost, DeployerError, LeaseLost
from deployer.host.client import HostClient


class Heartbeat:
    """Renews a lease from a thread of its own, three times within the lease's life.

    ``lost`` is the error that ended it: LeaseLost at once, ChannelLost if the connection broke or nothing was renewed
    for a whole life. In the second case the connection is closed too, so that whoever waits on it is woken.
    """

    def __init__(self, client: HostClient, ttl: float) -> None:
        self._client, self._ttl = client, ttl
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.lost: DeployerError | None = None

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop beating. The lease stays until it is given back or expires."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def check(self) -> None:
        """Raise what was lost, if anything was."""
        if self.lost is not None:
            raise self.lost

    def _beat(self) -> None:
        renewed = time.monotonic()
        while not self._stopped.wait(self._ttl / 3):
            try:
                self._client.lease_renew(timeout=max(1.0, self._ttl / 3))
                renewed = time.monotonic()
            except LeaseLost as error:
                self.lost = error
                return
            except (ChannelLost, AgentError) as error:
                broken = isinstance(error, ChannelLost) and "timeout" not in error.detail
                if self._stopped.is_set():
                    return
                if broken or time.monotonic() > renewed + self._ttl:
                    self.lost = error
                    self._client.close(bye=False)
                    return

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
