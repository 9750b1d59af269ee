"""`hive-qos pods`: Kubernetes' pods into the classes that they name."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from broker.cli.options import SocketOption
from hive_qos.errors import ConfigurationError

DEFAULT_ALLOWED = "compute,storage,other"
"""Not control: it goes before everybody."""


def pods(
    base: Annotated[Path, typer.Option("--base", readable=False, help="The configuration that you wrote.")] = Path(
        "/etc/hive-qos/broker.toml"
    ),
    out: Annotated[Path, typer.Option("--out", help="The configuration that the broker reads; written anew.")] = Path(
        "/run/hive-qos/broker.toml"
    ),
    node: Annotated[str, typer.Option("--node", envvar="NODE_NAME", help="This node's name in Kubernetes.")] = "",
    allow: Annotated[str, typer.Option("--allow", help="Classes that pods may choose.")] = DEFAULT_ALLOWED,
    cgroup_root: Annotated[
        str | None, typer.Option("--cgroup-root", help="The kubelet's cgroupRoot, where it has an unusual one.")
    ] = None,
    account: Annotated[
        Path, typer.Option("--account", readable=False, help="The service account's directory: token and ca.crt.")
    ] = Path("/var/run/secrets/kubernetes.io/serviceaccount"),
    once: Annotated[bool, typer.Option("--once", help="Write the configuration and exit, before the broker.")] = False,
    socket: SocketOption = None,
) -> None:
    """Put this node's pods into the class that they name.

    Runs in a pod of Kubernetes beside the broker; the Helm chart starts it. A pod names its class by the annotation
    hive-qos.io/class. On the host's network it is found by its cgroup, else by its addresses.

    \b
    Examples:
      hive-qos pods --once
      hive-qos pods --allow storage,other
    """
    from broker.enforce import cgroups
    from broker.events.log import open_log
    from broker.pods.api_server import in_cluster
    from broker.pods.rules import find_hierarchy
    from broker.pods.watcher import Files, PodWatcher
    from broker.policy.types import CLASS_NAMES

    allowed = [name.strip() for name in allow.split(",") if name.strip()]
    for name in allowed:
        if name not in CLASS_NAMES:
            raise ConfigurationError("--allow", name, f"no class; write some of {', '.join(CLASS_NAMES)}")
    watcher = PodWatcher(
        in_cluster(node, account=account),
        Files(base, out, None if socket is None else str(socket)),
        allowed=allowed,
        hierarchy=lambda: find_hierarchy(cgroups.mount_point(), root=cgroup_root),
        log=open_log(),
    )
    # The first process of a container is not ended by signals that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if once:
        watcher.once()
    else:
        watcher.run()
