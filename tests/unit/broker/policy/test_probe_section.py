"""`[probe]`: what may be written, and what a decision makes of answers when nothing else tells of the path."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pytest
from control_loop import Controlled
from fluid_link import World, tcp

from broker.model.values import FlowSample
from broker.policy.probe import TARGETS_MAX
from broker.policy.toml import ConfigurationErrors, load
from broker.policy.types import Policy, ProbePolicy

HEAD = 'version = 1\n[[interface]]\nname = "a"\negress = "40 Mbit/s"\n'
FELL_S = 12.0


@dataclass
class Probed(World):
    """A link that carries what no report and no TCP_INFO tells of; `targets` answer echoes every 0.2 s."""

    targets: tuple[str, ...] = ()

    def _sample(self) -> None:
        for number, target in enumerate(self.targets):
            asked, _ = divmod(self.now_s + 0.07 * number, 0.2)
            if self.samples.get(target) is None or asked > self.samples[target][1].delivered_bytes / 32:
                rtt_s = 0.009 + self.fifo_bytes * 8 / self.rate(self.now_s) + self.jitter_s * self.random.random()
                sample = FlowSample(
                    key=f"probe/{target}", peer=target, traffic_class="control", source="probe", age_s=0.0,
                    rtt_latest_s=rtt_s, rtt_s_min=0.009, delivered_bytes=int(asked) * 32, application_limited=True,
                )  # fmt: skip
                self.samples[target] = (self.now_s, sample)


def run(*targets: str) -> World:
    blind = [replace(tcp(), traffic_class="other"), replace(tcp(port=874), traffic_class="storage")]
    world = Probed(blind, lambda at_s: 40e6 if at_s < FELL_S else 20e6, training=False, jitter_s=0.003, targets=targets)
    world.run(24.0, Controlled(load(HEAD)))
    return world


def test_where_only_answers_tell_a_fall_to_half_is_followed() -> None:
    world = run("10.0.0.7", "10.0.0.8")
    assert max(rate for at_s, rate in world.rates if at_s > FELL_S + 4) <= 22e6
    assert min(rate for at_s, rate in world.rates if 3 < at_s < FELL_S) >= 36e6  # no queue there, no doubt
    queues = sorted(queue_s for at_s, queue_s in world.queues if at_s > FELL_S + 4)
    assert queues[len(queues) // 2] < 0.03


def test_without_answers_nobody_can_know() -> None:
    assert {rate for at_s, rate in run().rates if at_s > 3} == {int(0.97 * 40e6)}


def test_answers_are_heard_beside_any_number_of_connections() -> None:
    from broker.law.capacity.flow_delay import FLOWS_MAX, PROBE, chosen

    busy = [FlowSample(f"tcp/{n}", f"10.0.1.{n}", "storage", "tcp-info", 0.0, delivered_bytes=10**9) for n in range(99)]
    probe = FlowSample("probe/10.0.0.7", "10.0.0.7", "control", PROBE, 0.0, delivered_bytes=32)
    assert probe in chosen([*busy, probe])
    assert len(chosen([*busy, probe])) == FLOWS_MAX


def test_off_unless_written() -> None:
    assert load(HEAD).probe is None


def test_addresses_are_written_plainly_and_once() -> None:
    policy = load(HEAD + '[probe]\ntargets = ["10.0.0.9", "2001:DB8::0:1", "10.0.0.9"]\ninterval = "1 s"\n')
    assert policy.probe == ProbePolicy(("10.0.0.9", "2001:db8::1"), 1.0)
    assert msgspec.convert(msgspec.to_builtins(policy), Policy) == policy
    assert msgspec.json.encode(msgspec.to_builtins(policy))


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("", "probe.targets"),
        ("targets = []\n", "probe.targets"),
        ('targets = "10.0.0.1"\n', "probe.targets"),
        (f"targets = {[f'10.0.0.{n}' for n in range(TARGETS_MAX + 1)]}\n", "probe.targets"),
        ('targets = ["gateway"]\n', "probe.targets[0]"),
        ('targets = ["10.0.0.1", 7]\n', "probe.targets[1]"),
        ('targets = ["127.0.0.1"]\n', "probe.targets[0]"),
        ('targets = ["224.0.0.1"]\n', "probe.targets[0]"),
        ('targets = ["255.255.255.255"]\n', "probe.targets[0]"),
        ('targets = ["::ffff:10.0.0.1"]\n', "probe.targets[0]"),
        ('targets = ["fe80::1%eth0"]\n', "probe.targets[0]"),
        ('targets = ["10.0.0.1"]\ninterval = "1 ms"\n', "probe.interval"),
        ('targets = ["10.0.0.1"]\ninterval = 3\n', "probe.interval"),
        ('targets = ["10.0.0.1"]\nrate = "1 Mbit/s"\n', "probe.rate"),
    ],
)
def test_each_mistake_is_named(lines: str, key: str) -> None:
    with pytest.raises(ConfigurationErrors) as caught:
        load(f"{HEAD}[probe]\n{lines}")
    assert [problem.key for problem in caught.value.problems] == [key]
