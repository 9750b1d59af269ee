"""What sessions ask for, done: sockets marked, bursts and needs entered, reports taken, processes moved. In the loop's
thread."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import msgspec

from broker.enforce import cgroups
from broker.events.log import Log
from broker.measure.flow_table import FlowTable, PassedSocket
from broker.model.token_bucket import TokenBuckets
from broker.process.rights import Authority, Peer
from broker.sessions.burst_table import BurstTable
from broker.sessions.job_table import JobTable
from broker.sessions.messages import (
    AllowanceReply,
    Announce,
    AnnounceEnd,
    Declare,
    Enter,
    Entered,
    Noted,
    Program,
    Register,
    Registered,
    Reply,
    Report,
    Unregister,
    error,
)
from broker.sessions.need_table import NeedTable
from broker.sessions.program_table import ProgramTable
from broker.sessions.session import Session
from hive_qos.errors import HiveError

URGENT_PER_S, URGENT_AT_ONCE = 20.0, 5.0
"""Decisions between ticks that one user may bring about: ten steps a second begin and end. Beyond that his bursts are
decided on at the next tick, like everything else."""
DESTINATIONS_PER_S, DESTINATIONS_AT_ONCE = 2000.0, 4000.0
"""Destinations of one user's bursts and needs that are looked up: 16 ranks to 64 peers twice a second. Each may cost
the kernel 40 microseconds."""
MOVES_PER_S, MOVES_AT_ONCE = 10.0, 16.0
"""Processes of one user that are moved into a class: each takes the loop up to 10 ms, for the kernel waits until all
processors have seen it. A flood of them would open the ceilings."""
USERS_MAX = 256
"""Users whose allowances are remembered, the latest; there are not more sessions than that."""

_FOREIGN = (
    "a socket of another network namespace: its class ends at a veth, where the broker's rules on addresses, ports and "
    "DSCP count, and they alone classify what arrives at it"
)


class SessionService:
    """The daemon's side of the session protocol.

    Args:
        interface_of: the shaped interface towards an address.
        cgroup_mount: where the cgroups of the classes are; None where this host cannot classify by them.
        mark: puts a socket into the leaf of its class, role and slot; it raises where the kernel refuses.
        is_foreign: whether a socket is of another network namespace.
        jobs: which jobs there are, and whose leaf is whose.
        authority: the rights in force now.
        reclassify: puts the rules on cgroups in force again, at once.
        settle: decides and applies, at once.
        allowance: what class storage is promised and may use now, over all interfaces.

    `urgent`: a burst began or ended, so decide now, not at the next tick. Who has decided takes it back.
    """

    def __init__(
        self,
        *,
        flows: FlowTable,
        bursts: BurstTable,
        jobs: JobTable,
        needs: NeedTable,
        programs: ProgramTable,
        allowance: Callable[[], tuple[int, int]],
        clock: Callable[[], float],
        interface_of: Callable[[str], str | None],
        cgroup_mount: str | None,
        mark: Callable[..., None],
        is_foreign: Callable[[socket.socket], bool],
        authority: Callable[[], Authority],
        reclassify: Callable[[], object],
        settle: Callable[[], None],
        log: Log,
    ) -> None:
        self._authority, self._reclassify, self._is_foreign = authority, reclassify, is_foreign
        self._settle = settle
        self._programs, self._allowance = programs, allowance
        self.urgent = False
        self._jobs = jobs
        self._flows, self._bursts, self._needs, self._clock = flows, bursts, needs, clock
        self._interface_of = interface_of
        self._cgroup_mount, self._mark, self._log = cgroup_mount, mark, log
        self._soon = TokenBuckets[int](per_s=URGENT_PER_S, at_once=URGENT_AT_ONCE, remembered=USERS_MAX)
        self._moves = TokenBuckets[int](per_s=MOVES_PER_S, at_once=MOVES_AT_ONCE, remembered=USERS_MAX)
        self._destinations = TokenBuckets[int](
            per_s=DESTINATIONS_PER_S, at_once=DESTINATIONS_AT_ONCE, remembered=USERS_MAX
        )

    def register(self, session: Session, message: Register, sockets: list[socket.socket]) -> Reply:
        """Mark passed sockets: all of a message, or as many as the kernel takes before it refuses one."""
        slot = self._leaf_of(session, message.traffic_class)
        names = []
        foreign = False
        for sock in sockets:
            try:
                self._mark(sock, traffic_class=message.traffic_class, role=message.role, slot=slot)
                local = _endpoint(sock)
                foreign = foreign or self._is_foreign(sock)
            except ValueError as problem:
                return error("not-inet", str(problem), number=message.number)
            except HiveError as problem:
                self._log.error("socket-mark-failed", session=session.name, uid=session.peer.uid, error=str(problem))
                return error(problem.code, str(problem), number=message.number)
            except OSError as problem:
                self._log.error("socket-mark-failed", session=session.name, uid=session.peer.uid, error=str(problem))
                return error("kernel-rejected", str(problem), number=message.number)
            flow = PassedSocket(
                name=self._flows.number(),
                session=session.name,
                job=session.job,
                traffic_class=message.traffic_class,
                role=message.role,
                protocol="tcp" if sock.type == socket.SOCK_STREAM else "udp",
                local=local,
                pid=session.peer.pid,
                uid=session.peer.uid,
                inode=os.fstat(sock.fileno()).st_ino,
            )
            self._flows.add(flow, registration=message.number)
            names.append(flow.name)
        return Registered(number=message.number, flows=names, note=_FOREIGN if foreign else "")

    def unregister(self, session: Session, message: Unregister) -> None:
        """Forget the sockets of a registration. Those that are open keep their class."""
        self._flows.remove(session.name, registration=message.number)

    def _leaf_of(self, session: Session, traffic_class: str) -> int | None:
        """The slot of the leaf for a session's socket. A new one gets its rate before its first packet: HTB books a
        packet as time at the rate of the moment, and at a spare leaf's rate that is ten seconds."""
        known, peer = self._jobs.slots(), session.peer
        slot = self._jobs.register(session.name, job=session.job, traffic_class=traffic_class, uid=peer.uid)
        if slot is not None and (peer.uid, session.job) not in known and self._soon.take(peer.uid, now_s=self._clock()):
            self._settle()
        return slot

    def announce(self, session: Session, message: Announce) -> None:
        """Enter a burst; only a refusal is answered.

        Only for the job that the session's hello named: each name starts with the credit of a first burst.
        """
        if message.job != session.job:
            text = f"this session announces for the job of its hello, {session.job!r}, alone"
            session.send(error("bad-field", text, number=message.number))
            return
        refusal = self._too_many(session, len(message.bytes_by_destination), number=message.number)
        if refusal is not None:
            session.send(refusal)
            return
        uid = session.peer.uid
        self._bursts.announce(session.name, message, uid=uid, now_s=self._clock(), interface_of=self._interface_of)
        self._decide_soon(uid)

    def announce_end(self, session: Session, message: AnnounceEnd) -> None:
        """Take a burst out."""
        if self._bursts.end(session.name, job=message.job, step=message.step):
            self._decide_soon(session.peer.uid)

    def need(self, session: Session, message: Declare) -> Reply:
        """Accept a storage program's declaration, from clients that may put programs into `storage`."""
        uid = session.peer.uid
        if not self._authority().may_enter(session.peer, "storage"):
            text = f"user {uid} may not use class storage, so it has nothing to declare for it"
            return error("not-allowed", text, number=message.number)
        refusal = self._too_many(session, len(message.bytes_by_destination), number=message.number)
        if refusal is not None:
            return refusal
        self._needs.declare(session.name, message, uid=uid, now_s=self._clock(), interface_of=self._interface_of)
        if message.replicas_at_risk:
            self._decide_soon(uid)
        return Noted(number=message.number)

    def program(self, session: Session, message: Program) -> Reply:
        """Take in how a storage program does, from clients that may declare its needs, and say what it may use."""
        if not self._authority().may_enter(session.peer, "storage"):
            text = f"user {session.peer.uid} may not use class storage, so it speaks for no program of it"
            return error("not-allowed", text, number=message.number)
        self._programs.tell(session.name, message, now_s=self._clock())
        guarantee, ceiling = self._allowance()
        return AllowanceReply(number=message.number, guarantee_bits_per_s=guarantee, ceiling_bits_per_s=ceiling)

    def report(self, session: Session, message: Report) -> None:
        """Take measurements of who has sockets here, as of the classes of those: others have nothing to measure."""
        classes = self._flows.classes_of(session.name)
        if classes:
            connections = [
                one if one.traffic_class in classes else msgspec.structs.replace(one, traffic_class=classes[-1])
                for one in message.connections
            ]
            now_s = self._clock()
            deliveries = self._flows.report(session.name, connections, now_s=now_s)
            job = self._flows.job_of(session.name)
            self._jobs.delivered(job, deliveries, interface_of=self._interface_of, now_s=now_s)

    def enter(self, session: Session, message: Enter) -> Reply:
        """Move the process that connected into the cgroup of a class, where policy lets it and no limit is left behind:
        not root's either, which may be a container's. Who may leave one can move himself (`hive-qos run`)."""
        peer, traffic_class = session.peer, message.traffic_class
        if not self._moves.take(peer.uid, now_s=self._clock()):
            text = f"at most {MOVES_PER_S:.0f} processes a second of user {peer.uid} may enter a class; try again"
            return error("too-many", text, number=message.number)
        refusal = self._may_not_enter(peer, traffic_class)
        if refusal is not None:
            return error(*refusal, number=message.number)
        assert self._cgroup_mount is not None
        if session.has_ended():  # looked at last: its number may be somebody else's from then on
            return error("no-process", "the process that connected has ended", number=message.number)
        try:
            made = cgroups.enter(self._cgroup_mount, traffic_class=traffic_class, pid=peer.pid)
        except HiveError as problem:
            return error(problem.code, str(problem), number=message.number)
        if made:
            self._log.warning("cgroups-rebuilt", uid=peer.uid)
            self._reclassify()
        self._log.info("process-classified", pid=peer.pid, uid=peer.uid, traffic_class=traffic_class)
        return Entered(number=message.number, traffic_class=traffic_class)

    def _may_not_enter(self, peer: Peer, traffic_class: str) -> tuple[str, str] | None:
        if self._cgroup_mount is None:
            return (
                "not-supported",
                "this host cannot classify by cgroup (no cgroup v2, or no BPF); see `hive-qos doctor`",
            )
        if not self._authority().may_enter(peer, traffic_class):
            text = (
                f"whole programs of user {peer.uid} may not enter {traffic_class}: that needs "
                f"`match = [{{ uid = {peer.uid} }}]` in [class.{traffic_class}], root or the admin group; "
                "or pass single sockets"
            )
            return "not-allowed", text
        try:
            held = cgroups.left_behind(self._cgroup_mount, pid=peer.pid, traffic_class=traffic_class)
        except (HiveError, OSError) as problem:
            return "not-allowed", f"what holds process {peer.pid} in its cgroup cannot be read: {problem}"
        if held:
            text = (
                f"the process would leave behind what holds it in its cgroup: {', '.join(held)}. Start it outside of "
                f"that, or name its cgroup in [class.{traffic_class}] match, or pass its sockets; root of this host "
                "moves itself"
            )
            return "limited", text
        return None

    def gone(self, session: Session) -> None:
        """Forget a session. Its bursts no longer hold anybody back; its sockets keep their class until they close."""
        self._flows.forget(session.name)
        self._jobs.forget(session.name)
        self._needs.forget(session.name)
        self._programs.forget(session.name)
        if self._bursts.forget(session.name):
            self._decide_soon(session.peer.uid)

    def _decide_soon(self, uid: int) -> None:
        """Decide before the next tick, if this user has not had that too often; many that come together cost one."""
        if not self.urgent:
            self.urgent = self._soon.take(uid, now_s=self._clock())

    def _too_many(self, session: Session, count: int, *, number: int | None) -> Reply | None:
        """The refusal of a message with more destinations than its user may still name."""
        if self._destinations.take(session.peer.uid, count=count, now_s=self._clock()):
            return None
        text = f"at most {DESTINATIONS_PER_S:.0f} destinations a second in all that user {session.peer.uid} declares"
        return error("too-many", text, number=number)


def _endpoint(sock: socket.socket) -> str:
    address = sock.getsockname()
    return f"[{address[0]}]:{address[1]}" if sock.family == socket.AF_INET6 else f"{address[0]}:{address[1]}"
