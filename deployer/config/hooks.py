"""Hooks: programs that run, and a webhook that is called, before and after the moments of a change."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from deployer.config.fields import Text, Url
from deployer.config.problems import Model
from deployer.config.secrets import Secret

EVENTS = tuple(f"{when}_{moment}" for moment in ("stop", "start", "promote", "restore") for when in ("before", "after"))
Event = Literal[
    "before_stop",
    "after_stop",
    "before_start",
    "after_start",
    "before_promote",
    "after_promote",
    "before_restore",
    "after_restore",
]
#: Moments that the host has by itself.
HostEvent = Literal["after_promote", "after_restore"]


def _absolute(command: list[str]) -> list[str]:
    if not command[0].startswith("/"):
        raise ValueError("the program must be an absolute path")
    return command


#: A program and its arguments; no shell.
Command = Annotated[list[Text], Field(min_length=1), AfterValidator(_absolute)]
HookSeconds = Annotated[float, Field(gt=0, le=600)]


class Webhook(Model):
    """A URL that gets the facts of a moment by POST."""

    url: Url | None = Field(None, description="URL that gets the facts by POST, without query; default: url_secret")
    url_secret: Secret | None = Field(None, description="the whole URL as a secret (Slack's holds its own key)")
    events: list[Event] = Field(["after_promote", "after_restore"], description="moments at which it is called")
    sides: list[Literal["operator", "host"]] = Field(
        ["operator", "host"],
        description="who calls it: the operator's commands, the host itself (what guard and recovery did; URL and "
        "secret are then kept on the host, for root only)",
    )
    format: Literal["facts", "slack"] = Field("facts", description='facts: all of them; slack: {"text": "..."}')
    header: Annotated[Text, Field(pattern=r"^[A-Za-z0-9-]+$")] = Field(
        "Authorization", description="header that carries the secret"
    )
    secret: Secret | None = Field(None, description="value of that header; default: the header is not sent")
    timeout: HookSeconds = Field(10.0, description="time limit of one attempt, in seconds; there are three")

    @model_validator(mode="after")
    def _one_url(self) -> Webhook:
        if (self.url is None) == (self.url_secret is None):
            raise ValueError("a webhook needs exactly one of url and url_secret")
        return self


class Hooks(Model):
    """What runs at the moments of a change."""

    programs: dict[Event, Command] = Field({}, description="program and arguments on the operator's machine, by moment")
    host_programs: dict[HostEvent, Command] = Field(
        {}, description="program and arguments on the host, by moment; run after the guard or recovery did something"
    )
    timeout: HookSeconds = Field(30.0, description="time limit of a program, in seconds")
    webhook: Webhook | None = Field(None, description="a URL to call")
