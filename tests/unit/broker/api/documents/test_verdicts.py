"""Whose promise is kept, who lends to whom, what limits each class and job: from figures alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from broker.api.documents import verdicts
from broker.api.documents.verdicts import LinkFigures
from broker.api.documents.window_average import Average
from broker.model.reasons import Reason
from broker.model.values import ClassAllocation, DestinationAllocation, FlowSample, InterfaceAllocation, JobAllocation

CAPACITY = 50_000_000
WINDOW_S = 60.0
GUARANTEES = {"control": 1_000_000, "compute": 30_000_000, "storage": 10_000_000, "other": 5_000_000}
FREE = Reason("link-is-free", "")
HELD = DestinationAllocation("10.91.0.1", "storage", 1, 1_020_000, Reason("held-for-peer", "t asked"))
QUEUE = 100_000


def link(
    sends: dict[str, int], waits: dict[str, int], *, reasons: dict[str, Reason] | None = None,
    held_back_bytes: int = 0, owed_bytes: int = 0, **more: Any,
) -> LinkFigures:  # fmt: skip
    classes = tuple(
        ClassAllocation(
            name, 1_000_000, CAPACITY, 0, guarantee, 1_000_000, CAPACITY, 0, CAPACITY, sends.get(name, 0),
            waits.get(name, 0), 0, (reasons or {}).get(name, FREE),
            held_back_bytes=held_back_bytes if name == "storage" else 0, owed_bytes=owed_bytes,
        )
        for name, guarantee in GUARANTEES.items()
    )  # fmt: skip
    entry = InterfaceAllocation(
        "eth0", "egress", CAPACITY, "configured", FREE, classes, destinations=more.pop("holds", ()),
        jobs=more.pop("jobs", ()),
    )  # fmt: skip
    known: dict[str, Any] = {
        "averages": {}, "destinations": {}, "towards": {}, "peers": {},
        "lender_now": Average(sends.get("storage", 0), 2.0), **more,
    }  # fmt: skip
    return LinkFigures(entry=entry, windows_s=dict.fromkeys(GUARANTEES, WINDOW_S), **known)


def of(found: LinkFigures, name: str) -> ClassAllocation:
    return next(one for one in found.entry.classes if one.name == name)


@pytest.mark.parametrize(
    ("average", "owed_bytes", "code"),
    [
        (Average(11_300_000, 60.0, 60.0), 0, "kept"),
        (Average(7_100_000, 60.0, 60.0), 0, "missed"),
        (Average(7_100_000, 60.0, 59.0), 0, "not-claimed"),
        (Average(7_100_000, 30.0, 30.0), 0, "not-claimed"),
        (Average(9_000_000, 60.0, 20.0), 2_000_000, "owed"),
        (None, 0, "not-measured"),
    ],
)
def test_a_promise_is_judged_by_the_average_and_missed_by_those_alone_who_had_more_to_send(
    average: Average | None, owed_bytes: int, code: str
) -> None:
    found = link({"storage": 5_300_000}, {}, averages={"storage": average} if average else {}, owed_bytes=owed_bytes)
    assert verdicts.promise(found, of(found, "storage")).code == code


def test_storage_lends_what_it_lacks_of_its_promise_to_those_who_send_more_than_theirs() -> None:
    sends = {"compute": 38_000_000, "storage": 5_300_000, "other": 5_000_000}
    full = link(sends, {"storage": QUEUE, "compute": QUEUE})
    assert verdicts.lends_bits_per_s(full) == {"compute": 4_700_000}
    assert verdicts.lending_text("storage", {"compute": 4_700_000}) == "lends 4.7 Mbit/s to compute"
    assert verdicts.lending_text("compute", {"compute": 4_700_000}) == "borrows 4.7 Mbit/s from storage"
    assert verdicts.lends_bits_per_s(link(sends, {})) == {}, "who does not want more lends nothing"
    assert verdicts.lends_bits_per_s(link({"storage": 5_300_000}, {"storage": QUEUE})) == {}, "the link is free"


@pytest.mark.parametrize(
    ("sends", "waits", "reason", "code"),
    [
        (0, 0, FREE, "idle"),
        (5_000_000, 0, FREE, "itself"),
        (5_000_000, QUEUE, FREE, "link"),
        (5_000_000, QUEUE, Reason("yields-to-burst", "makes room"), "burst"),
        (5_000_000, QUEUE, Reason("held-by-schedule", "by schedule"), "ceiling"),
    ],
)
def test_what_limits_a_class(sends: int, waits: int, reason: Reason, code: str) -> None:
    found = link({"storage": sends, "compute": 45_000_000}, {"storage": waits}, reasons={"storage": reason})
    verdict = verdicts.class_limit(found, of(found, "storage"))
    assert verdict.code == code
    assert (verdict.text == "it is full, compute sends 45 Mbit/s") == (code == "link")


def test_a_sender_that_is_held_may_use_what_its_hold_lets_it_and_says_so() -> None:
    known: dict[str, Any] = {"holds": (HELD,), "peers": {"10.91.0.1": "trainer-1"}}
    now = {"10.91.0.1": Average(1_000_000, 2.0)}
    alone = link({"storage": 1_010_000}, {"storage": QUEUE}, held_back_bytes=QUEUE, destinations=now, **known)
    storage = of(alone, "storage")
    assert verdicts.usable_bits_per_s(alone, storage) == 1_020_000
    assert verdicts.held_text(alone, storage) == "held to 1.02 Mbit/s towards 10.91.0.1, as trainer-1 asks"
    assert verdicts.class_limit(alone, storage).code == "hold"
    assert verdicts.usable_bits_per_s(alone, of(alone, "other")) == CAPACITY

    elsewhere = link({"storage": 9_000_000}, {"storage": QUEUE}, held_back_bytes=QUEUE, destinations=now, **known)
    assert verdicts.usable_bits_per_s(elsewhere, of(elsewhere, "storage")) == CAPACITY
    idle = link({}, {}, **known)
    assert (verdicts.usable_bits_per_s(idle, of(idle, "storage")), verdicts.held_text(idle, of(idle, "storage"))) == (
        CAPACITY, "",
    )  # fmt: skip
    over = replace(HELD, reason=Reason("hold-over", "nobody"))
    free = link({"storage": 9_000_000}, {}, **{**known, "holds": (over,)})
    assert verdicts.held_text(free, of(free, "storage")) == ""


JOB = JobAllocation(
    "llm", "compute", 1.0, 1, CAPACITY, 0, 20_000_000, 25_000_000, 10_000_000, 0, Reason("gets-what-it-wants", "w")
)
FLOW = FlowSample("s-1/x", "10.0.0.2", "compute", "report", 0.1, rtt_s=0.04, rtt_s_min=0.008, job="llm")
BOUND = Reason("shares-its-class", "10 Mbit/s of the 30 Mbit/s of its class, by weight 1 of 3")


@pytest.mark.parametrize(
    ("job", "flows", "processors", "code", "words"),
    [
        (replace(JOB, throughput_bits_per_s=0), (), 0.1, "idle", ""),
        (JOB, (replace(FLOW, application_limited=True),), 0.1, "itself", "no more to send"),
        (JOB, (FLOW,), 0.1, "peer", "10.0.0.2 or the path to it takes no more (round trip 40 ms, 8 ms at best)"),
        (JOB, (FLOW,), 0.99, "processor", "all processors are busy (99 %)"),
        (replace(JOB, backlog_bytes=QUEUE), (FLOW,), 0.99, "link", "it is full, storage sends 9 Mbit/s"),
        (replace(JOB, reason=BOUND, share_bits_per_s=10_000_000), (FLOW,), 0.99, "class", "by weight 1 of 3"),
        (replace(JOB, backlog_bytes=QUEUE, reason=Reason("held-by-ceiling", "c")), (FLOW,), 0.1, "ceiling", "c"),
    ],
)
def test_each_job_has_one_verdict(
    job: JobAllocation, flows: tuple[FlowSample, ...], processors: float, code: str, words: str
) -> None:
    others = (replace(JOB, job="b", throughput_bits_per_s=30_000_000),) if code == "class" else ()
    found = link({"compute": 40_000_000, "storage": 9_000_000}, {"compute": QUEUE}, jobs=(job, *others))
    verdict = verdicts.job_limit(found, job, of(found, "compute"), flows=flows, processors_used=processors)
    assert verdict.code == code
    assert words in verdict.text


def test_a_job_of_storage_towards_a_held_host_is_limited_by_the_hold() -> None:
    found = link({"storage": 1_000_000}, {"storage": QUEUE}, holds=(HELD,), held_back_bytes=QUEUE)
    job, flow = replace(JOB, traffic_class="storage"), replace(FLOW, peer="10.91.0.1", traffic_class="storage")
    verdict = verdicts.job_limit(found, job, of(found, "storage"), flows=(flow,), processors_used=0.1)
    assert (verdict.code, verdict.text) == ("hold", "held to 1.02 Mbit/s towards 10.91.0.1, as its broker asks")


def test_a_job_that_waits_for_a_flooded_way_in_says_so_and_how_much_of_it_is_storage() -> None:
    storage = replace(of(link({}, {}), "storage"), throughput_bits_per_s=15_000_000)
    inbound = InterfaceAllocation("eth0", "ingress", 19_000_000, "configured", FREE, (storage,))
    found = link({"compute": 10_000_000}, {}, inbound=inbound, arriving=Average(18_500_000, 2.0))
    verdict = verdicts.job_limit(found, JOB, of(found, "compute"), flows=(FLOW,), processors_used=0.99)
    assert verdict == Reason(
        "link", "nothing waits here, the link is full inbound: 18.5 Mbit/s of 19 Mbit/s, 15 Mbit/s of it storage"
    )
