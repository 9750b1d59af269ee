"""What sessions ask for, done: sockets marked, bursts entered, reports taken, processes moved. In the loop's thread."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Iterable, Mapping

from broker.daemon import cgroups
from broker.daemon.authority import Authority, Peer
from broker.daemon.bursts import BurstBook
from broker.daemon.flows import FlowTable, PassedSocket
from broker.daemon.log import Log
from broker.daemon.machine import Reply, error
from broker.daemon.messages import Announce, AnnounceEnd, Enter, Register, Report
from broker.daemon.sessions import Session
from broker.model import Credit
from hive_qos.errors import HiveError
from shaping.model import BULK_NAME, DSCP, LEAF_MINOR

URGENT_PER_S, URGENT_AT_ONCE = 20.0, 5.0
"""Decisions between ticks that one user may bring about: ten steps a second begin and end. Beyond that his bursts are
decided on at the next tick, like everything else."""
USERS_MAX = 256
"""Users whose allowance is remembered, the latest; there are not more sessions than that."""


class SessionHub:
    """The daemon's side of the session protocol.

    Args:
        interface_of: the shaped interface towards an address.
        cgroup_mount: where the cgroups of the classes are; None where this host cannot classify by them.
        mark: `shaping.sockets.mark_socket`.
        authority: the rights in force now.
        reclassify: puts the rules on cgroups in force again, at once.

    `urgent` says that a burst began or ended since the last `answer`: decide now, not at the next tick.
    """

    def __init__(
        self,
        *,
        flows: FlowTable,
        bursts: BurstBook,
        clock: Callable[[], float],
        interface_of: Callable[[str], str | None],
        cgroup_mount: str | None,
        mark: Callable[..., None],
        authority: Callable[[], Authority],
        reclassify: Callable[[], object],
        log: Log,
    ) -> None:
        self._authority, self._reclassify = authority, reclassify
        self.urgent = False
        self._flows, self._bursts, self._clock, self._interface_of = flows, bursts, clock, interface_of
        self._cgroup_mount, self._mark, self._log = cgroup_mount, mark, log
        self._waiting: list[tuple[str, Announce]] = []
        self._urgent_left: dict[int, tuple[float, float]] = {}

    def register(self, session: Session, message: Register, sockets: list[socket.socket]) -> Reply:
        """Mark passed sockets: all of a message, or as many as the kernel takes before it refuses one."""
        leaf = BULK_NAME if message.traffic_class == "compute" and message.role == "bulk" else message.traffic_class
        names = []
        for sock in sockets:
            try:
                self._mark(sock, minor=LEAF_MINOR[leaf], dscp=DSCP[leaf])
                local = _endpoint(sock)
            except ValueError as problem:
                return error("not-inet", str(problem), number=message.number)
            except HiveError as problem:
                self._log.error("socket not marked", session=session.name, error=str(problem))
                return error(problem.code, str(problem), number=message.number)
            except OSError as problem:
                self._log.error("socket not marked", session=session.name, error=str(problem))
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
            self._flows.add(flow)
            names.append(flow.name)
        return Reply({"op": "registered", "id": message.number, "flows": names})

    def announce(self, session: Session, message: Announce) -> None:
        """Enter a burst; `answer` replies.

        Only for the job that the session's hello named: each name starts with the credit of a first burst.
        """
        if message.job != session.job:
            text = f"this session announces for the job of its hello, {session.job!r}, alone"
            session.send(error("bad-field", text, number=message.number).message)
            return
        self._bursts.announce(session.name, message, now_s=self._clock(), interface_of=self._interface_of)
        if message.number is not None:
            self._waiting.append((session.name, message))
        self._decide_soon(session.peer.uid)

    def announce_end(self, session: Session, message: AnnounceEnd) -> None:
        """Take a burst out."""
        if self._bursts.end(session.name, job=message.job, step=message.step):
            self._decide_soon(session.peer.uid)

    def report(self, session: Session, message: Report) -> None:
        """Take measurements of who has sockets here, as of the classes of those: others have nothing to measure."""
        classes = self._flows.classes_of(session.name)
        if classes:
            connections = [
                one if one.traffic_class in classes else dataclasses.replace(one, traffic_class=classes[-1])
                for one in message.connections
            ]
            self._flows.report(session.name, connections, now_s=self._clock())

    def enter(self, session: Session, message: Enter) -> Reply:
        """Move the process that connected into the cgroup of a class, where policy and its own limits let it."""
        peer, traffic_class = session.peer, message.traffic_class
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
            self._log.warning("cgroups", note="somebody removed the cgroups of the classes; they are made again")
            self._reclassify()
        self._log.info("program entered a class", pid=peer.pid, uid=peer.uid, traffic_class=traffic_class)
        return Reply({"op": "entered", "id": message.number, "class": traffic_class})

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
        if peer.uid == 0:
            return None
        try:
            limits = cgroups.limits_of(self._cgroup_mount, pid=peer.pid)
        except OSError as problem:
            return "not-allowed", f"the cgroup of process {peer.pid} cannot be read: {problem.strerror}"
        if limits:
            text = (
                f"the process would leave the limits of its cgroup behind: {', '.join(limits)}; start it outside of "
                f"them, or name its cgroup in [class.{traffic_class}] match"
            )
            return "limited", text
        return None

    def gone(self, session: Session) -> None:
        """Forget a session. Its bursts no longer hold anybody back; its sockets keep their marks until they close."""
        self._flows.forget(session.name)
        if self._bursts.forget(session.name):
            self._decide_soon(session.peer.uid)

    def _decide_soon(self, uid: int) -> None:
        """Decide before the next tick, if this user has not had that too often; many that come together cost one."""
        if self.urgent:
            return
        now_s = self._clock()
        left, as_of_s = self._urgent_left.pop(uid, (URGENT_AT_ONCE, now_s))
        left = min(URGENT_AT_ONCE, left + (now_s - as_of_s) * URGENT_PER_S)
        self.urgent = left >= 1
        self._urgent_left[uid] = (left - 1 if self.urgent else left, now_s)
        while len(self._urgent_left) > USERS_MAX:
            del self._urgent_left[next(iter(self._urgent_left))]

    def answer(self, credits: Iterable[Credit], sessions: Mapping[str, Session]) -> None:
        """Tell who announced what the decision made of it."""
        self.urgent = False
        waiting, self._waiting = self._waiting, []
        granted: dict[tuple[str, int], int] = {}
        for credit in credits:
            key = (credit.job, credit.step)
            granted[key] = granted.get(key, 0) + credit.credited_bytes
        for name, message in waiting:
            session = sessions.get(name)
            if session is not None:
                size_bytes = granted.get((message.job, message.step), 0)
                session.send({"op": "credited", "id": message.number, "bytes": size_bytes})


def _endpoint(sock: socket.socket) -> str:
    address = sock.getsockname()
    return f"[{address[0]}]:{address[1]}" if sock.family == socket.AF_INET6 else f"{address[0]}:{address[1]}"
