"""Brokers for the tests of the channel between them: each a `PeerChannel` that ticks as the daemon would."""

from __future__ import annotations

import datetime
import itertools
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from engine_support import bound_socket
from patience import LIMIT_S, wait_until

from broker.model.leases import Hold, HoldOutcome, Lease
from broker.model.reasons import Reason
from broker.peers.channel import PeerChannel
from broker.peers.listening import split_listen
from broker.peers.protocol import wire
from broker.peers.quic_endpoint import GROUP, SETTINGS
from broker.policy.types import PeersPolicy
from transport.engine import create_engine
from transport.engine.base import ConnectionDown, ConnectionUp, EngineSettings, Event, Priority, Received
from transport.identity import ca_init, ca_issue, load_identity
from transport.identity.authority import certificate_builder, private_pem, subject_names
from transport.identity.credentials import Credentials, Trust
from transport.wire.control_frames import HelloKey
from transport.wire.header import Header, Kind, MatchKey

E = TypeVar("E")
T = TypeVar("T")
A_HOST, B_HOST = "127.0.0.1", "127.0.0.2"
ALL = (A_HOST, B_HOST, "127.0.0.3", "::1")
BURST = Reason("burst", "a burst comes")
CONTROL = MatchKey(kind=Kind.CONTROL, group=GROUP)


class Cluster:
    """A CA, and certificates for whoever asks."""

    def __init__(self, folder: Path, name: str = "ours") -> None:
        self.folder, self.ca = folder, folder / name
        ca_init(self.ca)

    def policy(
        self, node: str, listen: str, *, engine: str = "auto", role: str = "broker", addresses: Sequence[str] = ALL
    ) -> PeersPolicy:
        """`[peers]` of a node; its certificate is issued when it is first asked for."""
        out = self.folder / f"{self.ca.name}-{role}"
        with suppress(Exception):
            ca_issue(self.ca, node, role=role, addresses=addresses, out=out)
        return PeersPolicy(
            listen=listen,
            ca=str(self.ca / "ca.crt"),
            certificate=str(out / f"{node}.crt"),
            key=str(out / f"{node}.key"),
            engine=engine,
        )

    def credentials(self, node: str, *, role: str = "broker", addresses: Sequence[str] = ALL) -> Credentials:
        policy = self.policy(node, "", role=role, addresses=addresses)
        return load_identity(ca=policy.ca, certificate=policy.certificate, key=policy.key).credentials

    @property
    def trust(self) -> Trust:
        return Trust(ca_pem=(self.ca / "ca.crt").read_bytes(), roles=frozenset({"broker", "job"}))

    def expired(self, node: str) -> Credentials:
        """A broker's certificate that ended an hour ago."""
        ca = x509.load_pem_x509_certificate((self.ca / "ca.crt").read_bytes())
        ca_key = load_pem_private_key((self.ca / "ca.key").read_bytes(), password=None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        builder = certificate_builder(
            subject=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)]),
            issuer=ca.subject,
            public_key=key.public_key(),
            days=-1 / 24,
        ).add_extension(subject_names(node, role="broker"), critical=False)
        certificate = builder.sign(ca_key, hashes.SHA256())
        assert certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC)
        return Credentials(certificate.public_bytes(Encoding.PEM), private_pem(key))


