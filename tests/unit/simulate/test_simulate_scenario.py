"""Descriptions of simulated networks: what is read, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_networks import TWO_HOSTS

from hive_qos.errors import ConfigurationError
from tools.simulate.__main__ import DEFAULT
from tools.simulate.scenario import HOSTS_MAX, Copy, load, parse


def test_hosts_are_numbered_through_the_sites() -> None:
    scenario = parse(TWO_HOSTS)
    assert scenario.host_sites() == (0, 0, 1, 1)
    assert scenario.jobs[0].hosts == (0, 2)
    assert scenario.copies == (Copy(0, 3, 8),)
    assert scenario.host_name(3) == "b/1"


def test_the_network_that_comes_with_it_has_hundreds_of_hosts_each_in_one_job() -> None:
    scenario = load(DEFAULT)
    assert len(scenario.host_sites()) >= 200
    members = [host for job in scenario.jobs for host in job.hosts]
    assert len(members) == len(set(members))
    sites = scenario.host_sites()
    assert all(len({sites[host] for host in job.hosts}) > 1 for job in scenario.jobs)


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ("version = 1", "version = 2", "version"),
        ("hosts = 2", "hosts = 0", "site[0].hosts"),
        ("hosts = 2", f"hosts = {HOSTS_MAX}", "site"),
        ('link = "40 Mbit/s"', "link = 40", "site[0].link"),
        ('link = "40 Mbit/s"', 'link = "0 Mbit/s"', "site[0].link"),
        ('name = "a"', 'name = "b"', "site"),
        ('name = "a"', 'name = "a/b"', "site[0].name"),
        ('"b/0"]', '"b/2"]', "job[0].hosts"),
        ('"b/0"]', '"a/0"]', "job[0].hosts"),
        ('burst = "1 MB"', 'burst = "much"', "job[0].burst"),
        ('think = "300 ms"', 'think = "0 s"', "job[0].think"),
        ('to = "b/1"', 'to = "a/0"', "copy[0].to"),
        ('to = "b/1"', 'to = "b/1"\nspeed = 3', "copy[0].speed"),
        ('seconds = "12 s"', 'seconds = "12 h"', "seconds"),
    ],
)
def test_a_mistake_is_named(before: str, after: str, key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(TWO_HOSTS.replace(before, after, 1))
    assert caught.value.key == key


@pytest.mark.parametrize("content", [None, b"\xff", b"["])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "network.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError):
        load(path)
