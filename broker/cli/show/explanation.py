"""Why a job, a class or a program sends no more than it does: one sentence, the figures behind it, and what to do.

    find            what a name, or the number of a process, means in a status document
    explanations    one for each class and interface in which that sends

The daemon has decided what limits a class or job (`broker.api.documents.verdicts`). A program that has no job is
limited by what limits its class; where nothing of that class waits here, its connections tell the processor, itself
and the peer apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from broker.cli.show.advice import advice
from broker.cli.show.screen import (
    LIMITED_BY,
    capacity_text,
    code_of,
    items,
    lasting,
    name_of,
    number,
    rate,
    reason_text,
    size,
    span,
)
from hive_qos.text import few

BUSY = 0.95
"""Of all processors, as `broker.api.documents.verdicts` has it."""
SHOWN_MAX = 12
"""Peers, connections and known names: more than that says nothing to a person."""
INTERFACE_KEYS = ("name", "capacity_bits_per_s", "capacity_source", "capacity_reason")
"""What the capacity rests on; its classes are told apart."""
Document = Mapping[str, Any]


class Fact(Struct, frozen=True):
    """What is said about whom."""

    about: str
    text: str


class Explanation(Struct, frozen=True):
    """Of one subject at one interface. `limited_by` is a code; times are null where the cause is new or not followed.

    `figures` are the objects of the status document that the evidence is made from.
    """

    kind: str
    name: str
    interface: str
    traffic_class: str
    limited_by: str
    limited_for_s: float | None
    limited_since_s: float | None
    sentence: str
    evidence: list[Fact]
    advice: list[str]
    figures: dict[str, Any]


class Subject(Struct, frozen=True):
    """What a name means: jobs, a class, and processes that have no job."""

    name: str
    jobs: tuple[Document, ...] = ()
    is_class: bool = False
    pids: frozenset[int] = frozenset()


def find(document: Document, name: str) -> Subject | None:
    """A job of this name, else a class, else a process by its number, else programs by their name; None: nothing."""
    jobs = tuple(one for one in items(document, "jobs") if one.get("job") == name)
    if jobs:
        return Subject(name, jobs)
    if name in _class_names(document):
        return Subject(name, is_class=True)
    talking = [*items(document, "flows"), *items(document, "programs"), *items(document, "sessions")]
    pids = {
        pid
        for one in talking
        if isinstance(pid := one.get("pid"), int) and (name == str(pid) or name == one.get("command"))
    }
    if not pids:
        return None
    sessions = [one for one in items(document, "sessions") if one.get("pid") in pids and one.get("job")]
    owned = {_key(one) for one in sessions}
    jobs = tuple(one for one in items(document, "jobs") if _key(one) in owned)
    return Subject(name, jobs, pids=frozenset(pids - {one.get("pid") for one in sessions}))


def known(document: Document) -> str:
    """What could have been asked for, in one line."""
    jobs = [name_of(one.get("job")) for one in items(document, "jobs")]
    classes = [name_of(one) for one in _class_names(document)]
    programs = [name_of(one.get("command")) for one in items(document, "programs") if one.get("command")]
    lists = (("jobs", jobs), ("classes", classes), ("programs", list(dict.fromkeys(programs))))
    return "; ".join(f"{kind}: {_few(names)}" for kind, names in lists)


def explanations(document: Document, subject: Subject) -> list[Explanation]:
    """One for each place where it sends, or could; none for a job that has registered nothing yet."""
    outbound = [
        (link, entry)
        for link in items(document, "interfaces")
        if link.get("direction") != "ingress"
        for entry in items(link, "classes")
    ]
    made = []
    for link, entry in outbound:
        where = link.get("name"), entry.get("name")
        if subject.is_class and entry.get("name") == subject.name:
            made.append(_made(document, link, entry, entry, kind="class", name=subject.name))
        for job in subject.jobs:
            for share in items(job, "shares"):
                if (share.get("interface"), share.get("class")) == where:
                    made.append(_made(document, link, entry, share, kind="job", name=str(job.get("job")), job=job))
        flows = [one for one in items(document, "flows") if one.get("pid") in subject.pids]
        mine = [one for one in flows if one.get("class") == entry.get("name")]
        alone = len({one.get("name") for one, _ in outbound}) == 1  # TCP_INFO names no interface
        if mine and (alone or number(entry.get("throughput_bits_per_s"))):
            verdict = _program_limit(document, entry, mine)
            made.append(_made(document, link, entry, verdict, kind="program", name=subject.name, flows=mine))
    return made


def _made(
    document: Document, link: Document, entry: Document, limited: Document, *, kind: str, name: str,
    job: Document | None = None, flows: Sequence[Document] | None = None,
) -> Explanation:  # fmt: skip
    """Of a class (`limited` is its entry), a job (its share) or a program (a verdict of ours)."""
    code, interface, of = code_of(limited.get("limited_by")), str(link.get("name")), str(entry.get("name"))
    mine = _flows(document, of, job) if flows is None else list(flows)
    for_s, since_s = limited.get("limited_for_s"), limited.get("limited_since_s")
    figures = {
        "interface": {key: link.get(key) for key in INTERFACE_KEYS},
        "class": dict(entry),
        "share": dict(limited) if kind == "job" else None,
        "others": [dict(one) for one in items(link, "classes") if one.get("name") != of],
        "flows": [dict(one) for one in mine[:SHOWN_MAX]],
        "processors_used": _load(document),
    }
    return Explanation(
        kind=kind, name=name, interface=interface, traffic_class=of, limited_by=code,
        limited_for_s=for_s, limited_since_s=since_s,
        sentence=_sentence(name, limited, code, interface),
        evidence=_evidence(document, link, entry, limited, mine, job),
        advice=advice(code, link=link, entry=entry, job=None if job is None else str(job.get("job")), flows=mine),
        figures=figures,
    )  # fmt: skip


def _sentence(name: str, limited: Document, code: str, interface: str) -> str:
    """Who is limited by what, since when, and why."""
    name, text = name_of(name), reason_text(limited.get("limited_by"))
    since_s = limited.get("limited_since_s")
    since = ""
    if isinstance(since_s, (int, float)) and lasting(limited):
        since = f", since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since_s))} ({lasting(limited)[5:]})"
    if code == "idle":
        return f"{name} sends nothing through {interface}{since}."
    return f"{name} is limited by {LIMITED_BY.get(code, code)} at {interface}{since}" + (f": {text}." if text else ".")


def _evidence(
    document: Document, link: Document, entry: Document, limited: Document, flows: Sequence[Document],
    job: Document | None,
) -> list[Fact]:  # fmt: skip
    """The figures that the sentence rests on."""
    facts = []
    if job is not None:
        facts.append(Fact("job", f"{_figures(limited)}; {reason_text(limited.get('reason'))}"))
    of = f"class {name_of(entry.get('name'))}"
    facts.append(Fact(of, f"{_figures(entry)}, promised {rate(entry.get('guarantee_bits_per_s'))}"))
    said = [reason_text(entry.get("promise")), *(name_of(entry.get(key) or "") for key in ("lending", "held"))]
    facts += [Fact(of, text) for text in (*said, reason_text(entry.get("reason"))) if text]
    facts.append(Fact(name_of(link.get("name")), f"sends at most {capacity_text(link)}"))
    others = [one for one in items(link, "classes") if one is not entry and number(one.get("throughput_bits_per_s"))]
    for one in sorted(others, key=lambda one: -number(one.get("throughput_bits_per_s"))):
        sends, due = rate(one.get("throughput_bits_per_s")), rate(one.get("guarantee_bits_per_s"))
        facts.append(Fact(f"class {name_of(one.get('name'))}", f"sends {sends}, promised {due}"))
    facts += _peers(flows)
    used = _load(document)
    if used is not None:
        facts.append(Fact("this host", f"{100 * used:.0f} % of all processors are in use"))
    for alarm in items(document, "alarms"):
        subject, text, code = (name_of(alarm.get(key)) for key in ("subject", "text", "code"))
        facts.append(Fact("alarm", f"{subject}: {text} [{code}]; hive-qos doctor says what to do"))
    return facts


def _figures(one: Document) -> str:
    text = f"sends {rate(one.get('throughput_bits_per_s'))}"
    if isinstance(one.get("average_over_s"), (int, float)):
        text += f", {rate(one.get('average_bits_per_s'))} on average over {span(number(one.get('average_over_s')))}"
    return f"{text}, may send {rate(one.get('usable_bits_per_s'))}, {size(one.get('backlog_bytes'))} wait here"


def _peers(flows: Sequence[Document]) -> list[Fact]:
    """Round trips and losses of the connections that are measured, by peer."""
    peers: dict[str, list[Document]] = {}
    for one in flows:
        if isinstance(one.get("rtt_s"), (int, float)):
            peers.setdefault(name_of(one.get("peer")), []).append(one)
    facts = []
    for peer, mine in list(peers.items())[:SHOWN_MAX]:
        worst = max(mine, key=lambda one: number(one.get("rtt_s")))
        text = f"round trip {_ms(worst.get('rtt_s'))}"
        if isinstance(worst.get("rtt_s_min"), (int, float)):
            text += f", {_ms(worst.get('rtt_s_min'))} at best"
        sent, lost = (sum(number(one.get(key)) for one in mine) for key in ("sent_packets", "lost_packets"))
        if sent:
            text += f"; {100 * lost / sent:.2g} % of its packets lost" if lost else "; no packet lost"
        facts.append(Fact(f"peer {peer}", text + (f"; {len(mine)} connections" if len(mine) > 1 else "")))
    return facts


def _program_limit(document: Document, entry: Document, flows: Sequence[Document]) -> Document:
    """What limits a program: what limits its class where something waits there, else what its connections show."""
    if code_of(entry.get("limited_by")) not in ("idle", "itself", ""):
        return {key: entry.get(key) for key in ("limited_by", "limited_for_s", "limited_since_s", "limited_part")}
    sends = sum(number(one.get("throughput_bits_per_s")) for one in flows)
    measured = [one for one in flows if isinstance(one.get("rtt_s"), (int, float))]
    waiting = [one for one in measured if one.get("application_limited") is False]
    used = _load(document)
    if not sends and not any(one.get("waited_lately") for one in flows):
        code, text = "idle", ""
    elif used is not None and used >= BUSY:
        code, text = "processor", f"nothing waits here, all processors are busy ({100 * used:.0f} %)"
    elif not waiting:
        code, text = "itself", "nothing waits here, it has no more to send"
    else:
        worst = max(waiting, key=lambda one: number(one.get("rtt_s")) - number(one.get("rtt_s_min")))
        code = "peer"
        text = f"nothing waits here, {name_of(worst.get('peer'))} or the path to it takes no more"
    return {"limited_by": {"code": code, "text": text}}


def _class_names(document: Document) -> list[str]:
    entries = [entry for link in items(document, "interfaces") for entry in items(link, "classes")]
    return list(dict.fromkeys(str(one.get("name")) for one in entries))


def _flows(document: Document, of: str, job: Document | None) -> list[Document]:
    """The connections of a class, or of a job in it."""
    return [
        one
        for one in items(document, "flows")
        if one.get("class") == of
        and (job is None or (one.get("uid"), one.get("job")) == (job.get("uid"), job.get("job")))
    ]


def _key(one: Document) -> tuple[object, object]:
    return one.get("uid"), one.get("job")


def _load(document: Document) -> float | None:
    load = document.get("load")
    used = load.get("processors_used") if isinstance(load, Mapping) else None
    return float(used) if isinstance(used, (int, float)) else None


def _few(names: Sequence[str]) -> str:
    return few(names, at_most=SHOWN_MAX) or "none"


def _ms(seconds: object) -> str:
    return f"{1000 * number(seconds):.3g} ms"
