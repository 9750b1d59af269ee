"""Which job has which leaf, and what its programs' reports come to."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.measure.flow_table import FlowTable, PassedSocket
from broker.model.connection_report import ConnectionReport, Endpoint
from broker.policy.types import TrafficClass
from broker.sessions.job_table import SENDS_BYTES, SENDS_S, JobTable, Slots
from shaping.model.observations import ClassCounters


def connection(
    delivered: int | None, *, peer: str = "10.0.0.2", traffic_class: TrafficClass = "compute"
) -> ConnectionReport:
    return ConnectionReport(peer=Endpoint(peer, 4242), traffic_class=traffic_class, delivered_bytes=delivered)


@dataclass
class Host:
    book: JobTable = field(default_factory=lambda: JobTable(4))
    flows: FlowTable = field(default_factory=FlowTable)

    def register(self, session: str, job: str, *, uid: int = 1000, traffic_class: str = "compute") -> int | None:
        self.flows.add(
            PassedSocket(session, session, job, traffic_class, "gradient", "udp", "", 1, uid, 1), registration=1
        )
        return self.book.register(session, job=job, traffic_class=traffic_class, uid=uid)

    def report(self, session: str, *connections: ConnectionReport, now_s: float = 0.0) -> None:
        deliveries = self.flows.report(session, connections, now_s=now_s)
        self.book.delivered(
            self.flows.job_of(session),
            deliveries,
            interface_of=lambda peer: "eth0" if peer.startswith("10.") else None,
            now_s=now_s,
        )


def test_programs_of_a_job_share_its_leaf_and_the_last_one_gives_it_back() -> None:
    host = Host()
    assert host.register("s-1", "j", uid=1) == host.register("s-2", "j", uid=1) == 0
    assert host.register("s-3", "k") == 1
    host.book.forget("s-1")
    assert host.book.slots() == {(1, "j"): 0, (1000, "k"): 1}
    host.book.forget("s-2")
    assert host.book.slots() == {(1000, "k"): 1}


def test_who_takes_the_name_of_another_users_job_has_a_leaf_and_an_account_of_his_own() -> None:
    host = Host()
    assert [host.register("s-1", "j", uid=1), host.register("s-2", "j", uid=2)] == [0, 1]
    for at, size_bytes in enumerate((0, SENDS_BYTES)):
        host.report("s-1", connection(3 * size_bytes), now_s=0.1 * at)
        host.report("s-2", connection(size_bytes), now_s=0.1 * at)
    leaves = {0: ClassCounters(sent_bytes=77, backlog_bytes=5), 1: ClassCounters(sent_bytes=6, backlog_bytes=0)}
    found = {sample.uid: sample for sample in host.book.samples("eth0", leaves, now_s=0.1)}
    assert [(one.job, one.programs) for one in found.values()] == [("j", 1), ("j", 1)]
    assert (found[1].delivered_bytes, found[1].leaf_sent_bytes, found[1].leaf_backlog_bytes) == (3 * SENDS_BYTES, 77, 5)
    assert (found[2].delivered_bytes, found[2].leaf_sent_bytes, found[2].leaf_backlog_bytes) == (SENDS_BYTES, 6, 0)
    host.book.forget("s-1")
    assert host.book.slots() == {(2, "j"): 1}, "the other's stays"
    assert [sample.uid for sample in host.book.samples("eth0", leaves, now_s=0.2)] == [2]


def test_a_leaf_that_was_given_back_is_taken_last_by_others() -> None:
    slots = Slots(4)
    first = slots.take("a", uid=1)
    slots.leave((1, "a"))
    assert [slots.take(job, uid=uid) for job, uid in (("b", 2), ("c", 3), ("d", 4), ("e", 5))] == [1, 2, 3, first]


def test_a_user_who_ends_job_after_job_leaves_leaves_that_he_has_never_had() -> None:
    slots = Slots(8)
    taken = []
    for number in range(100):
        taken.append(slots.take(f"j{number}", uid=1))
        slots.leave((1, f"j{number}"))
    assert taken[:8] == [0, 1, 2, 3, 0, 1, 2, 3], "each after as long a time as may be"
    assert set(taken) == {0, 1, 2, 3}
    assert [slots.take(job, uid=2) for job in "abcd"] == [4, 5, 6, 7]
    assert slots.take("a", uid=3) == 0


def test_a_job_that_comes_back_has_its_own_leaf_again() -> None:
    slots = Slots(4)
    slots.take("a", uid=1)
    slots.leave((1, "a"))
    assert slots.take("a", uid=2) == 1, "another user's job of that name"
    assert slots.take("a", uid=1) == 0


def test_jobs_without_a_name_and_beyond_the_leaves_and_storages_have_none() -> None:
    host = Host()
    assert host.register("s-1", "") is None
    assert host.register("s-2", "backup", traffic_class="storage") is None
    for number in range(4):
        assert host.register(f"s-a{number}", f"a{number}", uid=number) == number
    assert host.register("s-9", "late", uid=9) is None
    host.book.forget("s-a0")
    assert host.register("s-9", "late", uid=9) == 0, "its next socket gets what has become free"


def test_one_user_has_half_of_the_leaves_at_most_and_whoever_comes_finds_one() -> None:
    slots = Slots(8)
    taken = [slots.take(f"mine-{number}", uid=1) for number in range(8)]
    assert taken == [0, 1, 2, 3, None, None, None, None]
    assert slots.take("mine-0", uid=1) == 0
    for uid, leaves in ((2, [4, 5, None]), (3, [6, None, None]), (4, [7, None, None])):
        assert [slots.take(f"theirs-{number}", uid=uid) for number in range(3)] == leaves
    slots.leave((1, "mine-0"))
    assert slots.take("late", uid=5) == 0


def test_users_who_come_after_one_of_six_names_have_a_leaf_each() -> None:
    book = JobTable(8)
    for number in range(6):
        book.register(f"s-a{number}", job=f"j{number}", traffic_class="compute", uid=1001)
    for number in range(3):
        book.register(f"s-b{number}", job="train", traffic_class="compute", uid=2000 + number)
    owners = [uid for uid, _ in book.slots()]
    assert owners.count(1001) == 4
    assert {2000, 2001, 2002} <= set(owners)


def test_deliveries_add_up_by_job_and_interface_and_counters_that_go_back_are_no_traffic() -> None:
    host = Host()
    host.register("s-1", "j")
    host.register("s-2", "j")
    host.report("s-1", connection(10**9))  # what it sent before nobody saw
    host.report("s-2", connection(500))
    host.report("s-1", connection(10**9 + SENDS_BYTES), connection(7, peer="192.0.2.1"), now_s=0.1)
    host.report("s-2", connection(600), now_s=0.1)
    (sample,) = host.book.samples("eth0", {0: ClassCounters(sent_bytes=77, backlog_bytes=5)}, now_s=0.1)
    assert (sample.job, sample.delivered_bytes, sample.programs, sample.sends) == ("j", SENDS_BYTES + 100, 2, True)
    assert (sample.leaf_sent_bytes, sample.leaf_backlog_bytes) == (77, 5)
    host.report("s-1", connection(0), now_s=0.2)
    host.report("s-1", connection(None), now_s=0.3)
    (sample,) = host.book.samples("eth0", {}, now_s=0.2 + SENDS_S)
    assert (sample.delivered_bytes, sample.sends, sample.leaf_sent_bytes) == (SENDS_BYTES + 100, False, None)
    assert host.book.samples("eth1", {}, now_s=0.2) == ()


def test_who_names_a_job_without_a_socket_of_it_counts_nowhere() -> None:
    host = Host()
    deliveries = [(connection(5), 10**6)]
    host.book.delivered((1000, "stranger"), deliveries, interface_of=lambda _: "eth0", now_s=0.0)
    assert host.book.samples("eth0", {}, now_s=0.0) == ()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abcdefg"), st.booleans()), max_size=60))
def test_no_leaf_has_two_jobs_and_none_is_lost(steps: list[tuple[int, str, bool]]) -> None:
    book = JobTable(4)
    for session, job, comes in steps:
        if comes:
            book.register(f"s-{session}", job=job, traffic_class="compute", uid=session)
        else:
            book.forget(f"s-{session}")
        taken = list(book.slots().values())
        assert len(set(taken)) == len(taken) <= 4
    for session in range(7):
        book.forget(f"s-{session}")
    assert book.slots() == {}
    assert [book.register(f"s-{n}", job=str(n), traffic_class="compute", uid=n) is None for n in range(5)] == [
        False, False, False, False, True,
    ]  # fmt: skip
