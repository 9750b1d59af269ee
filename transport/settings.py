"""What an endpoint may use: addresses, engine, identity, broker. Read once from the environment, checked as a whole."""

from __future__ import annotations

import difflib
import functools
import ipaddress
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hive_qos.errors import ConfigurationError
from hive_qos.text import printable

ENGINES = ("auto", "native", "aioquic")
CONGESTION: Mapping[str, tuple[str, ...]] = {
    "auto": ENGINES, "cubic": ENGINES, "bbr": ("auto", "native")
}  # fmt: skip
"""Congestion controls, and with which engines they go; `auto` finds out when it has chosen one."""
VARIABLES = (
    *("HIVE_LISTEN", "HIVE_PORTS", "HIVE_ADVERTISE", "HIVE_INTERFACE", "HIVE_ENGINE", "HIVE_CONGESTION", "HIVE_JOB"),
    *("HIVE_JOB_SECRET", "HIVE_CA", "HIVE_CERT", "HIVE_KEY", "HIVE_BROKER", "HIVE_SHARED_MEMORY", "HIVE_ALGORITHM"),
    *("HIVE_SITE", "HIVE_INSPECT", "HIVE_TAPE"),
)
JOB_BYTES_MAX = 128
PORTS_MIN, PORT_MAX = 2, 65535
"""Compute and bulk have a socket each."""
SECRET_BYTES_MIN = 16
"""128 bits, where they are random: whoever reads a signed entry can try secrets at home."""
_log = logging.getLogger("transport.settings")


