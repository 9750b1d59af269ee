"""One broker's life: lock, take the interfaces over, serve, and put everything back, whatever happened in between.

    composition.py      what a daemon is made of
    active_policy.py    the policy in force, and how another one replaces it
    loop.py             what happens ten times a second, and on every announcement

What may block is bounded: netlink answers at once, and clients are never waited for. `stop` and `reload` may be called
from a signal handler or another thread; they only set a flag and wake the loop.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from broker.api.latest_snapshot import LatestSnapshot
from broker.api.requests import PendingCommands, PolicyRequests
from broker.client.mailbox import Wake
from broker.daemon.active_policy import ActivePolicy
from broker.daemon.composition import Environment, compose
from broker.daemon.loop import Loop
from broker.daemon.peer_link import PeerLink
from broker.daemon.peer_opening import PeerOpening, load_channel
from broker.peers.own_certificate import OwnCertificate
from broker.policy.types import PeersPolicy
from broker.process.locks import Lock, NamespaceLock, directory
from broker.process.namespace_claim import NAME
from hive_qos.errors import ShapingError
from shaping.journal import Journal


class Daemon:
    """One broker for one network namespace.

    Args:
        namespace: the name of the claim on the network namespace; another one beside a kernel in memory.
    """

    def __init__(self, given: Environment, *, namespace: str = NAME) -> None:
        self._environment, self._namespace = given, namespace
        self._first = given.configurations.first
        self._commands, self._wake = PendingCommands(), Wake()
        self._requests = PolicyRequests(self._wake.set)
        self._latest_snapshot = LatestSnapshot(self._wake.set, clock=given.clock)

    # --- from outside --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the loop soon. Safe in a signal handler."""
        self._commands.stop = True
        self._wake.set()

    def reload(self) -> None:
        """Read the configuration again soon. Safe in a signal handler."""
        self._commands.reload = True
        self._wake.set()

    def run(self) -> None:
        """Take the interfaces over, serve until `stop`, and put everything back.

        Raises:
            HiveError: something that is needed at start is not there or not allowed; nothing was left behind.
        """
        daemon = self._first.daemon
        try:
            with NamespaceLock(self._namespace) as namespace:
                for path in {os.path.dirname(daemon.api_socket), os.path.dirname(daemon.session_socket)}:
                    directory(path, key="runtime-dir", mode=0o755)
                directory(daemon.state_dir, key="daemon.state_dir", mode=0o700)
                with Lock(daemon.session_socket + ".lock"), Lock(os.path.join(daemon.state_dir, "broker.lock")):
                    self._run_locked(namespace.fileno())
        finally:
            self._environment.kernel.close()
            self._wake.close()

    # --- start and stop ------------------------------------------------------------------------------------------

    def _run_locked(self, namespace: int) -> None:
        given, journal = self._environment, Journal(Path(self._first.daemon.state_dir))
        self._components = parts = compose(given, journal)
        self._active_policy = ActivePolicy(
            given,
            parts,
            commands=self._commands,
            requests=self._requests,
            latest_snapshot=self._latest_snapshot,
        )
        for note in self._active_policy.authority.notes:
            given.log.warning("group-missing", note=note)
        problems: tuple[str, ...] = ()
        served = False
        try:
            if not self._commands.stop:
                self._begin(journal, lock=namespace)
                self._serve()
            served = True
        finally:
            given.notifier.stopping()
            problems = parts.put_back()
            if given.watchdog is not None:
                given.watchdog.end(restored=served and not problems)
            if given.finder is not None:
                given.finder.close()
            parts.close()
            self._leave_peers(parts.peer_link)
        given.log.info("daemon-stopped", ticks=parts.deciding.ticks)
        if given.telemetry is not None:
            given.telemetry.close()
        if problems:
            raise ShapingError(f"not everything was put back: {'; '.join(problems)}")

    def _begin(self, journal: Journal, *, lock: int) -> None:
        given, active_policy = self._environment, self._active_policy
        if given.finder is not None:
            given.finder.start()
        if given.watchdog is not None:
            given.watchdog.start(Path(journal.directory), changes=lambda: journal.changes, lock=lock)
        active_policy.begin()
        peers = active_policy.policy.peers
        if peers is not None:
            self._components.beat(busy=True)
            load_channel(peers.engine)
            self._meet_peers(peers)
        given.configurations.started()

    def _serve(self) -> None:
        Loop(
            self._environment,
            self._components,
            self._active_policy,
            commands=self._commands,
            wake=self._wake,
            requests=self._requests,
            latest_snapshot=self._latest_snapshot,
        ).serve()

    def _meet_peers(self, peers: PeersPolicy) -> None:
        given = self._environment
        certificate = OwnCertificate(peers, log=given.log)
        opening = PeerOpening(
            peers,
            certificate=certificate,
            patience=functools.partial(self._components.beat, busy=True),
            wake=self._wake.set,
            log=given.log,
            clock=given.clock,
            mark=self._components.socket_marks.mark_control,
        )
        self._components.peer_link.meet(opening, certificate, now_s=given.clock())

    def _leave_peers(self, peer_link: PeerLink) -> None:
        try:
            peer_link.close()
        except Exception as problem:  # noqa: BLE001 - what was asked of others ends by itself
            self._environment.log.error("peers-unavailable", error=str(problem))
