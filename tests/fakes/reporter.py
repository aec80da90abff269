"""A reporter that keeps what it is told."""

from __future__ import annotations

from deployer.deploy.reporter import Reporter


class Warnings(Reporter):
    """Keeps what the user should act on."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)