@dataclass(frozen=True)
class Settings:
    """Everything of an endpoint that is not the caller's business. `from_environment` is the usual way to get one.

    Args:
        listen: literal address to bind; "" lets the endpoint find the one that leads to the others.
        ports: UDP ports that its sockets may have: two of a group, ten of a member of a volatile group, which connects
            anew beside what is there. An empty range lets the kernel choose.
        advertise: address to tell the others, where it differs from `listen` (containers, NAT); "" for the same.
        interface: take the addresses of these network interfaces, as in `eth0,eth1`; "" for any.
        engine: `auto` (native where it is built), `native` or `aioquic`.
        congestion: of gradients: `auto` (CUBIC, which on native tolerates random loss), `cubic` or `bbr`
            (native alone).
        job: the job's name, for the broker and in message headers.
        job_secret: authenticates rendezvous entries, with certificates of a CA too; empty for none.
        ca, certificate, key: PEM files of the cluster's CA and of this node; all three or none.
        broker: the session socket, `off`, or None for the usual place.
        dead_after_s: no acknowledgement from a peer for so long means that its connection is lost. None: 5 s, or 2 s
            where both engines are native.
        reconnect_s: a lost connection may be re-made for so long before the peer counts as dead. Together with
            `dead_after_s` below the ten seconds within which everybody knows of a death.
        silence_ends: a peer of which nothing was heard for `dead_after_s` counts as dead at once. Volatile groups have
            it so: who was dead joins again there.
        chunk_bytes: collectives cut their shards into messages of this size, so that sending, reducing and receiving
            overlap. 512 KiB is 105 ms at 40 Mbit/s and 4 ms at 1 Gbit/s; a message costs about 100 bytes of header.
        shared_memory: let native engines of one host and user share memory; off, their messages go over loopback.
        algorithm: of collectives, wherever it can be; "" for the one with the shortest predicted time. The same on all
            ranks.
        site: the name of the place where this rank is, the same for all that share its link to the others; "" lets
            round trips tell. All ranks have one, or it counts for none.
        inspect: listen on a Unix socket, at which `hive-qos job` asks.
        tape: a folder for the tape of each member of a volatile group; "" for none.
        receive_bytes_max: most that a `recv` into nothing allocates on the sender's word. Larger tensors are received
            into memory that the caller provides.
    """

    listen: str = ""
    ports: range = range(0)
    advertise: str = ""
    interface: str = ""
    engine: str = "auto"
    congestion: str = "auto"
    job: str = "job"
    job_secret: bytes = field(default=b"", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = ""
    broker: str | None = None
    dead_after_s: float | None = None
    reconnect_s: float = 2.0
    silence_ends: bool = False
    chunk_bytes: int = 512 * 1024
    shared_memory: bool = True
    algorithm: str = ""
    site: str = ""
    inspect: bool = True
    tape: str = ""
    receive_bytes_max: int = 2**30

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigurationError("HIVE_ENGINE", self.engine, f"one of {', '.join(ENGINES)}")
        if self.congestion not in CONGESTION:
            raise ConfigurationError("HIVE_CONGESTION", self.congestion, f"one of {', '.join(CONGESTION)}")
        if self.engine not in CONGESTION[self.congestion]:
            known = [name for name, engines in CONGESTION.items() if self.engine in engines]
            reason = f"the {self.engine} engine has {', '.join(known)}"
            raise ConfigurationError("HIVE_CONGESTION", self.congestion, reason)
        try:
            fits = len(self.job.encode()) <= JOB_BYTES_MAX
        except UnicodeEncodeError:  # any bytes may stand in the environment
            fits = False
        if not fits:
            raise ConfigurationError("HIVE_JOB", self.job, f"at most {JOB_BYTES_MAX} bytes of UTF-8")
        if 0 < len(self.job_secret) < SECRET_BYTES_MIN:
            reason = f"write at least {SECRET_BYTES_MIN} bytes, as `openssl rand -hex 16` makes them"
            raise ConfigurationError("HIVE_JOB_SECRET", f"{len(self.job_secret)} bytes", reason)
        for field_name in ("listen", "advertise"):
            if address := getattr(self, field_name):
                try:
                    plain = str(ipaddress.ip_address(address))
                except ValueError as error:
                    name, reason = f"HIVE_{field_name.upper()}", "write a literal IPv4 or IPv6 address, without a port"
                    raise ConfigurationError(name, address, reason) from error
                object.__setattr__(self, field_name, plain)  # as others read it: signatures cover its text
        if self.ports and (len(self.ports) < PORTS_MIN or self.ports[0] < 1 or self.ports[-1] > PORT_MAX):
            text = f"{self.ports[0]}-{self.ports[-1]}"
            raise ConfigurationError("HIVE_PORTS", text, f"{PORTS_MIN} ports or more, from 1 to {PORT_MAX}")
        given = {"HIVE_CA": self.ca, "HIVE_CERT": self.certificate, "HIVE_KEY": self.key}
        if any(given.values()):
            for name, path in given.items():
                if not path:
                    raise ConfigurationError(name, path, "HIVE_CA, HIVE_CERT and HIVE_KEY go together")
                if not Path(path).is_file():
                    raise ConfigurationError(name, path, "no such file")

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The names in `interface`."""
        return tuple(name.strip() for name in self.interface.split(",") if name.strip())

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the `HIVE_*` variables of docs/reference/transport.md; those that are not set keep their defaults.

        Raises:
            ConfigurationError: a variable's value cannot work; names it.
        """
        values = os.environ if environment is None else environment
        _look_for_misspelt(tuple(sorted(name for name in values if name.startswith("HIVE_"))))
        if values.get("HIVE_JOB_SECRET") == "":  # as where the file that it is read from is not there
            raise ConfigurationError("HIVE_JOB_SECRET", "", "it is empty: give it the job's secret, or unset it")
        return cls(
            listen=values.get("HIVE_LISTEN", ""),
            ports=_ports(values.get("HIVE_PORTS", "")),
            advertise=values.get("HIVE_ADVERTISE", ""),
            interface=values.get("HIVE_INTERFACE", ""),
            engine=values.get("HIVE_ENGINE", "") or "auto",
            congestion=values.get("HIVE_CONGESTION", "") or "auto",
            job=values.get("HIVE_JOB", "") or "job",
            job_secret=os.fsencode(values.get("HIVE_JOB_SECRET", "")),
            ca=values.get("HIVE_CA", ""),
            certificate=values.get("HIVE_CERT", ""),
            key=values.get("HIVE_KEY", ""),
            broker=values.get("HIVE_BROKER") or None,
            shared_memory=_switch("HIVE_SHARED_MEMORY", values.get("HIVE_SHARED_MEMORY", "")),
            algorithm=values.get("HIVE_ALGORITHM", ""),
            site=values.get("HIVE_SITE", ""),
            inspect=_switch("HIVE_INSPECT", values.get("HIVE_INSPECT", "")),
            tape=values.get("HIVE_TAPE", ""),
        )


@functools.cache
def _look_for_misspelt(names: tuple[str, ...]) -> None:
    """Warn of what is nearly one of ours: other programs have variables that begin alike."""
    for name in names:
        if name not in VARIABLES and (meant := difflib.get_close_matches(name, VARIABLES, 1, cutoff=0.8)):
            _log.warning("%s is no setting, and is ignored: %s is one", printable(name), meant[0])


def _switch(name: str, text: str) -> bool:
    if text not in ("", "on", "off"):
        raise ConfigurationError(name, text, "one of on, off")
    return text != "off"


def _ports(text: str) -> range:
    """Read "first-last", or "" as none."""
    if not text:
        return range(0)
    if (found := re.fullmatch("([0-9]{1,5})-([0-9]{1,5})", text)) is None or int(found[1]) > int(found[2]):
        raise ConfigurationError("HIVE_PORTS", text, "write the first and the last one, as in 4200-4219")
    return range(int(found[1]), int(found[2]) + 1)
