"""Another key for the CA while a daemon, another broker and a training group go on: nobody is refused at any step."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from broker_support import CONFIGURATION, Running
from engine_cases import need
from patience import LIMIT_S
from peers_support import A_HOST, B_HOST, Broker, Cluster, free_port, until

from broker.events.log import open_log
from broker.peers.own_certificate import OwnCertificate
from broker.policy.types import PeersPolicy
from transport import Group, MemoryRendezvous, Settings
from transport.identity import ca_issue, ca_renew, ca_revoke, ca_rotate

PEERS = """
[peers]
listen = "{listen}"
ca = "{ca}"
certificate = "{certificate}"
key = "{key}"
engine = "{engine}"
"""
KEYS = ("listen", "ca", "certificate", "key", "engine")


class Node:
    """A host's own copies of the CA's files and of its pair."""

    def __init__(self, folder: Path, name: str, listen: str, *, engine: str) -> None:
        self.folder, self.name = folder, name
        folder.mkdir()
        paths = (str(folder / file) for file in ("ca.crt", f"{name}.crt", f"{name}.key"))
        self.policy = PeersPolicy(listen, *paths, engine=engine)

    def take(self, *sources: Path) -> None:
        for source in sources:
            for path in source.iterdir():
                if path.name in ("ca.crt", "ca.crl", f"{self.name}.crt", f"{self.name}.key"):
                    new = self.folder / "copied"
                    shutil.copy2(path, new)
                    new.replace(self.folder / path.name)


@pytest.mark.parametrize("engine", ["native", "aioquic"])
def test_a_rotation_refuses_nobody_and_needs_no_restart(tmp_path: Path, engine: str) -> None:
    need(engine)
    cluster, port, pairs = Cluster(tmp_path), free_port(A_HOST, B_HOST), tmp_path / "pairs"
    first = Node(tmp_path / "first", "first", f"{A_HOST}:{port}", engine=engine)
    second = Node(tmp_path / "second", "second", f"{B_HOST}:{port}", engine=engine)
    for node in (first, second):
        ca_issue(cluster.ca, node.name, role="broker", addresses=[A_HOST, B_HOST], out=pairs)
        node.take(cluster.ca, pairs)
    for name in ("rank-0", "rank-1", "lost"):
        ca_issue(cluster.ca, name, out=pairs)
    ca_revoke(cluster.ca, "lost")

    running = Running(tmp_path / "daemon")
    (tmp_path / "daemon").mkdir()
    policy = first.policy
    running.write(CONFIGURATION + PEERS.format(**{name: getattr(policy, name) for name in KEYS}))
    running.start()
    other = Broker(second.policy)
    certificate = OwnCertificate(second.policy, log=open_log())
    certificate.load()
    other.reach = [A_HOST]
    group = Ranks(cluster.ca, pairs, engine=engine)

    def met() -> bool:
        return {one.peer for one in other.channel.status() if one.state == "connected"} == {"first"}

    def taken() -> None:
        """Both brokers have the files that lie there, and have met with them."""
        assert running.daemon is not None
        running.daemon.reload()
        identity = certificate.renewed(now_s=0.0, at_once=True)
        if identity is not None:
            other.channel.renew(identity)
        until(met, other, what=other.channel.status)
        assert not [alarm for alarm in running.status()["alarms"] if "certificate" in alarm["code"]]
        group.add_up()

    try:
        until(met, other, what=other.channel.status)
        group.add_up()
        now = datetime.datetime.now(datetime.UTC)
        ca_rotate(cluster.ca, "begin", days=3650, force=False, now=now)
        for node in (first, second):
            node.take(cluster.ca)
            taken()
        ca_rotate(cluster.ca, "switch", days=3650, force=False, now=now)
        ca_renew(cluster.ca, [], within=datetime.timedelta(), days=365, out=pairs, now=now)
        group.connect()  # a job that starts in the middle: one rank has its new pair, the other not yet
        for node in (first, second):
            node.take(cluster.ca, pairs)
            taken()
        ca_rotate(cluster.ca, "finish", days=3650, force=False, now=now)
        for node in (first, second):
            node.take(cluster.ca)
            taken()
        assert other.log.reasons("peer-refused") == []
    finally:
        group.close()
        other.close()
        running.stop()


class Ranks:
    """Two ranks as threads; each has its own copies, and the second is given a new pair only when it connects anew."""

    def __init__(self, ca: Path, pairs: Path, *, engine: str) -> None:
        self._nodes = [Node(ca.parent / name, name, "", engine=engine) for name in ("rank-0", "rank-1")]
        for node in self._nodes:
            node.take(ca, pairs)
        self._ca, self._pairs, self._engine = ca, pairs, engine
        self._pool, self._groups = ThreadPoolExecutor(2), list[list[Group]]()
        self._connect()

    def connect(self) -> None:
        """A second job beside the first, when the nodes have the bundle and only one has its new pair."""
        for node in self._nodes:
            node.take(self._ca)
        self._nodes[0].take(self._pairs)
        self._connect()

    def _connect(self) -> None:
        store, plain = MemoryRendezvous(), Settings(listen="127.0.0.1", broker="off", engine=self._engine)

        def one(rank: int) -> Group:
            policy = self._nodes[rank].policy
            settings = dataclasses.replace(plain, ca=policy.ca, certificate=policy.certificate, key=policy.key)
            return Group.connect(
                store, rank=rank, world_size=2, settings=settings, connect_timeout_s=LIMIT_S, timeout_s=LIMIT_S
            )

        self._groups.append(list(self._pool.map(one, range(2))))

    def add_up(self) -> None:
        """Every job that was started still works."""

        def one(group: Group) -> float:
            tensor = np.full(100_000, group.rank + 1.0)
            group.allreduce(tensor).wait()
            return float(tensor[-1])

        for groups in self._groups:
            assert list(self._pool.map(one, groups)) == [3.0, 3.0]

    def close(self) -> None:
        for groups in self._groups:
            list(self._pool.map(lambda group: group.close(), groups))
        self._pool.shutdown()
