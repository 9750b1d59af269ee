"""Pods to rules, and rules into a configuration: all drivers and QoS classes, and what a pod may not have."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import pytest
from kubernetes_api import pod

from broker.pods.merge import room_for_rules, with_rules
from broker.pods.rules import MIRROR, STATIC_UID, Driver, Hierarchy, PodRules, find_hierarchy, pod_cgroup, rules_of
from broker.policy.toml import MATCH_RULES_MAX, ConfigurationErrors, load
from broker.policy.types import MatchRule

ROOT = Path(__file__).parents[4]
BASE = 'version = 1\n[[interface]]\nname = "eth0"\negress = "1 Gbit/s"\n'
UID = "0ee6f3a1-52b3-4a5e-9a3e-5b1c2d3e4f50"
SLICE = "pod0ee6f3a1_52b3_4a5e_9a3e_5b1c2d3e4f50.slice"
SYSTEMD = Hierarchy(Driver.SYSTEMD)


def judged(*pods: object, hierarchy: Hierarchy | None = SYSTEMD, rules_max: int = 64) -> PodRules:
    return rules_of(
        pods,  # type: ignore[arg-type]  # also what is no pod
        hierarchy=hierarchy,
        allowed=("compute", "storage", "other"),
        rules_max=rules_max,
        taken={},
    )


def problem(*pods: object, hierarchy: Hierarchy | None = SYSTEMD) -> str:
    found = judged(*pods, hierarchy=hierarchy)
    assert not found.rules
    (one,) = found.problems
    return one.text


@pytest.mark.parametrize(
    ("hierarchy", "qos", "path"),
    [
        (SYSTEMD, "Guaranteed", f"kubepods.slice/kubepods-{SLICE}"),
        (SYSTEMD, "Burstable", f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{SLICE}"),
        (SYSTEMD, "BestEffort", f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-{SLICE}"),
        (Hierarchy(Driver.CGROUPFS), "Guaranteed", f"kubepods/pod{UID}"),
        (Hierarchy(Driver.CGROUPFS), "BestEffort", f"kubepods/besteffort/pod{UID}"),
        (Hierarchy(Driver.CGROUPFS, "site/k8s"), "Burstable", f"site/k8s/kubepods/burstable/pod{UID}"),
        (
            Hierarchy(Driver.SYSTEMD, "kubelet"),
            "Burstable",
            f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-{SLICE}",
        ),
    ],
)
def test_a_pod_on_the_hosts_network_is_found_by_its_cgroup(hierarchy: Hierarchy, qos: str, path: str) -> None:
    assert pod_cgroup(uid=UID, qos=qos, hierarchy=hierarchy) == path
    found = judged(pod("a", uid=UID, qos=qos, traffic_class="compute"), hierarchy=hierarchy)
    assert (found.rules, found.problems) == ({"compute": (MatchRule(cgroup=path),)}, ())


@pytest.mark.parametrize("hierarchy", [SYSTEMD, Hierarchy(Driver.CGROUPFS), Hierarchy(Driver.SYSTEMD, "kubelet")])
def test_the_kubelets_driver_is_seen_by_the_cgroup_above_all_pods(tmp_path: Path, hierarchy: Hierarchy) -> None:
    assert find_hierarchy(str(tmp_path)) == SYSTEMD, "where there is none yet"
    (tmp_path / pod_cgroup(uid=UID, qos="Burstable", hierarchy=hierarchy)).mkdir(parents=True)
    assert find_hierarchy(str(tmp_path)) == hierarchy


def test_a_static_pod_is_found_by_the_uid_that_the_kubelet_knows(tmp_path: Path) -> None:
    static = pod("a", uid=UID, qos="Guaranteed")
    static["metadata"]["annotations"][STATIC_UID] = "abcdef0123456789abcdef0123456789"
    static["metadata"]["annotations"][MIRROR] = "abcdef0123456789abcdef0123456789"
    (rule,) = judged(static).rules["storage"]
    assert rule.cgroup == "kubepods.slice/kubepods-podabcdef0123456789abcdef0123456789.slice"


def test_a_pod_that_is_not_static_cannot_name_another_pods_cgroup() -> None:
    liar = pod("a", uid=UID, qos="Guaranteed")
    liar["metadata"]["annotations"][STATIC_UID] = "abcdef0123456789abcdef0123456789"
    (rule,) = judged(liar).rules["storage"]
    assert rule.cgroup == f"kubepods.slice/kubepods-{SLICE}"


def test_a_long_or_evil_annotation_is_named_in_few_printable_characters() -> None:
    text = problem(pod("a", uid=UID, traffic_class="\x1b[31m" + "x" * 200_000))
    assert text.isprintable()
    assert len(text) < 300


def test_a_pod_with_a_network_of_its_own_is_found_by_all_its_addresses() -> None:
    found = judged(pod("a", uid=UID, host_network=False, addresses=("10.244.1.7", "fd00::7", "no address")))
    assert found.rules == {"storage": (MatchRule(address="10.244.1.7/32"), MatchRule(address="fd00::7/128"))}


def test_a_pod_that_has_no_address_yet_or_has_ended_or_names_no_class_has_no_rule() -> None:
    found = judged(
        pod("a", uid="a", host_network=False),
        pod("b", uid="b", phase="Succeeded"),
        pod("c", uid="c", phase="Failed"),
        pod("d", uid="d", traffic_class=None),
    )
    assert not any(found.rules.values())
    assert found.problems == ()


def test_what_a_pod_cannot_have_is_said_with_what_to_write_instead() -> None:
    assert "write compute or other or storage" in problem(pod("a", uid=UID, traffic_class="control"))
    assert "'\\x1b[31mred'" in problem(pod("a", uid=UID, traffic_class="\x1b[31mred"))
    assert "needs hostNetwork: true" in problem(pod("a", uid=UID, traffic_class="compute", host_network=False))
    assert "no cgroup v2" in problem(pod("a", uid=UID), hierarchy=None)
    assert "uid '../..' is none" in problem(pod("a", uid="../.."))
    assert "QoS class 'Best' is not known" in problem(pod("a", uid=UID, qos="Best"))


def test_the_oldest_pods_have_the_rules_where_there_are_too_many() -> None:
    pods = [pod(f"p{age}", uid=f"{age:x}", created=f"2026-11-23T10:{age:02}:00Z") for age in range(5)]
    random.Random(1).shuffle(pods)
    found = judged(*pods, rules_max=3)
    assert [one.pod.name for one in found.problems] == ["p3", "p4"]
    assert len(found.rules["storage"]) == 3
    assert "room for 3 rules" in found.problems[0].text


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_server_says_comes_to_rules_that_the_broker_takes_or_to_none(seed: int) -> None:
    rng = random.Random(seed)
    base = 'version = 1\n[[interface]]\nname = "eth0"\negress = "1 Gbit/s"\n'
    strange = [None, 3, "", [], {}, "storage", {"ip": 5}, [{"ip": "10.0.0.1"}, 5], True, "\x7f\n\"'"]
    for _ in range(100):
        one = pod("a", uid=UID, addresses=("10.0.0.1",), host_network=rng.random() < 0.5)
        for part in ("metadata", "spec", "status"):
            if rng.random() < 0.5 and one[part]:
                one[part][rng.choice(sorted(one[part]))] = rng.choice(strange)
        if rng.random() < 0.2:
            one[rng.choice(["metadata", "spec", "status"])] = rng.choice(strange)
        load(with_rules(base, judged(one).rules, name="base"))


def test_a_configuration_means_the_same_after_pods_rules_were_added_and_has_them_behind_its_own() -> None:
    text = (ROOT / "systemd" / "broker.toml").read_text()
    same = with_rules(text, {}, name="base")
    assert tomllib.loads(same) == tomllib.loads(text)
    more = with_rules(text, {"storage": (MatchRule(cgroup="a b/\\x2d"), MatchRule(address="10.0.0.1/32"))}, name="base")
    assert tomllib.loads(more)["class"]["storage"]["match"][-2:] == [
        {"cgroup": "a b/\\x2d"},
        {"address": "10.0.0.1/32"},
    ]
    assert with_rules(more, {"storage": (MatchRule(address="10.0.0.1/32"),)}, name="base") == more


def test_every_kind_of_value_is_written_as_it_was_read() -> None:
    text = (
        'a = 1\nb = -2.5\nc = true\nd = "quote \\" back \\\\ tab \\t \\u007f é"\ne = [1, [2], {x = 1}]\n'
        'f = 2026-11-23T10:00:00Z\ng = 2026-11-23\nh = inf\ni = -inf\n"with space" = {}\n'
        '[j."k.l"]\nm = 07:30:00\n'
    )
    assert tomllib.loads(with_rules(text, {}, name="base")) == tomllib.loads(text)


def test_room_is_what_the_broker_leaves() -> None:
    base = BASE + "[class.storage]\nmatch = [{ port = 1 }, { port = 2 }]\n[class.other]\nmatch = [{ port = 3 }]\n"
    room, taken = room_for_rules(base)
    assert room == MATCH_RULES_MAX - 3
    assert taken == {MatchRule(port=1): "storage", MatchRule(port=2): "storage", MatchRule(port=3): "other"}


@pytest.mark.parametrize("base", ["class = 3", "[[", f"a = {'9' * 5000}", "a = " + "[" * 5000])
def test_a_configuration_that_is_wrong_is_left_for_the_broker_to_refuse(base: str) -> None:
    assert room_for_rules(base) == (MATCH_RULES_MAX, {})
    written = with_rules(base, {"storage": (MatchRule(address="10.0.0.1/32"),)}, name="base")
    assert written == base or tomllib.loads(written) == tomllib.loads(base)
    with pytest.raises(ConfigurationErrors):
        load(written)


@pytest.mark.parametrize(
    "more",
    [
        '[class.storage]\nprograms = ["syncthing", "rsync"]\n',
        '[class.other]\nmatch = [{ address = "10.1.0.0" }]\n',
        '[class.storage]\nmatch = [{ address = "10.1.0.0" }]\n',
    ],
)
def test_whatever_pods_ask_for_the_broker_takes_the_configuration(more: str) -> None:
    """What it refuses, it refuses for all pods of the node: one too many, or one address in two classes."""
    base = BASE + more
    by_cgroup = [pod(f"c{number}", uid=f"a{number:x}") for number in range(2 * MATCH_RULES_MAX)]
    by_address = [
        pod(
            f"{name}{number}", uid=f"{name}{number}", traffic_class=name, host_network=False,
            addresses=(f"10.1.0.{number}",), created=created,
        )
        for number in range(3)
        for name, created in (("storage", "2026-11-22T10:00:00Z"), ("other", "2026-11-22T11:00:00Z"))
    ]  # fmt: skip
    rules_max, taken = room_for_rules(base)
    found = rules_of(
        [*by_cgroup, *by_address], hierarchy=SYSTEMD, allowed=("storage", "other"), rules_max=rules_max, taken=taken
    )
    load(with_rules(base, found.rules, name="base"))
    assert found.pods >= MATCH_RULES_MAX - 8
    assert any("has it in class" in problem.text for problem in found.problems)
