"""An address to listen at, as it is written in `broker.toml`: a literal address and a port."""

from __future__ import annotations

import ipaddress


def read_listen(value: object, *, default_port: int | None = None) -> str | None:
    """The address with its port written out, IPv6 in brackets; None for what is no such thing.

    Args:
        value: as it stands in the file, e.g. "127.0.0.1:8710" or "[::1]:8710".
        default_port: of an address without one; None demands a port.
    """
    if not isinstance(value, str):
        return None
    host, port = value, ""
    if (value.endswith("]") or value.count(":") > 1) and not value.startswith("["):
        pass  # IPv6 without brackets has no port
    elif not value.endswith("]") and ":" in value:
        host, _, port = value.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        found = ipaddress.ip_address(host)
        number = int(port) if port.isascii() and port.isdigit() else (default_port or 0) if not port else 0
    except ValueError:
        return None
    if not 0 < number < 65536:
        return None
    return f"[{found}]:{number}" if found.version == 6 else f"{found}:{number}"


def address_and_port(listen: str) -> tuple[str, int]:
    """The two parts of what `read_listen` gave."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)
