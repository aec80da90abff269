"""Services that cannot run at the same time: what two of them share on a host, and who excludes whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from deployer.config.problems import Problem
from deployer.config.wording import shown, unknown

Tables = Mapping[str, Mapping[str, Any]]

_BASE_GPU = frozenset({"base-gpu-id", "base_gpu_id", "--base-gpu-id"})


def declared(services: Tables) -> dict[str, set[str]]:
    """Return which services each one excludes: a declaration on either side counts for both."""
    partners: dict[str, set[str]] = {name: set() for name in services}
    for name, service in services.items():
        for other in _names(service.get("exclusive_with")):
            if other in partners and other != name:
                partners[name].add(other)
                partners[other].add(name)
    return partners


def exclusion_problems(services: Tables, hosts: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the declarations, and what two services share without one. Takes unchecked tables."""
    partners = declared(services)
    for name, service in services.items():
        for other in _names(service.get("exclusive_with")):
            if other == name:
                text = f"{name} is the service itself"
            elif other not in services:
                text = unknown(other, services, kind=f"there is no service {shown(other)}")
            elif _host(services[other]) != _host(service):
                text = f"{other} runs on another host, so both can run at the same time"
            else:
                continue
            yield Problem(("services", name, "exclusive_with"), text)
    for (first, one), (second, other_one) in combinations(services.items(), 2):
        host = _host(one)
        if host is None or host != _host(other_one) or second in partners[first]:
            continue
        remedy = f'give each its own, or declare exclusive_with = ["{first}"] if only one of them is to run at a time'
        port = one.get("port", 30000)
        if isinstance(port, int) and other_one.get("port", 30000) == port:
            text = f"found {port}, but service {first} uses that port on host {host}; {remedy}"
            yield Problem(("services", second, "port"), text)
        table = hosts.get(host)
        gpus = _shared_gpus(one, other_one, table.get("gpus") if isinstance(table, dict) else None)
        if gpus:
            text = f"service {first} uses {gpus} of host {host}, too; {remedy}"
            yield Problem(("services", second, "gpus"), text)


def _shared_gpus(one: Mapping[str, Any], other: Mapping[str, Any], count: Any) -> str:
    """Return the GPUs of both, in words; empty if there are none.

    Nothing is known of services that place themselves within their list (--base-gpu-id): a profile decides how many
    GPUs they take, and preflight looks at those.
    """
    if count == 0 or any(_BASE_GPU & set(_table(item.get("extra_args"))) for item in (one, other)):
        return ""
    lists = [set(gpus) for item in (one, other) if isinstance(gpus := item.get("gpus"), list)]
    if not lists:
        return "all GPUs"
    shared = sorted(set.intersection(*lists) & {gpu for gpu in lists[0] if isinstance(gpu, int)})
    return f"GPU {', '.join(map(str, shared))}" if shared else ""


def _names(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _host(service: Mapping[str, Any]) -> str | None:
    """Return the name of a service's host, None if it is not valid."""
    host = service.get("host")
    if isinstance(host, list) and len(host) == 1:
        host = host[0]
    return host if isinstance(host, str) else None
