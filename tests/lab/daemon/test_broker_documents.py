"""What the page on safe changes shows is what its commands print, and what it promises of a trial is so."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator

import pytest
from broker_host import COMMAND, CONFIGURATION, Broker, broker_in, two_hosts
from documents import DOCS, Fence, fences_of
from patience import wait_until

PAGE = DOCS / "operate/changing-safely.md"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with two_hosts("pages") as lab, broker_in(lab["a"]) as broker:
        broker.start()
        yield broker


def typed(broker: Broker, fence: Fence) -> list[str]:
    """Type the commands of a fence on the broker's host, and give what stands there then."""
    screen = []
    for line in fence.text.splitlines():
        if not line.startswith("$ "):
            continue
        words = shlex.split(line[2:])
        assert words[0] == "hive-qos"
        if "check" in words:
            words += [str(broker.folder / "broker.toml")]
        if "clear" in words:
            words += ["--state-dir", str(broker.folder / "state")]
        done = broker.host.run([*COMMAND, *words[1:]], env={"HIVE_BROKER": broker.sessions})
        screen += [line, *done.stdout.replace(str(broker.folder), "/etc/hive-qos").splitlines()]
    return screen


def shown(first: str) -> Fence:
    (fence,) = (fence for fence in fences_of(PAGE) if fence.text.startswith(first))
    return fence


def test_a_change_on_trial_is_confirmed_as_the_page_shows_it(broker: Broker) -> None:
    (broker.folder / "broker.toml").write_text(CONFIGURATION.replace("20 Mbit/s", "19 Mbit/s"))
    fence = shown("$ hive-qos check")
    assert typed(broker, fence) == fence.text.splitlines()
    assert broker.status()["alarms"] == []
    for command in ("apply --yes --confirm-within 60s", "apply --confirm"):
        broker.host.run([*COMMAND, *command.split()], env={"HIVE_BROKER": broker.sessions})
    assert broker.status()["alarms"] == []
    fence = shown("$ hive-qos set")
    assert typed(broker, fence) == fence.text.splitlines()


def test_a_file_with_a_mistake_is_refused_in_the_words_of_the_page(broker: Broker) -> None:
    (broker.folder / "broker.toml").write_text(CONFIGURATION.replace("20 Mbit/s", "0 Mbit/s"))
    done = broker.host.run([*COMMAND, "reload"], env={"HIVE_BROKER": broker.sessions}, check=False)
    assert (done.returncode, done.stderr) == (3, shown("hive-qos: [broker-rejected]").text)
    assert [alarm["code"] for alarm in broker.status()["alarms"]] == ["configuration-rejected"]


def test_what_a_killed_broker_left_is_removed_as_the_page_shows_it(broker: Broker) -> None:
    assert broker.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not broker.watchdogs())
    fence = shown("$ hive-qos clear")
    assert typed(broker, fence) == fence.text.splitlines()
    assert broker.root_qdisc().startswith("qdisc noqueue")
