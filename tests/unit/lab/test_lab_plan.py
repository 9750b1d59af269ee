"""Addresses, routes and commands, from descriptions alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tools.lab import wire
from tools.lab.model import Description, LinkSpec, NodeSpec
from tools.lab.plan import Plan, hosts_file, make_plan, node_lines


def plan_of(hosts: str, routers: str, *links: str) -> Plan:
    """Nodes by one-letter names, links by two."""
    nodes = [NodeSpec(name=name) for name in hosts] + [NodeSpec(name=name, kind="router") for name in routers]
    specs = [LinkSpec(name=f"{pair[0]}-{pair[1]}", first=pair[0], second=pair[1]) for pair in links]
    return make_plan(Description(nodes=tuple(nodes), links=tuple(specs)))


def ways(plan: Plan, node: str) -> dict[str, str]:
    return {route.destination: route.via for route in plan.routes[node]}


def test_a_links_number_makes_its_addresses() -> None:
    plan = plan_of("ab", "r", "ar", "br")
    (end,) = plan.interfaces["b"]
    assert (end.name, end.address, end.address6, end.wire) == ("eth0", "10.42.2.1", "fd42:0:0:2::1", "w2a")
    assert [end.name for end in plan.interfaces["r"]] == ["eth0", "eth1"]
    assert [end.address for end in plan.interfaces["r"]] == ["10.42.1.2", "10.42.2.2"]


def test_routes_take_the_fewest_hops() -> None:
    plan = plan_of("ab", "rqz", "ar", "rq", "rz", "zq", "qb")
    assert ways(plan, "a") == {f"10.42.{number}.0/24": "10.42.1.2" for number in (2, 3, 4, 5)}
    assert ways(plan, "r")["10.42.5.0/24"] == "10.42.2.2"
    assert ways(plan, "z")["10.42.5.0/24"] == "10.42.4.2"


def test_no_route_leads_through_a_host() -> None:
    plan = plan_of("abc", "", "ab", "bc")
    # a reaches the near end b of the second link, not c behind it.
    assert ways(plan, "a") == {"10.42.2.1/32": "10.42.1.2"}


def test_a_direct_second_link_is_used_by_its_own_addresses_only() -> None:
    plan = plan_of("as", "r", "ar", "sr", "as")
    assert ways(plan, "a") == {"10.42.2.0/24": "10.42.1.2"}
    assert plan.interface_on("a", "r").address == "10.42.1.1"
    assert plan.interface_on("a", "s").address == "10.42.3.1"
    assert plan.interface_on("a", "a-s") is plan.interface_on("a", "s")


def test_a_second_router_gives_a_second_path() -> None:
    plan = plan_of("as", "rq", "ar", "sr", "aq", "sq")
    assert ways(plan, "a") == {"10.42.2.0/24": "10.42.1.2", "10.42.4.0/24": "10.42.3.2"}


def test_names_mean_the_first_link_and_name_dot_link_the_others() -> None:
    lines = hosts_file(plan_of("as", "r", "ar", "sr", "as"), node="a", machine="vm").splitlines()
    assert "10.42.2.1 s s.s-r" in lines
    assert "10.42.3.2 s.a-s" in lines
    assert "fd42:0:0:2::1 s s.s-r" in lines


def test_the_machines_name_means_the_node_itself_in_each_node() -> None:
    plan = plan_of("asx", "r", "ar", "sr", "as")
    lines = hosts_file(plan, node="s", machine="vm").splitlines()
    assert [line for line in lines if line.endswith(" vm")] == ["10.42.2.1 s s.s-r vm", "fd42:0:0:2::1 s s.s-r vm"]
    assert "10.42.1.1 a a.a-r" in lines
    assert "127.0.1.1 vm" in hosts_file(plan, node="x", machine="vm").splitlines()
    for taken in ("a", "localhost"):
        assert hosts_file(plan, node="s", machine=taken) == hosts_file(plan, node="a", machine=taken)


def test_adding_a_link_leaves_what_was_there() -> None:
    before, after = plan_of("ab", "r", "ar"), plan_of("ab", "r", "ar", "br")
    assert after.links[:1] == before.links
    assert after.interfaces["a"] == before.interfaces["a"]


@given(st.data())
def test_hop_by_hop_every_route_arrives(data: st.DataObject) -> None:
    """A naive walk along the tables of a random network reaches every destination that a table names."""
    names = "abcdefgh"[: data.draw(st.integers(2, 8), label="nodes")]
    routers = data.draw(st.sets(st.sampled_from(names)), label="routers")
    pairs = st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True).map("".join)
    links = data.draw(st.lists(pairs, min_size=1, max_size=12, unique=True), label="links")
    plan = plan_of("".join(sorted(set(names) - routers)), "".join(sorted(routers)), *links)
    owner = {end.address: end.node for ends in plan.interfaces.values() for end in ends}
    for start in names:
        for route in plan.routes[start]:
            node, hops = start, 0
            network = route.destination.rpartition(".")[0]
            while all(end.address.rpartition(".")[0] != network for end in plan.interfaces[node]):
                assert node == start or node in routers, "a host would have to forward"
                node = owner[next(one.via for one in plan.routes[node] if one.destination == route.destination)]
                hops += 1
                assert hops <= len(names), "a loop"


def test_a_node_gets_addresses_of_new_links_and_all_routes() -> None:
    plan = plan_of("ab", "r", "ar", "br")
    lines = node_lines(plan, NodeSpec(name="a", congestion="cubic"), links={"a-r"})
    assert lines[0] == "address add 10.42.1.1/24 dev eth0"
    assert "neighbour replace 10.42.1.2 lladdr 02:42:00:00:01:02 nud permanent dev eth0" in lines
    assert "route replace 10.42.2.0/24 via 10.42.1.2 dev eth0 congctl cubic" in lines
    assert node_lines(plan, NodeSpec(name="a"), links=set()) == [
        "route replace 10.42.2.0/24 via 10.42.1.2 dev eth0",
        "route replace fd42:0:0:2::/64 via fd42:0:0:1::2 dev eth0",
    ]


def test_the_medium_follows_from_what_the_link_needs_and_the_kernel_has() -> None:
    plain = LinkSpec(name="l", first="a", second="b")
    slow = LinkSpec(name="l", first="a", second="b", delay_s=0.001)
    forced = LinkSpec(name="l", first="a", second="b", carrier="relay")
    assert wire.choose_medium(plain, has_netem=True) == "veth"
    assert wire.choose_medium(slow, has_netem=True) == "netem"
    assert wire.choose_medium(slow, has_netem=False) == "relay"
    assert wire.choose_medium(forced, has_netem=True) == "relay"


def test_netem_gets_the_bucket_as_its_child() -> None:
    spec = LinkSpec(name="l", first="a", second="b", rate_bits_per_s=8_000_000, delay_s=0.02, loss=0.005)
    plan = make_plan(Description(nodes=(NodeSpec(name="a"), NodeSpec(name="b")), links=(spec,)))
    assert wire.tc_lines(plan.links[0], "netem", limit_bytes=100_000)[:2] == [
        "qdisc add dev w1b root handle 1: netem limit 200000 delay 20000us loss 0.500000%",
        "qdisc add dev w1b parent 1:1 handle 2: tbf rate 8000000bit burst 3200 limit 100000",
    ]


def test_the_relay_stands_between_bucket_and_receiver() -> None:
    spec = LinkSpec(name="l", first="a", second="b", rate_bits_per_s=40_000_000, delay_s=0.02)
    plan = make_plan(Description(nodes=(NodeSpec(name="a"), NodeSpec(name="b")), links=(spec,)))
    lines = wire.tc_lines(plan.links[0], "relay", limit_bytes=500_000)
    assert lines[0] == "qdisc add dev t1a root handle 2: tbf rate 40000000bit burst 15000 limit 500000"
    passed = [(line.split()[3], line.split()[-2]) for line in lines if line.startswith("filter")]
    assert passed == [("w1a", "t1a"), ("t1b", "w1b"), ("w1b", "t1b"), ("t1a", "w1a")]


def test_the_buffer_is_a_time_at_the_first_rate_unless_given_in_bytes() -> None:
    timed = LinkSpec(name="l", first="a", second="b", buffer_s=0.05)
    sized = LinkSpec(name="l", first="a", second="b", buffer_bytes=9000)
    assert wire.buffer_bytes(timed, first_rate_bits_per_s=40_000_000) == 250_000
    assert wire.buffer_bytes(timed, first_rate_bits_per_s=8_000) == wire.LIMIT_BYTES_MIN
    assert wire.buffer_bytes(timed, first_rate_bits_per_s=None) == wire.LIMIT_BYTES_UNLIMITED
    assert wire.buffer_bytes(sized, first_rate_bits_per_s=40_000_000) == 9000
