"""What a running command reports to its user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deployer.records.step import Step

if TYPE_CHECKING:
    from deployer.deploy.wait import WaitUpdate


class Reporter:
    """Receives what happens while a command works, and shows nothing of it (`--json` without a terminal)."""

    def step(self, step: Step) -> None:
        """A step begins."""

    def done(self, text: str) -> None:
        """The step that began last has ended well."""

    def failed(self, text: str) -> None:
        """The step that began last has failed."""

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def warn(self, text: str) -> None:
        """Something the user should act on, though the command goes on."""

    def launch(self, update: WaitUpdate) -> None:
        """News of a launch under way."""

    def progress(self, text: str) -> None:
        """A passing word on long work (stopping, benchmarking)."""

    def close(self) -> None:
        """Take down whatever is still drawn."""
