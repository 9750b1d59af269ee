"""What people and scrapers are shown."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from status_documents import POLICY, snapshot, status

from broker.api.documents.metrics import metrics
from broker.api.documents.snapshot import SessionInfo, Snapshot
from broker.cli.show.status_table import render
from broker.daemon.publish import destination_reports
from broker.enforce.socket_marks import JOB_LEAVES
from broker.law.decide import decide
from broker.law.state import State
from broker.measure.tcp_diag import TcpConnection
from broker.model.reasons import Reason
from broker.model.status_values import HostLoad, WatchdogInfo
from broker.model.values import (
    Alarm,
    Allocation,
    BrokerThere,
    ClassSample,
    DestinationAllocation,
    FlowSample,
    InterfaceSample,
    JobSample,
    Measurements,
    Need,
    ScheduleInForce,
    SenderSample,
    Watch,
)
from broker.policy.toml import load
from hive_qos.text import printable

EVIL = "job\x1b[2J\x1b]0;owned\x07\r\n\u202e[red]x[/red]"


def shown(value: dict[str, Any], *, width: int = 80) -> str:
    written = io.StringIO()
    Console(width=width, file=written, highlight=False).print(render(value))
    return written.getvalue()


def test_the_document_is_json_and_counts_a_job_once() -> None:
    value = status(snapshot())
    (job,) = value["jobs"]
    assert (job["job"], job["sessions"], job["sockets"]) == ("train", 1, 1)
    (burst,) = job["bursts"]
    assert (burst["step"], burst["announced_bytes"]) == (7, 4_000_000)
    assert burst["credited_bytes"] > 0
    assert [flow["kind"] for flow in value["flows"]] == ["socket", "connection"]
    (interface,) = value["interfaces"]
    assert interface["shaped"] is True
    assert (interface["gso_max_segs"], interface["gso_reason"]["code"]) == (4, "gso-piece-time")


def test_what_a_decision_rests_on_is_shown_beside_it() -> None:
    policy = load('version = 1\n[[interface]]\nname = "eth0"\ningress = "auto"\n')
    sender = SenderSample("10.0.0.9", "storage", 10**6, 0.01, rtt_s=0.002, broker=BrokerThere.YES, broker_rtt_s=0.003)
    sample = InterfaceSample(
        "eth0", 10**9, 0.02, tuple(ClassSample(name, 0) for name in ("control", "compute", "storage", "other")),
        received_bytes=7 * 10**9, pace_bits_per_s=5, senders=(sender,),
    )  # fmt: skip
    measurements = Measurements((sample,))
    decision = decide(now_s=0.0, state=State(), measurements=measurements, policy=policy)
    now = replace(
        snapshot(), policy=policy, measurements=measurements,
        decision=replace(decision, watches=(Watch("eth0", 30_000_000, rising=True),)),
        sessions=(SessionInfo("s-1", "transport", "train", 1, 0),),
    )  # fmt: skip
    value = status(now)
    out, inbound = value["interfaces"]
    assert out["measured"] == {
        "link_bits_per_s": 10**9, "carrier": None, "carrier_changes": None, "counters_age_s": 0.02,
        "destinations": [],
    }  # fmt: skip
    assert (out["direction"], inbound["direction"]) == ("egress", "ingress")
    measured = inbound["measured"]
    assert (measured["received_bytes"], measured["pace_bits_per_s"]) == (7 * 10**9, 5)
    (shown,) = measured["senders"]
    assert (shown["address"], shown["class"], shown["broker"]) == ("10.0.0.9", "storage", "yes")
    assert (shown["rtt_s"], shown["broker_rtt_s"], shown["receive_rtt_s"]) == (0.002, 0.003, None)
    assert inbound["watch"] == {"bits_per_s": 30_000_000, "rising": True}
    gone = replace(now, measurements=Measurements(), segments={})
    assert [entry["measured"] for entry in status(gone)["interfaces"]] == [None, None]


def test_what_a_capacity_rests_on_is_shown_destination_by_destination_with_who_says_it() -> None:
    """A program of user 1000 sees 60 ms of queue to one address, and the kernel none to another."""

    def flows(at_s: float) -> tuple[FlowSample, ...]:
        sent, wait_s = int(at_s * 4e6), 0.06 if at_s > 2 else 0.0
        reported = FlowSample(
            "s-1/10.0.0.2:4", "10.0.0.2", "compute", "report", 0.0, rtt_s=0.01 + wait_s, rtt_s_min=0.01,
            delivered_bytes=sent, one_way_s=7.0 + wait_s, one_way_age_s=0.05, uid=1000,
        )  # fmt: skip
        known = FlowSample("tcp/1", "10.0.0.3", "storage", "tcp-info", 0.0, rtt_s=0.02, delivered_bytes=sent)
        many = (
            replace(known, key=f"tcp/{number}", peer=f"10.1.0.{number}", delivered_bytes=1) for number in range(2, 60)
        )
        return (reported, known, *many)

    state, now = State(), snapshot()
    for number in range(1, 31):
        classes = tuple(ClassSample(name, number * 10**5) for name in ("control", "compute", "storage", "other"))
        measurements = Measurements(
            (InterfaceSample("eth0", None, 0.0, classes, flows(number / 10), received_bytes=0),)
        )
        decision = decide(now_s=number / 10, state=state, measurements=measurements, policy=POLICY)
        state = decision.state
        reports = destination_reports(decision, measurements)
        now = replace(now, measurements=measurements, decision=decision, destinations=reports)
    (interface,) = status(now)["interfaces"]
    found = {one.pop("address"): one for one in interface["measured"]["destinations"]}
    reported, measured = found["10.0.0.2"], found["10.0.0.3"]
    assert reported.pop("excess_s") == pytest.approx(0.06, abs=0.001)
    assert reported == {"baseline_s": 0.01, "source": "report", "two_way": False, "sees_queue": True, "uid": 1000}
    assert measured == {
        "excess_s": 0.0, "baseline_s": 0.02, "source": "tcp-info", "two_way": False, "sees_queue": False, "uid": None
    }  # fmt: skip
    assert len(found) <= 32


def test_a_connection_s_reason_is_that_of_where_it_goes_or_else_that_of_its_class() -> None:
    def storage(peer: str) -> FlowSample:
        return FlowSample(f"tcp/873/{peer}:5", peer, "storage", "tcp-info", age_s=0.0)

    def connection(peer: str) -> tuple[TcpConnection, str]:
        shown = TcpConnection(
            ("10.0.0.1", 873), (peer, 5), uid=0, inode=7, classid=0, dscp=0, rtt_s=0.01, rtt_s_min=None, acked_bytes=1,
            received_bytes=1, sent_segments=1, retransmitted_segments=0, delivery_rate_bits_per_s=8,
            application_limited=False, cgroup_id=99,
        )  # fmt: skip
        return shown, "storage"

    now = snapshot()
    (sample,) = now.measurements.interfaces
    (entry,) = now.decision.allocation.interfaces
    nameless = FlowSample("s-2/10.0.0.9:4", "10.0.0.9", "compute", "report", age_s=0.1)
    held = DestinationAllocation("10.0.0.3", "storage", 1, 2, Reason("held-for-peer", "as asked"))
    measured = replace(sample, flows=(*sample.flows, nameless, storage("10.0.0.2"), storage("10.0.0.3")))
    peers = ("10.0.0.2", "10.0.0.3", "10.0.0.4")
    now = replace(
        now,
        measurements=Measurements((measured,)),
        decision=replace(now.decision, allocation=Allocation((replace(entry, destinations=(held,)),))),
        tcp=tuple(connection(peer) for peer in peers),
    )

    def codes(value: Snapshot) -> dict[str, str | None]:
        found = {flow["flow"]: flow for flow in status(value)["flows"] if flow["kind"] != "socket"}
        return {name: flow["reason"]["code"] if flow["reason"] else None for name, flow in found.items()}

    classes = {one.name: one.reason.code for one in entry.classes}
    expected = {
        "s-1/10.0.0.2:4": classes["compute"],
        "s-2/10.0.0.9:4": classes["compute"],
        "tcp/873/10.0.0.2:5": classes["storage"],
        "tcp/873/10.0.0.3:5": "held-for-peer",
        "tcp/873/10.0.0.4:5": classes["storage"],
    }
    assert codes(now) == expected
    two = replace(now, decision=replace(now.decision, allocation=Allocation((entry, replace(entry, name="eth1")))))
    assert codes(two)["tcp/873/10.0.0.4:5"] is None, "nobody knows by which of two it goes"
    assert codes(two)["tcp/873/10.0.0.2:5"] == classes["storage"]


def test_jobs_and_schedules_are_shown_with_what_they_get_and_why() -> None:
    now = snapshot()
    allocation = replace(
        now.decision.allocation,
        schedules=(ScheduleInForce("office", "Europe/Berlin", "2026-11-20T18:00+01:00", 60),),
    )
    value = status(replace(now, decision=replace(now.decision, allocation=allocation)))
    (job,) = value["jobs"]
    assert job["leaf"] == "ffe0:240"
    (share,) = job["shares"]
    assert (share["interface"], share["class"], share["weight"]) == ("eth0", "compute", 1.0)
    assert share["share_bits_per_s"] > 30_000_000
    assert share["reason"]["code"] == "shares-its-class"
    assert share["enforced"] is True
    assert "not enforced" not in share["reason"]["text"]
    assert value["schedules"][0]["name"] == "office"
    assert not {"jobs", "flows"} & set(value["interfaces"][0])
    text = shown(value)
    assert "schedule office holds until 2026-11-20T18:00+01:00 (Europe/Berlin)" in text
    assert "train" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_the_table_names_every_class_its_figures_and_its_reason_in_80_columns() -> None:
    text = shown(status(snapshot()))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for word in ("eth0", "control", "compute", "storage", "other", "promised", "Mbit/s", "train", "no alarms"):
        assert word in text
    assert "…" not in text


@pytest.mark.parametrize(
    ("alive", "word"), [(True, "the watchdog has opened the ceilings 3 times"), (False, "the watchdog does not run")]
)
def test_everybody_is_told_whether_the_watchdog_lives(alive: bool, word: str) -> None:
    watchdog = WatchdogInfo(pid=7, alive=alive, openings=3, started=1)
    reported = replace(snapshot(), daemon=replace(snapshot().daemon, watchdog=watchdog))
    assert status(reported)["daemon"]["watchdog"] == {"pid": 7, "alive": alive, "openings": 3, "started": 1}
    assert word in shown(status(reported))
    text = metrics(reported).decode()
    assert f"hive_qos_watchdog_alive {float(alive)}" in text
    assert "hive_qos_watchdog_openings_total 3.0" in text


def test_an_interface_that_is_not_there_has_no_figures_in_the_table() -> None:
    nothing = Measurements()
    policy = load('version = 1\n[[interface]]\nname = "eth0"\n')  # whose speed nobody names
    decision = decide(now_s=0.0, state=State(), measurements=nothing, policy=policy)
    value = status(replace(snapshot(), decision=decision, measurements=nothing, segments={}, alarms=decision.alarms))
    assert value["interfaces"][0]["shaped"] is False
    text = shown(value)
    assert "eth0 is not shaped" in text
    assert "! eth0: it is not there; it is shaped when it appears [interface-missing]" in text
    assert "bit/s" not in text


def test_what_storage_declares_is_in_the_document_and_told_in_a_line() -> None:
    reported = snapshot()
    (interface,) = reported.measurements.interfaces
    declared = (Need("s-2", 977, 50 * 2**30, 1.0, 600.0, 12), Need("s-3", 977, 2**20, 1.0))
    reported = replace(reported, measurements=Measurements((replace(interface, needs=declared),)))
    value = status(reported)
    assert [(need["interface"], need["session"], need["uid"], need["replicas_at_risk"]) for need in value["needs"]] == [
        ("eth0", "s-2", 977, 12), ("eth0", "s-3", 977, 0),
    ]  # fmt: skip
    text = shown(value)
    assert "storage has 50 GiB to send through eth0, due in 10 min, 12 objects with" in text
    assert "storage has 1 MiB to send through eth0\n" in text.replace(" \n", "\n")
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_a_burst_is_shown_with_its_destinations_and_why_it_is_credited() -> None:
    reported = snapshot()
    (interface,) = reported.measurements.interfaces
    burst = replace(interface.bursts[0], uid=1000, by_destination=(("10.0.0.2", 3_000_000), ("10.0.0.3", 1_000_000)))
    measurements = Measurements((replace(interface, bursts=(burst,)),))
    decision = decide(now_s=0.0, state=State(), measurements=measurements, policy=POLICY)
    (shown_burst,) = status(replace(reported, measurements=measurements, decision=decision))["jobs"][-1]["bursts"]
    assert shown_burst["destinations"] == {"10.0.0.2": 3_000_000, "10.0.0.3": 1_000_000}
    assert shown_burst["credited_bytes"] == 4_000_000
    assert shown_burst["credit_reason"]["code"] == "credit-of-first"


def test_the_widest_figures_fit_80_columns() -> None:
    value = status(snapshot())
    for entry in value["interfaces"][0]["classes"]:
        for key in entry:
            if key.endswith("bits_per_s"):
                entry[key] = 19_400_000
        entry.update(backlog_bytes=1023 * 1024 + 900, dropped_packets=1_234_567)
    text = shown(value)
    assert "…" not in text
    assert text.count("19.4 Mbit/s") >= 16


def test_the_same_name_of_two_users_is_two_jobs_and_both_are_named() -> None:
    now = snapshot()
    (interface,) = now.measurements.interfaces
    (burst,) = interface.bursts
    other = JobSample("train", "compute", 0, 1, True, 0, 5_000, uid=1000)
    measurements = Measurements(
        (replace(interface, jobs=(*interface.jobs, other), bursts=(replace(burst, uid=1000),)),)
    )
    two = replace(
        now,
        measurements=measurements,
        decision=decide(now_s=0.0, state=State(), measurements=measurements, policy=POLICY),
        sessions=(*now.sessions, SessionInfo("s-2", "transport", "train", 2, 1000)),
        leaves={**now.leaves, (1000, "train"): JOB_LEAVES[3]},
    )
    value = status(two)
    assert [(job["job"], job["uid"], job["sessions"], job["sockets"]) for job in value["jobs"]] == [
        ("train", 0, 1, 1), ("train", 1000, 1, 0),
    ]  # fmt: skip
    assert [job["leaf"] for job in value["jobs"]] == ["ffe0:240", "ffe0:260"]
    assert [(len(job["shares"]), len(job["bursts"])) for job in value["jobs"]] == [(1, 0), (1, 1)]
    text = shown(value, width=200)
    assert text.count("train of user 1000") == text.count("train of user 0") == 1
    assert "of user" not in shown(status(now), width=200)


def test_a_share_that_no_leaf_enforces_says_so() -> None:
    now = snapshot()
    (interface,) = now.measurements.interfaces
    jobs = (*interface.jobs, replace(interface.jobs[0], traffic_class="storage", leaf_sent_bytes=None))
    measurements = Measurements(
        (replace(interface, jobs=(*jobs, replace(jobs[0], job="ninth", leaf_sent_bytes=None))),)
    )
    decision = decide(now_s=0.0, state=State(), measurements=measurements, policy=POLICY)
    value = status(replace(now, measurements=measurements, decision=decision))
    shares = {(job["job"], share["class"]): share for job in value["jobs"] for share in job["shares"]}
    assert {key: share["enforced"] for key, share in shares.items()} == {
        ("train", "compute"): True, ("train", "storage"): False, ("ninth", "compute"): False,
    }  # fmt: skip
    for (_, name), share in shares.items():
        if not share["enforced"]:
            assert share["reason"]["text"].endswith(f"; shown, not enforced: it shares the leaf of {name}")


def test_text_from_outside_cannot_paint_on_the_terminal() -> None:
    text = shown(status(snapshot(job=EVIL, alarms=(Alarm("x", EVIL, EVIL),))), width=200)
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(text)
    assert "[red]x[/red]" in text


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"interfaces": [{}], "jobs": [{}], "alarms": [{}]},
        {"interfaces": 5, "jobs": None, "alarms": "x"},
        {"interfaces": [{"name": 5, "classes": [{"backlog_bytes": "x", "reason": 5}, None]}]},
        {
            "jobs": [
                {"sessions": "[/]\x1b", "bursts": [{"step": "[/red]"}], "shares": [{"reason": 5, "class": "\x1b"}, 7]}
            ]
        },
        {"schedules": [{"name": "\x1b"}, 5], "interfaces": [{}]},
    ],
)
def test_a_document_of_another_version_is_shown_as_far_as_it_goes(value: dict[str, Any]) -> None:
    text = shown(value)
    assert text
    assert "\x1b" not in text


def test_the_load_of_the_host_is_shown_and_what_is_not_known_is_null() -> None:
    unknown = status(snapshot())["load"]
    assert unknown == {"processors_used": None, "memory_available_bytes": None, "daemon_memory_bytes": None}
    known = replace(snapshot(), load=HostLoad(0.25, 8 * 10**9, 42_000_000))
    assert status(known)["load"]["daemon_memory_bytes"] == 42_000_000
    assert b"hive_qos_host_processors_used_ratio 0.25" in metrics(known)
    assert b"hive_qos_memory_bytes 4.2e+07" in metrics(known)
    assert b"hive_qos_memory_bytes" not in metrics(snapshot())


def test_metrics_carry_rates_and_counters_of_every_class() -> None:
    text = metrics(snapshot(alarms=(Alarm("tree-lost", "eth0", "gone"),))).decode()
    for name in ("control", "compute", "storage", "other"):
        assert f'hive_qos_class_sent_bytes_total{{class="{name}",interface="eth0"}} 1000.0' in text
        assert f'hive_qos_class_ceil_bytes_per_second{{class="{name}",interface="eth0"}}' in text
    assert 'hive_qos_alarm{code="tree-lost",subject="eth0"} 1.0' in text


def test_printable_keeps_words_and_escapes_the_rest() -> None:
    assert printable("Größe 5 µm") == "Größe 5 µm"
    assert printable("a\nb\x1b[1m") == "a\\nb\\x1b[1m"
    assert len(printable("x" * 1000)) == 256


def test_a_link_without_a_carrier_is_shown_to_people_scrapers_and_readers() -> None:
    now = snapshot()
    (sample,) = now.measurements.interfaces
    measurements = Measurements((replace(sample, carrier=False, carrier_changes=7),))
    decision = decide(now_s=0.0, state=State(), measurements=measurements, policy=POLICY)
    down = replace(now, measurements=measurements, decision=decision, alarms=decision.alarms)
    value = status(down)
    (interface,) = value["interfaces"]
    assert (interface["measured"]["carrier"], interface["measured"]["carrier_changes"]) == (False, 7)
    assert any("sends at most" in line and "no carrier" in line for line in shown(value, width=200).splitlines())
    assert [alarm["code"] for alarm in value["alarms"]] == ["link-down"]
    figures = metrics(down).decode()
    assert 'hive_qos_carrier{interface="eth0"} 0.0' in figures
    assert 'hive_qos_carrier_changes_total{interface="eth0"} 7.0' in figures
    assert "hive_qos_carrier{" not in metrics(now).decode()  # the kernel did not say
