"""The loop of `hive-qos pods`: list, apply, watch and apply, and again from the start when a watch cannot go on.

To apply is: pods to rules, rules into the configuration, written whole where it has changed, and a reload. Without an
API server the file stays as it is, and so does every pod's class. What the broker refuses is tried again when pods
change, and at the end of each watch. A pod's problem is said once, in the log and as an event about the pod.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.client import http
from broker.events.log import Log
from broker.pods.api_server import ApiServer, ApiServerError, VersionGone
from broker.pods.merge import room_for_rules, with_rules
from broker.pods.rules import Hierarchy, PodRules, Problem, rules_of
from hive_qos.errors import BrokerError, ConfigurationError, HiveError
from hive_qos.files import write_whole
from hive_qos.text import printable

RETRY_S_MIN, RETRY_S_MAX = 1.0, 30.0
"""Between two tries at an API server that does not answer; doubled each time, with a random part of it."""
ONCE_TRIES = 4
"""At the start: some 10 s, then the broker starts without pods' rules rather than not at all."""
PROBLEMS_REMEMBERED_MAX = 1024
"""So many are said once; the oldest are forgotten."""


@dataclass(frozen=True)
class Files:
    """The configuration that the operator wrote, the one that the broker reads, and where the broker listens."""

    base: Path
    out: Path
    socket: str | None = None


class PodWatcher:
    """The classes of one node's pods.

    Args:
        hierarchy: looked up each time: the kubelet may not have made its cgroups yet.
    """

    def __init__(
        self,
        server: ApiServer,
        files: Files,
        *,
        allowed: Collection[str],
        hierarchy: Callable[[], Hierarchy | None],
        log: Log,
    ) -> None:
        self._server, self._files, self._allowed, self._hierarchy = server, files, allowed, hierarchy
        self._log = log
        self._pods: dict[str, dict[str, Any]] = {}
        self._taken: str | None = None  # the text that the broker has in force
        self._said: dict[Problem, None] = {}
        self._tries = 0

    def once(self) -> None:
        """Write the configuration before the broker starts; without pods' rules where no API server answers.

        Raises:
            HiveError, OSError: the configuration cannot be read or written.
        """
        for last in (False,) * (ONCE_TRIES - 1) + (True,):
            try:
                self._pods, _ = self._server.list_pods()
                break
            except ApiServerError as problem:
                if last:
                    self._log.warning("pods-unknown", error=str(problem))
                else:
                    self._wait(problem)
        self._write(self._merged()[0])

    def run(self) -> None:
        """Go on until the process is ended."""
        while True:
            try:
                self._follow()
            except VersionGone:
                time.sleep(RETRY_S_MIN)
            except ApiServerError as problem:
                self._wait(problem)

    def _follow(self) -> None:
        self._pods, version = self._server.list_pods()
        self.apply()
        while True:
            for kind, pod in self._server.watch_pods(version):
                self._tries = 0
                version = str(pod["metadata"].get("resourceVersion", version))
                if kind != "BOOKMARK":
                    self._take(kind, pod)
                    self.apply()
            self._tries = 0
            self.apply()
            time.sleep(RETRY_S_MIN)  # a server that ends every watch at once is not asked without end

    def _take(self, kind: str, pod: dict[str, Any]) -> None:
        uid = str(pod["metadata"].get("uid", ""))
        if kind == "DELETED":
            self._pods.pop(uid, None)
        elif kind in ("ADDED", "MODIFIED"):
            self._pods[uid] = pod

    def apply(self) -> None:
        """Put the pods' rules in force, where they are not yet."""
        try:
            text, found = self._merged()
            if text != self._taken:
                self._write(text)
                http.post("/v1/reload", socket_path=self._files.socket)
                self._taken = text
                self._log.info("pods-classified", pods=found.pods, rules=sum(map(len, found.rules.values())))
        except (BrokerError, ConfigurationError, OSError) as problem:
            self._log.error("pods-not-applied", error=str(problem))
            return
        for one in found.problems:
            self._say(one)

    def _merged(self) -> tuple[str, PodRules]:
        name = str(self._files.base)
        try:
            base = self._files.base.read_text(encoding="utf-8")
        except (OSError, ValueError) as problem:
            raise ConfigurationError("--base", name, f"cannot be read: {problem}") from problem
        rules_max, taken = room_for_rules(base)
        found = rules_of(
            self._pods.values(),
            hierarchy=self._hierarchy(),
            allowed=self._allowed,
            rules_max=rules_max,
            taken=taken,
        )
        return with_rules(base, found.rules, name=name), found

    def _write(self, text: str) -> None:
        write_whole(self._files.out, text, mode=0o644)

    def _say(self, problem: Problem) -> None:
        if problem in self._said:
            return
        self._said[problem] = None
        if len(self._said) > PROBLEMS_REMEMBERED_MAX:
            self._said.pop(next(iter(self._said)))
        pod = f"{problem.pod.namespace}/{problem.pod.name}"
        self._log.warning("pod-not-classified", pod=printable(pod), reason=problem.text)
        try:
            self._server.report(problem.pod, problem.text)
        except ApiServerError as failed:
            self._log.warning("pod-event-refused", pod=printable(pod), error=str(failed))

    def _wait(self, problem: HiveError) -> None:
        pause_s = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** min(self._tries, 10))
        self._tries += 1
        self._log.warning("api-server-unavailable", error=str(problem), retry_s=round(pause_s, 1))
        time.sleep(pause_s * random.uniform(0.5, 1.0))  # nodes should not come back at the same instant
