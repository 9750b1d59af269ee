"""`hive-qos pods` as a process between an API server over HTTPS and a daemon: rules follow the pods."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_support import CONFIGURATION, Running
from kubernetes_api import TOKEN, KubernetesApi, pod
from patience import LIMIT_S, wait_until

from broker.policy.toml import load
from broker.policy.types import MatchRule

COMMAND = [str(Path(sys.executable).with_name("hive-qos")), "pods"]


class Pods:
    """The process, its API server, and the daemon whose configuration it writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.api = folder, KubernetesApi(folder)
        self.running = Running(folder)
        self.running.write()
        self.base, self.out = folder / "base.toml", folder / "broker.toml"
        self.base.write_text(CONFIGURATION.format(folder=folder, interface="lo"))
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *more: str) -> list[str]:
        files = ["--base", str(self.base), "--out", str(self.out), "--account", str(self.api.account)]
        return [*COMMAND, *files, "--socket", self.running.api, "--cgroup-root", "hq-test", *more]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.api.environment}

    def start(self) -> None:
        self.running.start()
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(self.command(), env=self.environment, stderr=log)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def addresses(self) -> list[str]:
        """What the broker's file says, which was read whole."""
        rules = [rule for entry in load(self.out.read_text()).classes for rule in entry.match]
        return [str(rule.address).partition("/")[0] for rule in rules if rule.address is not None]

    def in_force(self, *addresses: str) -> None:
        """Wait for these rules, and that the daemon took the file that has them."""
        wait_until(lambda: self.addresses() == list(addresses), what=lambda: (self.addresses(), self.log))
        wait_until(lambda: f"rules={len(addresses)}" in (self.log.splitlines() or [""])[-1], what=lambda: self.log)

    def close(self) -> None:
        try:
            if self.process is not None:
                self.process.send_signal(signal.SIGTERM)
                assert self.process.wait(LIMIT_S) == 0, self.log
        finally:
            self.api.close()
            self.running.stop()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    found = Pods(tmp_path)
    yield found
    found.close()


def routed(name: str, address: str, traffic_class: str = "storage") -> dict[str, object]:
    return pod(name, uid=name, host_network=False, addresses=(address,), traffic_class=traffic_class)


def test_rules_follow_pods_that_come_change_and_go(pods: Pods) -> None:
    pods.api.put(routed("a", "10.1.0.1"))
    pods.start()
    pods.in_force("10.1.0.1")
    pods.api.put(routed("b", "10.1.0.2"))
    pods.in_force("10.1.0.1", "10.1.0.2")
    pods.api.put(routed("a", "10.1.0.3"))
    pods.in_force("10.1.0.3", "10.1.0.2")
    pods.api.delete("a")
    pods.in_force("10.1.0.2")
    pods.api.delete("b")
    pods.in_force()
    assert pods.api.lists == 1, "the watch went on"


def test_a_version_that_is_gone_is_answered_by_another_list(pods: Pods) -> None:
    pods.api.put(routed("a", "10.1.0.1"))
    pods.start()
    pods.in_force("10.1.0.1")
    wait_until(lambda: pods.api.watches == 1)
    pods.api.pods.clear()  # while nobody was told
    pods.api.forget()
    pods.in_force()
    assert pods.api.lists == 2


def test_a_connection_that_breaks_is_made_again_and_what_was_missed_is_taken(pods: Pods) -> None:
    pods.api.put(routed("a", "10.1.0.1"))
    pods.start()
    pods.in_force("10.1.0.1")
    wait_until(lambda: pods.api.watches == 1)
    pods.api.refuse = 503
    pods.api.hang_up()
    wait_until(lambda: "api-server-unavailable" in pods.log, what=lambda: pods.log)
    pods.api.put(routed("b", "10.1.0.2"))
    assert pods.addresses() == ["10.1.0.1"], "classes stay while there is no API server"
    pods.api.refuse = None
    pods.in_force("10.1.0.1", "10.1.0.2")


def test_a_token_that_the_kubelet_renewed_is_read_again(pods: Pods) -> None:
    (pods.api.account / "token").write_text("of yesterday")
    pods.api.put(routed("a", "10.1.0.1"))
    pods.start()
    wait_until(lambda: "401 Unauthorized" in pods.log, what=lambda: pods.log)
    (pods.api.account / "token").write_text(TOKEN)
    pods.in_force("10.1.0.1")


def test_a_class_that_a_pod_may_not_have_is_an_event_about_it_once_and_others_have_theirs(pods: Pods) -> None:
    pods.api.put(routed("bad", "10.1.0.9", "control"))
    pods.api.put(routed("a", "10.1.0.1"))
    pods.start()
    wait_until(lambda: pods.api.events, what=lambda: pods.log)
    assert pods.addresses() == ["10.1.0.1"]
    pods.api.put(routed("b", "10.1.0.2"))
    wait_until(lambda: pods.addresses() == ["10.1.0.1", "10.1.0.2"])
    (event,) = pods.api.events
    assert (event["involvedObject"]["name"], event["reason"], event["type"]) == ("bad", "ClassNotApplied", "Warning")
    assert "no class that pods may choose" in event["message"]


def test_before_the_broker_starts_there_is_a_configuration_also_without_an_api_server(pods: Pods) -> None:
    pods.api.put(routed("a", "10.1.0.1"))
    command = pods.command("--once")
    assert subprocess.run(command, env=pods.environment, timeout=LIMIT_S, check=False).returncode == 0
    assert pods.addresses() == ["10.1.0.1"]
    nowhere = {**pods.environment, "KUBERNETES_SERVICE_PORT_HTTPS": "1"}
    ended = subprocess.run(command, env=nowhere, timeout=LIMIT_S, check=False, capture_output=True, text=True)
    assert ended.returncode == 0
    assert "pods-unknown" in ended.stderr
    assert [MatchRule(address="10.1.0.1/32")] not in [list(one.match) for one in load(pods.out.read_text()).classes]


def test_a_server_that_another_ca_vouches_for_is_not_believed(pods: Pods, tmp_path: Path) -> None:
    stranger = KubernetesApi(tmp_path / "stranger")
    try:
        (pods.api.account / "ca.crt").write_bytes((stranger.account / "ca.crt").read_bytes())
        pods.api.put(routed("a", "10.1.0.1"))
        pods.start()
        wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in pods.log, what=lambda: pods.log)
        assert pods.addresses() == []
        assert pods.api.lists == 0
    finally:
        stranger.close()
