"""Descriptions: what is read, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from hive_qos.errors import ConfigurationError
from tools.lab.description import from_plain, parse, parse_properties, to_plain
from tools.lab.model import Description, LinkSpec, NodeSpec

ROOT = Path(__file__).parents[3]


def test_two_hosts_is_the_main_jobs_network() -> None:
    description = parse((ROOT / "tools/lab/two-hosts.toml").read_text())
    assert [(node.name, node.kind) for node in description.nodes] == [
        ("a", "host"),
        ("b", "host"),
        ("s", "host"),
        ("r", "router"),
    ]
    for link, host in zip(description.links, "abs", strict=True):
        assert (link.name, link.first, link.second) == (f"{host}-r", host, "r")
        assert (link.rate_bits_per_s, link.delay_s, link.loss, link.buffer_s) == (40_000_000, 0.002, 0, 0.1)


def test_sites_become_a_router_with_its_hosts() -> None:
    description = parse("""
        name = "sites"
        [defaults]
        buffer = "50 ms"
        [[site]]
        name = "east"
        hosts = ["a", "b"]
        rate = "1 Gbit/s"
        [[site]]
        name = "west"
        hosts = ["c"]
        [[link]]
        between = ["east", "west"]
        name = "wan"
        rate = "100 Mbit/s"
        delay = "40 ms"
        loss = "0.5 %"
        buffer = "2 MB"
    """)
    assert [(node.name, node.kind, node.site) for node in description.nodes] == [
        ("east", "router", "east"),
        ("a", "host", "east"),
        ("b", "host", "east"),
        ("west", "router", "west"),
        ("c", "host", "west"),
    ]
    links = {link.name: link for link in description.links}
    assert links["a-east"].rate_bits_per_s == 10**9
    assert links["a-east"].buffer_s == 0.05
    assert links["c-west"].rate_bits_per_s is None
    wan = links["wan"]
    assert (wan.delay_s, wan.loss, wan.buffer_bytes) == (0.04, 0.005, 2_000_000)


def test_a_description_survives_the_state_file() -> None:
    description = Description(
        name="x",
        nodes=(
            NodeSpec(name="a", sysctls={"net.ipv4.tcp_sack": "0"}, congestion="bbr"),
            NodeSpec(name="b", site="s", gso_max_segs=65_535),
        ),
        links=(
            LinkSpec(name="a-b", first="a", second="b", rate_bits_per_s=10**6, loss=0.1),
            LinkSpec(name="fast", first="a", second="b", delay_s=0.001, offload=True),
        ),
    )
    assert from_plain(to_plain(description)) == description


def test_a_link_carries_frames_unless_it_is_declared_with_offload() -> None:
    text = """
        hosts = ["a", "b", "c"]
        [[link]]
        between = ["a", "b"]
        delay = "1 ms"
        offload = true
        [[link]]
        between = ["a", "c"]
    """
    assert [(link.offload, link.delay_s) for link in parse(text).links] == [(True, 0.001), (False, 0.0)]


def test_hosts_hand_single_segments_to_their_devices_unless_told_and_routers_always_do() -> None:
    text = "hosts = ['a']\nrouters = ['r']\n"
    assert [node.gso_max_segs for node in parse(text).nodes] == [1, 1]
    assert [node.gso_max_segs for node in parse("gso_max_segs = 65535\n" + text).nodes] == [65_535, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hosts = [", "not TOML"),
        (f"hosts = {'[' * 3000}{']' * 3000}", "not TOML"),
        (f"gso_max_segs = {'9' * 5000}", "not TOML"),
        ("host = ['a']", "host = ['a']: no such key; known: congestion, defaults, gso_max_segs"),
        ("hosts = 'a'", """hosts = 'a': write names: ["a", "b"]"""),
        ("hosts = ['A']", "host.name = 'A': use lower-case letters"),
        ("hosts = ['a', 'a']", "nodes = 'a': the name is there twice"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a']", "link[0].between = ['a']: name two ends"),
        ("hosts = ['a']\n[[link]]\nbetween = ['a', 'b']", "link.a-b.between = 'b': no such host or router"),
        ("hosts = ['a']\n[[link]]\nbetween = ['a', 'a']", "a link needs two different ends"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\nrate = '0 Mbit/s'", "rate = '0 Mbit/s': a rate must be"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\nrate = 40", "rate = 40: write it as text with a unit"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\nrate = '1 kbit/s'", "write 8 kbit/s to 10 Tbit/s"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\ndelay = '5'", "not a duration"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\ndelay = '1 h'", "write a time of 0 to 10 s, each way"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\nloss = '101 %'", "a share cannot be above 100 %"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\nbuffer = 'big'", "neither a time nor a size"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\nbuffer = '1 kB'", "at least 2000 bytes"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\nspeed = '1'", "link[0].speed = '1': no such key"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\ncarrier = 'pigeon'", "write auto, veth, netem or relay"),
        (
            "hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\ncarrier = 'veth'\ndelay = '1 ms'",
            "veth has no delay and no loss",
        ),
        (
            "hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']",
            "links = 'a-b': the name is there twice; give one a name of its own",
        ),
        ("hosts = ['a']\n[sysctls]\n'vm.swappiness' = 1", "only net.* belongs to a namespace"),
        ("hosts = ['a']\ncongestion = 'x; rm'", "host.a.congestion = 'x; rm': a name such as"),
        ("hosts = ['a']\ngso_max_segs = 0", "host.a.gso_max_segs = 0: write a whole number from 1 to 65535"),
        ("hosts = ['a']\ngso_max_segs = true", "host.a.gso_max_segs = True: write a whole number from 1 to 65535"),
        ("name = 5", "name = [5]: write names"),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\nseed = 'x'", "seed = 'x': write a whole number"),
        (
            "hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\noffload = 1",
            "link.a-b.offload = 1: write true or false",
        ),
        (
            "hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\noffload = true\nbuffer = '20 kB'",
            "has to hold one lump: at least 65600 bytes",
        ),
        (
            "hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\noffload = true\nloss = '1 %'",
            "link.a-b.loss = 0.01: a link with offload carries lumps, and this happens to single frames",
        ),
        ("hosts = ['a', 'b']\n[[link]]\nbetween = ['a', 'b']\nname = 'x y'", "use lower-case letters, digits"),
    ],
)
def test_what_cannot_work_is_refused_by_key_and_value(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    assert words in str(caught.value)


def test_properties_of_a_link_read_as_people_write_them() -> None:
    assert parse_properties("a-r", {"rate": "none", "delay": "5 ms", "loss": "1 %"}) == {
        "rate_bits_per_s": None,
        "delay_s": 0.005,
        "loss": 0.01,
    }
