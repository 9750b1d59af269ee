"""What this host looks like to somebody who writes its first configuration: uplinks, storage programs, GPUs, people.

Reads /proc, /sys and /run, and the kernel's routes: it sends nothing and needs no privilege. What it cannot see it
leaves out, and the written file says so.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.enforce.device_stack import Layers, read
from broker.policy.known_programs import KNOWN_PROGRAMS
from hive_qos.errors import HiveError
from hive_qos.netlink import NetlinkSocket
from shaping.netlink.routes import WideRoute, wide_routes

RULES_MAX = 16  # a quarter of what a file may have
_TUNNELS = ("wireguard", "tun", "ppp")
_EVERYWHERE = (("IPv4", "0.0.0.0/0", ("0.0.0.0/1", "128.0.0.0/1")), ("IPv6", "::/0", ("::/1", "8000::/1")))
_SERVICE = re.compile(r"[^/]+\.service$")
_TEMPLATED = re.compile(r"/[^/]+@[^/]*\.service$")


@dataclass(frozen=True)
class Uplink:
    """One interface through which packets leave for elsewhere.

    Args:
        name: the interface to shape.
        why: how it was chosen, in a sentence or two.
        driver_bits_per_s: the speed that its driver names, None where it names none.
    """

    name: str
    why: str
    driver_bits_per_s: int | None


@dataclass(frozen=True)
class Survey:
    """The findings.

    Args:
        uplinks: the best first; empty where there is no default route.
        programs: known storage programs by the name that `programs` takes, each with what shows that it is here.
        storage: cgroups of services that run such a program under another name, each with that program.
        gpu: what shows that there is one, "" where nothing does.
        desktop: whether somebody has a screen here.
        timezone: the host's, "UTC" where it names none.
        notes: on what else matters, such as a VPN.
    """

    uplinks: tuple[Uplink, ...]
    programs: tuple[tuple[str, str], ...] = ()
    storage: tuple[tuple[str, str], ...] = ()
    gpu: str = ""
    desktop: bool = False
    timezone: str = "UTC"
    notes: tuple[str, ...] = ()


def look_at_host(root: Path = Path("/"), *, routes: Sequence[WideRoute] | None = None) -> Survey:
    """Look at the host whose files lie below `root`; None asks the kernel for its routes."""
    sys = root / "sys/class/net"
    defaults = _default_routes(_routes() if routes is None else routes)
    programs, services = _storage(root)
    uplinks: dict[str, Uplink] = {}
    for device, families in defaults.items():
        found = _uplink(device, families, defaults, sys)
        uplinks.setdefault(found.name, found)
    return Survey(
        uplinks=tuple(uplinks.values()),
        programs=programs,
        storage=services,
        gpu=_gpu(root),
        desktop=any(_listed(root / "tmp/.X11-unix")) or any((root / "run/user").glob("*/wayland-*")),
        timezone=_timezone(root),
        notes=_vpns(sys, uplinks),
    )


def _routes() -> tuple[WideRoute, ...]:
    with contextlib.suppress(HiveError, OSError), contextlib.closing(NetlinkSocket()) as netlink:
        return wide_routes(netlink)
    return ()


def _default_routes(routes: Sequence[WideRoute]) -> dict[str, tuple[str, ...]]:
    """The interfaces of the default routes, the smallest metric first, with their families.

    VPNs leave the default route as it is and put two of half the addresses before it. Where there is one, their own
    packets leave by it, and it counts alone.
    """
    by_destination: dict[str, list[WideRoute]] = {}
    for one in sorted(routes, key=lambda one: one.metric):
        by_destination.setdefault(one.destination, []).append(one)
    found = [(family, by_destination.get(whole, ())) for family, whole, _ in _EVERYWHERE]
    if not any(whole for _, whole in found):
        found = [
            (family, [one for half in halves for one in by_destination[half]])
            for family, _, halves in _EVERYWHERE
            if all(half in by_destination for half in halves)
        ]
    devices: dict[str, tuple[str, ...]] = {}
    for family, through in found:
        for device in (name for one in through for name in one.interfaces):
            if family not in devices.get(device, ()):
                devices[device] = (*devices.get(device, ()), family)
    return devices


def _uplink(device: str, families: tuple[str, ...], others: dict[str, tuple[str, ...]], sys: Path) -> Uplink:
    layers = read(device, sys=sys) or Layers(device, "", None, (), ())
    name, why = device, f"the default route leads there ({' and '.join(families)})"
    match layers.kind:
        case "bridge":
            ports = [port for port in layers.lower if (sys / port / "device").exists()]
            if ports:
                name = ports[0]
                why = f"the port of the bridge {device} that leads out: what virtual machines send passes it, too"
        case "bond" | "team":
            why += f"; the bond of {', '.join(layers.lower)}: shaped as one, not its ports"
        case "vlan":
            parent = next(iter(layers.lower), "")
            siblings = (read(parent, sys=sys) or layers).upper
            if len(siblings) > 1:
                name = parent
                why = f"carries the VLANs {', '.join(siblings)}, shaped together; rules on ports do not see inside"
            else:
                why += f"; a VLAN of {parent}: rules on ports work here, and not on its parent"
        case kind if kind in _TUNNELS and kind != "ppp":
            below = [one for one in _physical(sys) if one not in others]
            if below:
                name = below[0]
                why = f"the VPN {device} has the default route, and its packets leave through here"
    return Uplink(name, why, _driver_rate(sys / name))


def _vpns(sys: Path, uplinks: dict[str, Uplink]) -> tuple[str, ...]:
    """Tunnels beside the uplinks: what they carry is seen outside as packets to one address."""
    names = [
        name for name in sorted(_listed(sys))
        if name not in uplinks and (layers := read(name, sys=sys)) is not None and _is_tunnel(sys / name, layers)
    ]  # fmt: skip
    if not names or not uplinks:
        return ()
    through = ", ".join(uplinks)
    text = (
        f"{', '.join(names)}: a VPN. Its packets leave through {through}, encrypted: there only the tunnel's own port "
        "tells them. Shape the tunnel instead where its traffic has to be told apart, never both."
    )
    return (text,)


def _is_tunnel(place: Path, layers: Layers) -> bool:
    return layers.kind == "wireguard" or ((place / "tun_flags").exists() and layers.master is None)


def _physical(sys: Path) -> list[str]:
    return [
        name for name in sorted(_listed(sys))
        if (sys / name / "device").exists() and _text(sys / name / "operstate") != "down"
    ]  # fmt: skip


def _driver_rate(place: Path) -> int | None:
    """What the driver says, in bits per second. Wireless and unplugged ones say nothing; virtual ones invent a rate."""
    text = _text(place / "speed") if (place / "device").exists() else ""
    return int(text) * 1_000_000 if text.isascii() and text.isdigit() and int(text) > 0 else None


def _storage(root: Path) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Storage programs that run here or are installed as services, and other services that run one."""
    programs: dict[str, str] = {}
    services: dict[str, str] = {}
    by_process = {process: name for name, one in KNOWN_PROGRAMS.items() for process in one.processes}
    for pid in sorted(int(pid) for pid in _listed(root / "proc") if pid.isdigit()):
        place = root / "proc" / str(pid)
        name = by_process.get(_text(place / "comm"))
        if name is None:
            continue
        cgroup = _service(place, root)
        if KNOWN_PROGRAMS[name].ports or cgroup in KNOWN_PROGRAMS[name].cgroups:
            programs.setdefault(name, "runs now")
        if cgroup and cgroup not in KNOWN_PROGRAMS[name].cgroups:
            services.setdefault(cgroup, name)
    folders = [root / folder for folder in ("etc/systemd/system", "usr/lib/systemd/system")]
    for name, one in KNOWN_PROGRAMS.items():
        if any((folder / unit).exists() for unit in one.units for folder in folders):
            programs.setdefault(name, "installed as a service")
    return tuple(sorted(programs.items())), tuple(services.items())[:RULES_MAX]


