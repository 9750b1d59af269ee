"""`programs` in a class: what the names stand for, and what may not be written."""

from __future__ import annotations

import pytest

from broker.enforce.shapes import rules_of
from broker.measure.port_classes import PortClasses
from broker.measure.tcp_diag import UdpSocket
from broker.policy.known_programs import KNOWN_PROGRAMS, rules_of_class
from broker.policy.toml import MATCH_RULES_MAX, ConfigurationErrors, load
from broker.policy.types import MatchRule, Policy
from shaping.plan.packet_filters import check_rules

HEAD = 'version = 1\n[[interface]]\nname = "eth0"\n'


def storage(text: str) -> Policy:
    return load(f"{HEAD}[class.storage]\n{text}\n")


def mistakes(text: str) -> str:
    with pytest.raises(ConfigurationErrors) as found:
        load(HEAD + text)
    return str(found.value)


def test_a_program_is_its_ports_and_its_units_after_the_rules_that_are_written() -> None:
    entry = storage('match = [{ dscp = 1 }]\nprograms = ["syncthing"]').class_policy("storage")
    assert rules_of_class(entry) == (
        MatchRule(dscp=1),
        MatchRule(port=22000),
        MatchRule(cgroup="system.slice/system-syncthing.slice"),
        MatchRule(cgroup="system.slice/syncthing.service"),
    )


def test_a_unit_with_a_dash_in_its_template_is_written_as_systemd_writes_it() -> None:
    assert KNOWN_PROGRAMS["ceph"].cgroups == (r"system.slice/system-ceph\x2dosd.slice",)


def test_a_rule_that_is_written_and_known_counts_once() -> None:
    entry = storage('match = [{ port = 873 }]\nprograms = ["rsync", "rsync"]').class_policy("storage")
    assert [rule.port for rule in rules_of_class(entry)].count(873) == 1


def test_all_known_programs_fit_into_what_a_configuration_and_the_kernel_take() -> None:
    policy = storage('programs = "known"')
    rules = rules_of(policy)
    assert len(KNOWN_PROGRAMS) < len(rules) <= MATCH_RULES_MAX
    check_rules(rules)


def test_a_process_belongs_to_one_program_under_the_name_that_the_kernel_shows() -> None:
    processes = [process for program in KNOWN_PROGRAMS.values() for process in program.processes]
    assert len(processes) == len(set(processes))
    assert max(map(len, processes)) <= 15


def test_only_of_a_written_rule_the_absent_cgroup_is_worth_a_word() -> None:
    policy = storage('match = [{ cgroup = "a.slice" }]\nprograms = ["rsync"]')
    assert {rule.cgroup: rule.may_be_absent for rule in rules_of(policy) if rule.cgroup} == {
        "a.slice": False,
        "system.slice/rsync.service": True,
        "system.slice/rsyncd.service": True,
    }


def test_no_port_belongs_to_two_programs_nor_to_what_many_others_use() -> None:
    ports = [port for program in KNOWN_PROGRAMS.values() for port in program.ports]
    assert len(ports) == len(set(ports))
    exporters = range(9100, 9104)  # Prometheus' node, HAProxy, StatsD and collectd; Bacula has the same
    assert set(ports).isdisjoint(
        {22, 53, 80, 443, 2379, 2380, 3000, 5000, 8000, 8080, 8443, 9000, 9090, 9333, *exporters}
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[class.storage]\nprograms = ["syncting"]', "did you mean `syncthing`?"),
        ('[class.storage]\nprograms = ["postgresql"]', "for another program write a match"),
        ('[class.storage]\nprograms = "all"', '"known" for all'),
        ("[class.storage]\nprograms = [22000]", "class.storage.programs[0]"),
        ('[class.compute]\nprograms = ["rsync"]', "anybody can choose"),
    ],
)
def test_a_mistake_says_what_to_write(text: str, says: str) -> None:
    assert says in mistakes(text)


@pytest.mark.parametrize("ends", [(22000, 40001), (40001, 22000)])
@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1"])
def test_a_connection_of_a_program_is_counted_in_its_class(ends: tuple[int, int], address: str) -> None:
    classes = PortClasses(storage('programs = ["syncthing"]'), {})
    socket = UdpSocket(
        local=(address, ends[0]), remote=(address, ends[1]), uid=0, inode=1, classid=0, dscp=0, waiting_bytes=0
    )
    assert classes.class_of(socket) == "storage"
