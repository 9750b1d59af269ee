"""The loop: sleep until something is due, decide, apply, record, show. One thread, until it is stopped.

selector --packets--> sessions --service--> flows, bursts
tick: counters, flows, bursts -> decide (pure) -> apply -> recorder, snapshot -> HTTP threads
"""

from __future__ import annotations

import selectors
import socket

from broker.api.latest_snapshot import LatestSnapshot
from broker.api.requests import PendingCommands, PolicyRequests
from broker.api.server import HttpApi
from broker.client.mailbox import Wake
from broker.daemon.active_policy import ActivePolicy
from broker.daemon.composition import Components, Environment
from broker.daemon.decision_events import DecisionEvents
from broker.daemon.tick import TickResult
from broker.daemon.tick_scheduler import IDLE_TICK_S, Due, Events, TickScheduler
from broker.law.decision import is_active
from broker.law.sharing.promises import LENDER
from broker.policy.types import Policy
from broker.process.watchdog import BEATS_WITHIN_S
from broker.sessions.server import SessionServer
from broker.sessions.service import SessionService


class Loop:
    """Serves sessions and readers, and keeps the kernel to what is decided.

    Args:
        commands: what signals ask for. wake: wakes the loop for them, and for requests.
        requests: what HTTP asks of the policy.
    """

    def __init__(
        self,
        given: Environment,
        parts: Components,
        active_policy: ActivePolicy,
        *,
        commands: PendingCommands,
        wake: Wake,
        requests: PolicyRequests,
        latest_snapshot: LatestSnapshot,
    ) -> None:
        self._environment, self._components, self._active_policy = given, parts, active_policy
        self._commands, self._wake, self._requests, self._latest_snapshot = commands, wake, requests, latest_snapshot
        self._clock, self._notifier = given.clock, given.notifier
        self._links_changed = False
        self._made: TickResult | None = None
        self._decisions = DecisionEvents(given.log)
        self._tick_s_max = 0.0

    def serve(self) -> None:
        """Open the sockets, report that we are ready, and loop until stopped."""
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            selector.register(self._wake.reader, selectors.EVENT_READ, self._wake.clear)
            selector.register(self._components.link_events, selectors.EVENT_READ, self._note_links)
            self._open_sessions()
            try:
                self._components.beat()
                self._scheduler = TickScheduler(
                    now_s=self._clock(), interval_s=self._active_policy.policy.daemon.tick_s
                )
                self._tick(between=False)
                self._show(self._clock())
                self._serve_readers()
            finally:
                self._sessions.close()

    def _open_sessions(self) -> None:
        given, parts, policy = self._environment, self._components, self._active_policy.policy
        self._service = SessionService(
            flows=parts.flows,
            bursts=parts.bursts,
            jobs=parts.jobs,
            needs=parts.needs,
            programs=parts.programs,
            allowance=self._allowance,
            clock=self._clock,
            interface_of=parts.interface_of,
            cgroup_mount=parts.own_cgroups.mount,
            mark=parts.socket_marks.mark_passed,
            is_foreign=parts.socket_marks.is_foreign,
            authority=lambda: self._active_policy.authority,
            reclassify=lambda: parts.egress_trees.classify(at_once=True),
            settle=lambda: self._tick(between=True),
            log=given.log,
        )
        self._sessions = SessionServer(
            path=policy.daemon.session_socket,
            selector=self._selector,
            authority=lambda: self._active_policy.authority,
            host=socket.gethostname(),
            service=self._service,
            closing=parts.closing,
            log=given.log,
            clock=self._clock,
        )

    def _allowance(self) -> tuple[int, int]:
        """What storage is promised and may use now, of all interfaces together; in a pause nobody is told a rate."""
        made = None if self._components.pause.active else self._made
        links = () if made is None else made.decision.allocation.interfaces
        storage = [one for link in links for one in link.classes if one.name == LENDER]
        return sum(one.guarantee_bits_per_s for one in storage), sum(one.ceiling_bits_per_s for one in storage)

    def _serve_readers(self) -> None:
        daemon = self._active_policy.policy.daemon
        api = HttpApi(
            path=daemon.api_socket,
            snapshot=self._latest_snapshot.ask,
            authority=lambda: self._active_policy.authority,
            ask=self._requests.ask,
            usage=self._components.accounts.rows,
            recent=self._environment.recent,
            closing=self._components.closing,
        )
        try:
            self._keep_page()
            self._start_telemetry()
            self._notifier.ready(self._components.summary())
            names = ",".join(sorted(self._components.egress_trees.names))
            self._environment.log.info("daemon-ready", interfaces=names, socket=daemon.session_socket)
            self._go_round()
        finally:
            api.close()

    def _go_round(self) -> None:
        rate_watch, watchdog_s = self._components.rate_watch, self._clock()
        while not self._commands.stop:
            self._components.beat()
            wake_s = min(self._scheduler.due_s(self._events()), rate_watch.next_s, self._clock() + BEATS_WITHIN_S)
            for key, _ in self._selector.select(max(0.0, wake_s - self._clock())):
                key.data()  # one whose session an earlier one of this round has ended does nothing
            self._active_policy.look()
            self._keep_page()
            rate_watch.look()
            now_s = self._clock()
            events = self._events()
            due = self._scheduler.due(events, now_s=now_s)
            if due is not None:
                self._decide(due, now_s, events)
            self._show(now_s)
            if self._notifier.watchdog_s is not None and now_s - watchdog_s >= self._notifier.watchdog_s:
                watchdog_s = now_s
                self._notifier.watchdog()

    def _start_telemetry(self) -> None:
        """Its thread begins here, where this one has given up the rights of the finder."""
        log = self._environment.log

        def tell(well: bool) -> None:
            if well:
                log.info("telemetry-recovered")
            else:
                log.warning(
                    "telemetry-failed", note="see OTEL_EXPORTER_OTLP_ENDPOINT; tried again with the next records"
                )

        if self._environment.telemetry is not None:
            try:
                self._environment.telemetry.start(tell=tell)
            except Exception as problem:  # noqa: BLE001 - whatever the SDK makes of its variables, the host is shaped
                log.warning("telemetry-failed", note=f"none is sent: {problem}; see the variables OTEL_*, then restart")

    def _keep_page(self) -> None:
        self._components.page.keep(self._active_policy.policy.page, latest=self._latest_snapshot)

    def _events(self) -> Events:
        return Events(
            announced=self._service.urgent or self._components.rate_watch.crossed,
            asked=self._components.peer_link.urgent,
            links=self._links_changed,
            again_s=self._components.deciding.again_s,
        )

    def _decide(self, due: Due, now_s: float, events: Events) -> None:
        parts, policy = self._components, self._active_policy.policy
        if due is Due.LINKS:
            self._links_changed = False
            parts.routes.forget()
            parts.shaped_interfaces.follow(policy)
        elif due is Due.TICK:
            self._sessions.housekeeping()
            parts.routes.follow(now_s=now_s)
            parts.peer_link.look(now_s=now_s)
            parts.probes.go(policy.probe, interface_of=parts.interface_of, now_s=now_s)
        self._tick(between=due is Due.BETWEEN, asked=events.asked and not events.announced)
        self._scheduler.decided(due, began_s=now_s, ended_s=self._clock(), interval_s=self._interval_s(policy))

    def _interval_s(self, policy: Policy) -> float:
        """From a tick to the next: longer while nothing is active."""
        active = self._made is None or is_active(self._made.decision, self._made.measurements)
        tick_s = policy.daemon.tick_s
        return tick_s if active else max(tick_s, IDLE_TICK_S)

    def _note_links(self) -> None:
        changes = self._components.link_events.changes()
        self._components.ingress_trees.note(changes)
        self._links_changed |= self._components.shaped_interfaces.concerned(changes, self._active_policy.policy)

    def _tick(self, *, between: bool, asked: bool = False) -> None:
        parts, policy = self._components, self._active_policy.policy
        started_s = self._clock()
        made = parts.deciding.decide(policy, between=between, asked=asked)
        self._service.urgent = False
        if parts.recorder is not None:
            parts.recorder.write(
                now_s=made.now_s,
                before=made.before,
                measurements=made.measurements,
                decision=made.decision,
                policy=policy,
            )
        self._tick_s_max = max(self._tick_s_max * 0.999, self._clock() - started_s)
        if not between:
            parts.publishing.look(policy, now_s=made.now_s)
        self._made = made
        self._latest_snapshot.outdate()

    def _show(self, now_s: float) -> None:
        """Put together what readers see, where that is due."""
        made = self._made
        if made is None or not self._latest_snapshot.due(now_s=now_s):
            return
        snapshot = self._components.publishing.snapshot(
            made.decision,
            measurements=made.measurements,
            policy=self._active_policy.policy,
            sessions=self._sessions.sessions,
            now_s=made.now_s,
            ticks=self._components.deciding.ticks,
            late_ticks=self._scheduler.late_ticks,
            tick_s_max=self._tick_s_max,
        )
        self._components.accounts.book(snapshot)
        self._components.page.record(snapshot)
        self._decisions.follow(snapshot, now_s=now_s)
        self._latest_snapshot.show(snapshot, now_s=now_s)