def _service(process: Path, root: Path) -> str:
    """The cgroup of the service that a process is; "" of one that somebody, or a service such as cron, has started.

    All services of one template (ceph-osd@3) share a slice: that is named.
    """
    parents = [line.split()[1] for line in _lines(process / "status") if line.startswith("PPid:")]
    if not parents or _text(root / "proc" / parents[0] / "comm") != "systemd":
        return ""
    lines = [line.removeprefix("0::/") for line in _lines(process / "cgroup") if line.startswith("0::/")]
    path = lines[0] if lines else ""
    if not path.isprintable() or not _SERVICE.search(path):
        return ""
    return _TEMPLATED.sub("", path) if path.startswith("system.slice/system-") else path


def _gpu(root: Path) -> str:
    gpus = len(_listed(root / "proc/driver/nvidia/gpus"))
    if gpus:
        return f"{gpus} NVIDIA GPU{'s' if gpus > 1 else ''}"
    if (root / "dev/nvidia0").exists():
        return "an NVIDIA GPU"
    return "an AMD GPU with ROCm" if (root / "dev/kfd").exists() else ""


def _timezone(root: Path) -> str:
    name = _text(root / "etc/timezone")
    if not name:
        with contextlib.suppress(OSError):
            name = os.readlink(root / "etc/localtime").partition("zoneinfo/")[2]
    return name if re.fullmatch(r"[A-Za-z0-9_+/-]{1,64}", name) else "UTC"


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # not there, not ours to read, or ended meanwhile; the driver's EINVAL for `speed`
        return ""


def _listed(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
