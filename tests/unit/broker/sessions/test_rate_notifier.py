"""Which rates sessions are told, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from broker.law.decide import decide
from broker.law.state import State
from broker.measure.flow_table import SENDS_BYTES, SENDS_S, FlowTable, PassedSocket
from broker.model.connection_report import ConnectionReport, Endpoint
from broker.model.values import ClassSample, InterfaceSample, Measurements
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES
from broker.sessions.messages import Hello, RateNotice
from broker.sessions.rate_notifier import REPEAT_S, VALID_S, RateNotifier

POLICY = load("version = 1\n[[interface]]\nname = 'eth0'\negress = '100 Mbit/s'\n")
CAPACITY = 97_000_000


@dataclass
class Machine:
    hello: Hello


@dataclass
class Someone:
    """A session, as far as rates are concerned."""

    name: str
    rates: bool = True
    job: str = "j"
    uid: int = 0
    reported: list[RateNotice] = field(default_factory=list)
    reported_bits_per_s: dict[str, int] = field(default_factory=dict)

    @property
    def machine(self) -> Machine:
        return Machine(Hello(v=1, client="transport", job="j", rates=self.rates))

    def send(self, message: RateNotice) -> bool:
        self.reported.append(message)
        return True


class Host:
    """A flow table, a book of rates and an idle link behind eth0."""

    def __init__(self, *sessions: Someone) -> None:
        self.flows = FlowTable()
        self.book = RateNotifier(self.flows)
        self.sessions = sessions
        self.now_s = 0.0
        counters = tuple(ClassSample(name, 0) for name in CLASS_NAMES)
        state = State()
        for now_s in (0.0, 0.1):
            sample = InterfaceSample("eth0", counters_age_s=0.0, classes=counters)
            decision = decide(now_s=now_s, state=state, measurements=Measurements((sample,)), policy=POLICY)
            state = decision.state
        self.allocation = decision.allocation
        for session in sessions:
            self.flows.add(
                PassedSocket(
                    session.name, session.name, session.job, "compute", "gradient", "udp", "", 1, session.uid, 1
                ),
                registration=1,
            )

    def report(self, session: Someone, delivered: int, peer: str = "10.0.0.2") -> None:
        one = ConnectionReport(peer=Endpoint(peer, 4242), delivered_bytes=delivered)
        self.flows.report(session.name, [one], now_s=self.now_s)

    def notify(self, *, later_s: float = 0.0) -> None:
        self.now_s += later_s
        self.book.notify(
            self.allocation,
            self.sessions,  # type: ignore[arg-type]
            interface_of=lambda address: "eth0" if address.startswith("10.") else None,
            now_s=self.now_s,
        )


def rates(session: Someone) -> list[int | None]:
    return [notice.rate_bits_per_s for notice in session.reported]


def test_a_session_is_told_once_its_peers_are_known_and_again_once_a_second() -> None:
    one = Someone("s-1")
    host = Host(one)
    host.notify()
    assert one.reported == []
    host.report(one, 0)
    host.notify()
    assert one.reported == [RateNotice(traffic_class="compute", rate_bits_per_s=CAPACITY, valid_s=VALID_S)]
    host.notify(later_s=0.5)
    assert len(one.reported) == 1
    assert one.reported_bits_per_s == {"compute": CAPACITY}, "what the status shows of it"
    host.notify(later_s=REPEAT_S)
    assert rates(one) == [CAPACITY, CAPACITY]
    assert VALID_S > 2 * REPEAT_S


def test_who_did_not_ask_is_told_nothing() -> None:
    one = Someone("s-1", rates=False)
    host = Host(one)
    host.report(one, 0)
    host.notify()
    assert one.reported == []


def test_those_who_send_divide_the_offer_and_the_silent_have_no_part() -> None:
    one, two, silent = Someone("s-1"), Someone("s-2"), Someone("s-3")
    host = Host(one, two, silent)
    for step in range(2):
        for session in (one, two):
            host.report(session, step * SENDS_BYTES)
        host.report(silent, 0)
    host.notify()
    assert rates(one)[-1] == rates(two)[-1] == CAPACITY // 2
    assert rates(silent)[-1] == CAPACITY // 3  # what it would have if it began
    host.report(one, 10 * SENDS_BYTES)
    host.now_s += SENDS_S
    host.report(one, 20 * SENDS_BYTES)
    host.notify(later_s=0.1)
    assert rates(one)[-1] == CAPACITY
    host.flows.forget("s-2")
    host.sessions = (one, silent)
    host.notify(later_s=0.1)
    assert rates(one)[-1] == CAPACITY


def tell_senders(*sessions: Someone) -> None:
    """All of them send something, and are told what they may."""
    host = Host(*sessions)
    for step in range(2):
        for session in sessions:
            host.report(session, step * SENDS_BYTES)
    host.notify()


@pytest.mark.parametrize(("job", "uid"), [("k", 0), ("j", 1)])
def test_jobs_divide_the_offer_before_their_sessions_do_and_a_users_job_is_his_alone(job: str, uid: int) -> None:
    one, two, other = Someone("s-1"), Someone("s-2"), Someone("s-3", job=job, uid=uid)
    tell_senders(one, two, other)
    assert rates(one)[-1] == rates(two)[-1] == CAPACITY // 4
    assert rates(other)[-1] == CAPACITY // 2


def test_programs_that_name_no_job_count_as_one_whoever_runs_them() -> None:
    one, two, other = Someone("s-1", job=""), Someone("s-2", job="", uid=1), Someone("s-3")
    tell_senders(one, two, other)
    assert rates(one)[-1] == rates(two)[-1] == CAPACITY // 4
    assert rates(other)[-1] == CAPACITY // 2


@pytest.mark.parametrize("peer", ["127.0.0.1", "192.0.2.1"])
def test_where_a_peer_is_reached_another_way_no_single_rate_is_true(peer: str) -> None:
    one = Someone("s-1")
    host = Host(one)
    host.report(one, 0)
    host.notify()
    host.report(one, 0, peer=peer)
    host.notify(later_s=0.1)
    host.notify(later_s=0.1)
    assert rates(one) == [CAPACITY, None]