class Heard:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def _keep(self, level: str, event: str, fields: dict[str, Any]) -> None:
        self.lines.append((level, event, fields))

    def debug(self, event: str, **fields: Any) -> None:
        self._keep("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._keep("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._keep("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._keep("error", event, fields)

    def reasons(self, event: str) -> list[str]:
        return [fields["reason"] for _, name, fields in self.lines if name == event]


class Broker:
    """A channel, what it wants, and what it decides: each lease is granted as asked unless `decide` says otherwise."""

    def __init__(self, policy: PeersPolicy, *, port: int | None = None) -> None:
        self.policy, self.log, self.woken = policy, Heard(), threading.Event()
        self.later_s = 0.0
        self.holds: list[Hold] = []
        self.reach: list[str] = []
        self.leases: tuple[Lease, ...] = ()
        self.decide: Callable[[Lease], HoldOutcome] = granted
        self.channel = PeerChannel(policy, wake=self.woken.set, log=self.log, clock=self.clock, port=port)
        self.address = split_listen(policy.listen)

    def clock(self) -> float:
        """Monotonic, and later by as much as the test says."""
        return time.monotonic() + self.later_s

    def hold(self, address: str, rate: int = 5_000_000, *, lease_s: float = 2.0) -> None:
        """Want this one hold from now on."""
        self.holds = [Hold(address, "storage", rate, 100_000_000, lease_s, BURST)]

    def tick(self) -> None:
        """What the daemon does ten times a second."""
        self.channel.want(self.holds, reach=self.reach)
        self.leases = self.channel.leases()
        self.channel.answer([self.decide(lease) for lease in self.leases])

    def state_of(self, address: str) -> str:
        return next((one.state for one in self.channel.status() if one.address == address), "")

    def connections(self) -> list[int]:
        return [one.number for one in self.channel._connections]

    def close(self) -> None:
        self.channel.close()


def granted(lease: Lease) -> HoldOutcome:
    return HoldOutcome(
        lease.peer, lease.address, lease.number, True, lease.rate_bits_per_s, Reason("leased", "as asked")
    )


def until(condition: Callable[[], T], *brokers: Broker, what: Callable[[], object] = lambda: "it never came") -> T:
    """Let brokers tick until there is something."""

    def look() -> T:
        for broker in brokers:
            broker.tick()
        return condition()

    return wait_until(look, what=what)


def free_port(*hosts: str) -> int:
    """A UDP port that is free on all of these addresses."""
    while True:
        with bound_socket(hosts[0]) as first:
            port = int(first.getsockname()[1])
            with suppress(OSError):
                for host in hosts[1:]:
                    with socket.socket(first.family, socket.SOCK_DGRAM) as other:
                        other.bind((host, port))
                return port


class Rogue:
    """A node of the same engine that says what it likes, with whatever certificate."""

    def __init__(
        self,
        credentials: Credentials,
        trust: Trust,
        *,
        engine: str,
        host: str = A_HOST,
        port: int = 0,
        settings: EngineSettings = SETTINGS,
        run: bytes | None = b"r" * wire.RUN_BYTES,
        said: Mapping[int, object] = MappingProxyType({}),
    ) -> None:
        self.events: list[Event] = []
        self.condition = threading.Condition()
        self.engine = create_engine(engine, settings, self._on_events)
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((host, port))
        hello: dict[int, object] = {HelloKey.NODE: "rogue", **said}
        if run is not None:
            hello[wire.HELLO_RUN] = run
        self.endpoint = self.engine.add_endpoint(sock, credentials=credentials, trust=trust, hello=hello, bulk=False)
        self.numbers = itertools.count(1)

    def _on_events(self, events: Sequence[Event]) -> None:
        with self.condition:
            self.events.extend(events)
            self.condition.notify_all()

    def find(self, kind: type[E]) -> E | None:
        with self.condition:
            return next((event for event in self.events if isinstance(event, kind)), None)

    def count(self, kind: type[E]) -> int:
        with self.condition:
            return sum(isinstance(event, kind) for event in self.events)

    def dial(self, broker: Broker) -> None:
        self.engine.connect(self.endpoint, broker.address, expected_peer=None)

    def met(self, broker: Broker) -> int:
        """Dial, and be connected; the connection's number."""
        self.dial(broker)
        up = until(lambda: self.find(ConnectionUp), broker, what=lambda: self.events)
        assert up is not None
        return up.connection

    def send(self, connection: int, payload: bytes, *, group: str = GROUP) -> int:
        header = Header(kind=Kind.CONTROL, group=group, length=len(payload))
        return self.engine.send(connection, header, memoryview(payload), priority=Priority.CONTROL)

    def answer_of(self, broker: Broker, peer: str) -> wire.Answer:
        """The next answer that comes."""
        operation = self.engine.post(peer, CONTROL, None)

        def come() -> Received | None:
            with self.condition:
                return next(
                    (one for one in self.events if isinstance(one, Received) and one.operation == operation), None
                )

        received = until(come, broker, what=lambda: self.events)
        assert received is not None
        answer = wire.read(bytes(received.payload))
        assert isinstance(answer, wire.Answer)
        return answer

    def down(self, *brokers: Broker) -> ConnectionDown:
        found = until(lambda: self.find(ConnectionDown), *brokers, what=lambda: self.events)
        assert found is not None
        return found

    def close(self) -> None:
        self.engine.close()


__all__ = ["ALL", "A_HOST", "B_HOST", "CONTROL", "LIMIT_S", "Broker", "Cluster", "Rogue", "free_port", "until"]
