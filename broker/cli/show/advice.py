"""What an operator can do about what limits a class or job: by the code of the limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.cli.show.screen import items, name_of, number, rate

CONFIGURED = ("configured", "link", "fallback")
"""Sources of a capacity that nobody has measured."""


def advice(
    code: str, *, link: Mapping[str, Any], entry: Mapping[str, Any], job: str | None, flows: Sequence[Mapping[str, Any]]
) -> list[str]:
    """What could be done, most useful first.

    Args:
        code: of the limit.
        link: the interface of the status document. entry: the class there.
        job: where a job is limited. flows: its connections.
    """
    interface, of = name_of(link.get("name")), name_of(entry.get("name"))
    own = f"`guarantee` of [class.{of}]"
    peer = next((name_of(one["peer"]) for one in flows if one.get("peer")), "the other host")
    match code:
        case "link":
            return [f"raise {own} or its `weight`", *_others(link, entry), _capacity(link, interface)]
        case "class":
            own_job = f'[job."{name_of(job)}"]' if job else "[job.NAME]"
            return [f"raise `weight` or `guarantee` of {own_job}, beside the other jobs", f"raise {own}"]
        case "ceiling":
            limits = f"[class.{of}]" + (f' or [job."{name_of(job)}"]' if job else "")
            return [f"raise `ceiling` of {limits}; a schedule may lower it: hive-qos status names those in force"]
        case "hold":
            return [
                "nothing: a broker protects its training, and a hold ends with the burst",
                f"`hive-qos status` on {peer} says for which job; a larger {own} is kept during holds, too",
            ]
        case "burst":
            return [
                "nothing: it ends with the burst, and the guarantee is kept over its window",
                f"raise `floor` of [class.{of}] if it must never fall so low",
            ]
        case "processor":
            return [
                "look who uses the processors: top -H",
                "`hive-qos doctor` says whether the native engine is in use",
            ]
        case "peer":
            return [
                f"run `hive-qos why` on {peer}: its link, its processors or its program",
                f"measure the path: ping {peer}",
            ]
        case "itself" | "idle":
            return ["nothing here: the network does not hold it back; look at the program"]
    return []


def _others(link: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    """The class that sends most beyond its promise, where there is one."""
    beyond = {
        name_of(one.get("name")): number(one.get("throughput_bits_per_s")) - number(one.get("guarantee_bits_per_s"))
        for one in items(link, "classes")
        if one.get("name") != entry.get("name")
    }
    name = max(beyond, key=lambda one: beyond[one], default="")
    if not name or beyond[name] <= 0:
        return []
    return [f"lower `ceiling` of [class.{name}], which sends {rate(beyond[name])} beyond its promise"]


def _capacity(link: Mapping[str, Any], interface: str) -> str:
    if link.get("capacity_source") in CONFIGURED:
        return f"if {interface} carries more than that, write its rate as `egress`"
    return f"{interface} was measured to carry no more: `hive-qos log` says when that changed"
