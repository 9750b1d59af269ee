"""The chart as Helm renders it, held against Kubernetes' own schemas. Run by `make test-chart`, which brings both.

Helm's engine is that of Helm 4 (helm-python-sdk has its Go library); schemas are those of the API servers
(kubernetes-validate). What no schema knows is listed, not passed over.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

from broker.policy.toml import load
from broker.process.watchdog import MODULE

CHART = Path(__file__).parents[2] / "packaging" / "helm" / "hive-qos"
PAGE = 'version = 1\n[[interface]]\nname = "eth0"\negress = "1 Gbit/s"\n[page]\nlisten = "0.0.0.0:8710"\n'
WITHOUT_SCHEMA = {"ServiceMonitor"}
"""Of the Prometheus operator."""
CASES: Mapping[str, dict[str, Any]] = {
    "default": {},
    "without pods": {"pods": {"enabled": False}},
    "without the capabilities that can be left out": {"capabilities": {"sysAdmin": False, "sysPtrace": False}},
    "monitored": {"config": PAGE, "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "all that can be set": {
        "image": {"repository": "registry.example:5000/net/hive-qos", "tag": "x", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "pods": {"allowedClasses": ["storage"], "cgroupRoot": "kubelet"},
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"example.org/a": "b"},
        "priorityClassName": "",
        "tolerations": [],
        "nodeSelector": {},
        "extraVolumes": [{"name": "pki", "hostPath": {"path": "/etc/hive-qos/pki"}}],
        "extraVolumeMounts": [{"name": "pki", "mountPath": "/etc/hive-qos/pki", "readOnly": True}],
    },
}


def rendered(values: dict[str, Any], *, name: str = "demo") -> list[dict[str, Any]]:
    with contextlib.closing(helm.Chart.load(str(CHART))) as chart:
        files = chart.render(values, name=name, namespace="net")
    found = [one for file, text in files.items() if not file.endswith(".txt") for one in yaml.safe_load_all(text)]
    return [one for one in found if one]


def of_kind(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    (found,) = [one for one in rendered(values) if one["kind"] == kind]
    return found


def pod_of(values: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = of_kind("DaemonSet", values)["spec"]["template"]["spec"]
    return spec


def containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


def test_helm_finds_nothing_to_complain_of() -> None:
    found = helm.lint(str(CHART))
    assert [one["error"] for one in found["messages"]] == ["icon is recommended"]
    assert not found["errors"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", ["1.25", "1.30", kubernetes_validate.latest_version()])
def test_every_object_is_one_that_kubernetes_takes(case: str, version: str) -> None:
    for one in rendered(CASES[case]):
        if one["kind"] not in WITHOUT_SCHEMA:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_every_mount_has_its_volume_and_every_volume_a_mount(case: str) -> None:
    spec = pod_of(CASES[case])
    mounts = {mount["name"] for one in containers(spec) for mount in one["volumeMounts"]}
    assert mounts == {volume["name"] for volume in spec["volumes"]}


CAPABILITIES = {"broker": ["NET_ADMIN", "BPF", "SYS_ADMIN", "SYS_PTRACE"], "watchdog": ["NET_ADMIN"]}


def test_who_has_capabilities_has_no_token() -> None:
    for one in containers(pod_of({})):
        context = one["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["capabilities"].get("add", []) == CAPABILITIES.get(one["name"], [])
        assert ("account" in [mount["name"] for mount in one["volumeMounts"]]) == (one["name"] not in CAPABILITIES)


def test_what_a_killed_broker_left_is_opened_by_a_container_that_is_not_killed_with_it() -> None:
    (watchdog,) = [one for one in containers(pod_of({})) if one["name"] == "watchdog"]
    assert watchdog["command"][3:] == [MODULE, "--always", "/var/lib/hive-qos"]
    assert watchdog["volumeMounts"] == [{"name": "state", "mountPath": "/var/lib/hive-qos", "readOnly": True}]


def test_capabilities_and_the_watch_of_pods_can_be_left_out() -> None:
    context = pod_of(CASES["without the capabilities that can be left out"])["containers"][0]["securityContext"]
    assert context["capabilities"]["add"] == ["NET_ADMIN", "BPF"]
    spec = pod_of(CASES["without pods"])
    assert [one["name"] for one in containers(spec)] == ["broker", "watchdog"]
    assert "--config=/etc/hive-qos/broker.toml" in spec["containers"][0]["command"]
    assert not {"ClusterRole", "ClusterRoleBinding"} & {one["kind"] for one in rendered(CASES["without pods"])}


def test_nodes_are_updated_one_at_a_time_and_a_changed_configuration_is_an_update() -> None:
    first, second = (of_kind("DaemonSet", values)["spec"] for values in ({}, {"config": PAGE}))
    assert first["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    annotations = [one["template"]["metadata"]["annotations"] for one in (first, second)]
    assert annotations[0]["hive-qos.io/config-sha256"] != annotations[1]["hive-qos.io/config-sha256"]


def test_the_configuration_arrives_as_it_was_written() -> None:
    text = of_kind("ConfigMap", {"config": PAGE})["data"]["broker.toml"]
    assert tomllib.loads(text) == tomllib.loads(PAGE)
    assert load(of_kind("ConfigMap", {})["data"]["broker.toml"]).interfaces


def test_what_runs_are_commands_with_options_that_they_have() -> None:
    from typer.testing import CliRunner

    from broker.cli.app import app

    for one in containers(pod_of(CASES["all that can be set"])):
        program, command, *arguments = one["command"]
        if one["name"] == "watchdog":
            continue
        assert program == "hive-qos"
        page = CliRunner().invoke(app, [command, "--help"]).output
        for argument in arguments:
            assert f"{argument.partition('=')[0]} " in page, argument


def test_pods_may_be_listed_and_watched_and_nothing_else_read() -> None:
    assert of_kind("ClusterRole", {})["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"serviceMonitor": {"enabled": True}}, "needs \\[page\\]"),
        ({"pods": {"allowedClasses": ["turbo"]}}, "allowedClasses"),
        ({"imag": {}}, "imag"),
        ({"config": "nothing"}, "config"),
    ],
)
def test_values_that_cannot_work_are_refused_with_their_name(values: dict[str, Any], says: str) -> None:
    with pytest.raises(helm.HelmError, match=says):
        rendered(values)


@pytest.mark.parametrize(("release", "name"), [("demo", "demo-hive-qos"), ("hive-qos", "hive-qos"), ("a" * 53, "")])
def test_names_are_those_of_the_release_and_not_too_long(release: str, name: str) -> None:
    (found,) = [one for one in rendered({}, name=release) if one["kind"] == "DaemonSet"]
    assert found["metadata"]["name"] == name or (not name and len(found["metadata"]["name"]) <= 63)
