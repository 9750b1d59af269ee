"""Brokers that talk to each other: a CA and a certificate for each host, and what their configuration says of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tools.lab import Lab
from transport.identity import ca_init, ca_issue


def issue(directory: Path, lab: Lab, hosts: Iterable[str]) -> Path:
    """Make a CA, and a broker's certificate for each host that names its address. Gives their directory."""
    ca_init(directory)
    for host in hosts:
        ca_issue(directory, host, role="broker", addresses=[lab[host].address], out=directory)
    return directory


def section(directory: Path, host: str) -> str:
    """A host's `[peers]`."""
    return f"""
[peers]
listen = "0.0.0.0:4710"
ca = "{directory}/ca.crt"
certificate = "{directory}/{host}.crt"
key = "{directory}/{host}.key"
"""
