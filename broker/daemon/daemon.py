"""One broker's life: lock, take the interfaces over, serve, and put everything back, whatever happened in between.

    parts.py       what a daemon is made of
    in_force.py    the policy that holds, and how another one comes to hold
    loop.py        what happens ten times a second, and on every announcement

Everything that may block is bounded: netlink answers at once, clients are never waited for. `stop`, `reload` may be
called from a signal handler or another thread; they only set a flag and wake the loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.api.latest_snapshot import LatestSnapshot
from broker.api.requests import PendingCommands, PolicyRequests
from broker.api.snapshot import Snapshot
from broker.client.mailbox import Wake
from broker.daemon.active_policy import ActivePolicy
from broker.daemon.composition import Components, Environment, compose, marking_control
from broker.daemon.config_store import ConfigStore
from broker.daemon.loop import Loop
from broker.daemon.peer_link import PeerLink
from broker.daemon.peer_opening import PeerOpening, load_channel
from broker.daemon.reload import Reloader
from broker.peers.own_certificate import OwnCertificate
from broker.policy.types import PeersPolicy
from broker.process.locks import Lock, NamespaceLock, directory
from broker.process.log import Log
from broker.process.namespace_claim import NAME
from broker.process.notify import Notifier
from broker.process.rt_budget import RtBudget
from broker.process.socket_finder_client import SocketFinder
from broker.process.watchdog_client import WatchdogClient
from hive_qos.errors import ShapingError
from shaping.classify.socket_priority import mark_socket
from shaping.journal import Journal
from shaping.kernel_api import Classifier, Kernel


@dataclass(frozen=True)
class Options:
    """How this daemon was started.

    Args:
        configurations: what to start with, and what to do at each reload.
        take_over, rebuild: as `Plant`.
        earlier_sockets: whether sockets that were there before their rule are looked for, and get its class.
    """

    configurations: ConfigStore
    take_over: bool = False
    rebuild: bool = False
    earlier_sockets: bool = False


class Daemon:
    """One broker for one network namespace.

    Args:
        kernel: the kernel side; the daemon closes it.
        classifier: enforces rules on cgroups and users; None where this host cannot.
        clock: monotonic seconds.
        mark: how a passed socket gets its class; another one where SO_PRIORITY is not allowed.
        namespace: the name of the claim on the network namespace; another one beside a kernel in memory.
        watchdog: keeps a watchdog that opens the ceilings when we die; None beside a kernel in memory.
        rt_budget: lets the loop and the channel go before other programs; None leaves them among those.
        finder: looks into other processes, which this one may not any more then; None leaves it to this one.
    """

    def __init__(
        self,
        options: Options,
        *,
        kernel: Kernel,
        classifier: Classifier | None,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        notifier: Notifier | None = None,
        mark: Callable[..., None] = mark_socket,
        namespace: str = NAME,
        watchdog: WatchdogClient | None = None,
        rt_budget: RtBudget | None = None,
        finder: SocketFinder | None = None,
    ) -> None:
        self._options, self._notifier, self._namespace = options, notifier or Notifier({}), namespace
        self._environment = Environment(
            kernel=kernel,
            classifier=classifier,
            mark=mark,
            watchdog=watchdog,
            rt_budget=rt_budget,
            finder=finder,
            log=log,
            clock=clock,
        )
        self._first = options.configurations.first
        self._commands, self._wake = PendingCommands(), Wake()
        self._latest_snapshot = LatestSnapshot(self._wake.set, clock=clock)

    # --- from outside --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the loop soon. Safe in a signal handler."""
        self._commands.stop = True
        self._wake.set()

    def reload(self) -> None:
        """Read the configuration again soon. Safe in a signal handler."""
        self._commands.reload = True
        self._wake.set()

    @property
    def snapshot(self) -> Snapshot | None:
        """The last tick, None before the first."""
        return self._latest_snapshot.last

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
        self._components = parts = self._compose(journal)
        in_force = ActivePolicy(
            self._options.configurations, parts, patience=self._ask_patience, log=given.log, clock=given.clock
        )
        for note in in_force.authority.notes:
            given.log.warning("group-missing", note=note)
        problems: tuple[str, ...] = ()
        served = False
        try:
            if not self._commands.stop:
                self._begin(journal, in_force, lock=namespace)
                self._loop(in_force).serve()
            served = True
        finally:
            self._notifier.stopping()
            problems = parts.put_back()
            if given.watchdog is not None:
                given.watchdog.end(restored=served and not problems)
            if given.finder is not None:
                given.finder.close()
            parts.close()
            self._leave_neighbours(parts.peer_link)
        given.log.info("daemon-stopped", ticks=parts.deciding.ticks)
        if problems:
            raise ShapingError(f"not everything was put back: {'; '.join(problems)}")

    def _compose(self, journal: Journal) -> Components:
        return compose(
            self._environment,
            self._first,
            journal=journal,
            configurations=self._options.configurations,
            take_over=self._options.take_over,
            rebuild=self._options.rebuild,
            earlier_sockets=self._options.earlier_sockets,
        )

    def _begin(self, journal: Journal, in_force: ActivePolicy, *, lock: int) -> None:
        if self._environment.finder is not None:
            self._environment.finder.start()
        if self._environment.watchdog is not None:
            self._environment.watchdog.start(journal, lock=lock)
        in_force.begin()
        if in_force.policy.peers is not None:
            self._ask_patience()
            load_channel(in_force.policy.peers.engine)
        if self._environment.rt_budget is not None:
            self._environment.rt_budget.begin()
        if in_force.policy.peers is not None:
            self._meet_neighbours(in_force.policy.peers)
        self._options.configurations.started()

    def _loop(self, in_force: ActivePolicy) -> Loop:
        control = PolicyRequests(self._wake.set)
        self._reloads = Reloader(
            self._options.configurations,
            wishes=self._commands,
            control=control,
            force=in_force.put,
            done=self._latest_snapshot.hurry,
            shaping=self._shaping,
            patience=self._ask_patience,
            notifier=self._notifier,
            log=self._environment.log,
        )
        return Loop(
            self._environment,
            self._components,
            in_force,
            wishes=self._commands,
            wake=self._wake,
            control=control,
            showing=self._latest_snapshot,
            reloads=self._reloads,
            notifier=self._notifier,
            beat=self._beat,
            shaping=self._shaping,
        )

    def _meet_neighbours(self, peers: PeersPolicy) -> None:
        given = self._environment
        certificate = OwnCertificate(peers, log=given.log)
        opening = PeerOpening(
            peers,
            certificate=certificate,
            patience=self._ask_patience,
            wake=self._wake.set,
            log=given.log,
            clock=given.clock,
            mark=marking_control(given.mark, self._components.egress_trees),
        )
        self._components.peer_link.meet(opening, certificate, now_s=given.clock())

    def _leave_neighbours(self, peer_link: PeerLink) -> None:
        try:
            peer_link.close()
        except Exception as problem:  # noqa: BLE001 - what was asked of others ends by itself
            self._environment.log.error("peers-unavailable", error=str(problem))

    # --- small parts ---------------------------------------------------------------------------------------------

    def _beat(self, *, busy: bool = False) -> None:
        if self._environment.watchdog is not None and self._environment.watchdog.beat(busy=busy):
            self._components.egress_trees.reopened()
            self._components.ingress_trees.reopened()

    def _ask_patience(self) -> None:
        self._beat(busy=True)

    def _shaping(self) -> str:
        return f"shaping {', '.join(sorted(self._components.egress_trees.names))}"
