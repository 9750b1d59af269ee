"""The lab's own dealings with the kernel: command batches, entering namespaces, offloads, and what the kernel has.

Commands of iproute2 run in sessions of their own, so that a Ctrl-C at the terminal never cuts one in half.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hive_qos.errors import HiveError

NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_COMMAND_TIMEOUT_S = 30.0
_CARRIER_TIMEOUT_S = 5.0

_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40

_SIOCETHTOOL = 0x8946
_SEGMENTATION = (0x1F, 0x24, 0x2C, 0x17)
"""ETHTOOL_STSO, _SGSO, _SGRO, _STXCSUM (linux/ethtool.h): what makes frames larger than the MTU."""


class LabError(HiveError):
    """The lab could not do what was asked: a command failed or a part is missing. The text has the command's words."""

    code = "lab"


def command_path() -> str:
    """PATH with the directories of `ip` and `tc`, which an ordinary user's may lack."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"


def command(argv: list[str], *, input_text: str | None = None) -> str:
    """Run a short command to its end and return its output.

    Raises:
        LabError: it is not installed, failed, or took over 30 s.
    """
    try:
        done = subprocess.run(
            argv,
            input=input_text,
            env={**os.environ, "PATH": command_path()},
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise LabError(f"{argv[0]} is not installed (Debian: apt install iproute2)") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(argv)}: no end after {_COMMAND_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def ip_batch(lines: Iterable[str], *, namespace: str | None = None) -> None:
    """Run `ip` lines in one process, in `namespace` or where the caller is; stops at the first that fails."""
    _batch(["ip", *(["-n", namespace] if namespace else [])], list(lines))


def tc_batch(lines: Iterable[str], *, namespace: str) -> None:
    """Run `tc` lines in one process in `namespace`; stops at the first that fails."""
    _batch(["tc", "-n", namespace], list(lines))


def qdiscs(namespace: str) -> list[dict[str, Any]]:
    """Every qdisc in `namespace` with its statistics, as `tc -s -j` gives them."""
    found: list[dict[str, Any]] = json.loads(command(["tc", "-n", namespace, "-s", "-j", "qdisc", "show"]) or "[]")
    return found


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """The calling thread is in `namespace` inside the block: sockets it makes and /proc/sys/net are that one's.

    Raises:
        LabError: there is no such namespace, or no privilege to enter it.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            there = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise LabError(f"no namespace {namespace}: {error.strerror}") from error
        try:
            _setns(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _setns(home)
    finally:
        os.close(home)


def set_sysctls(values: Mapping[str, str], *, namespace: str) -> None:
    """Write `net.*` values in `namespace`. A dot inside a part (a device's name) is not supported.

    Raises:
        LabError: the kernel has no such key or refuses the value.
    """
    with entered(namespace):
        for key, value in values.items():
            try:
                Path("/proc/sys", *key.split(".")).write_text(value)
            except OSError as error:
                raise LabError(f"sysctl {key}={value} in {namespace}: {error.strerror}") from error


def segmentation_off(devices: Iterable[str], *, namespace: str, gso_max_segs: int = 1) -> None:
    """Make `devices` carry frames of at most their MTU, with checksums, as a wire does (ethtool -K ... off).

    TCP builds frames of up to 64 KiB all the same and has them cut below the queueing discipline, unless the device
    says that it takes one segment: at 20 Mbit/s such a frame keeps a host's own queue busy for 26 ms.

    Args:
        gso_max_segs: how many segments the devices say that they take.
    """
    _set_segmentation(devices, namespace=namespace, on=False, segments_max=gso_max_segs)


def segmentation_on(devices: Iterable[str], *, namespace: str) -> None:
    """Let `devices` carry frames of up to 64 KiB, as between a host and a network card that cuts and joins them.

    For measuring what a host's processor does: rates still count every frame's header (the kernel knows how many
    frames a large one stands for), but queues and buckets move in lumps of up to 64 KiB.
    """
    _set_segmentation(devices, namespace=namespace, on=True, segments_max=65535)


def _set_segmentation(devices: Iterable[str], *, namespace: str, on: bool, segments_max: int) -> None:
    devices = list(devices)
    ip_batch([f"link set dev {device} gso_max_segs {segments_max}" for device in devices], namespace=namespace)
    with entered(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for device in devices:
            for operation in _SEGMENTATION:
                value = ctypes.create_string_buffer(struct.pack("II", operation, int(on)))
                request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
                try:
                    fcntl.ioctl(control, _SIOCETHTOOL, request)
                except OSError as error:
                    raise LabError(f"offload {operation:#x} of {device} in {namespace}: {error.strerror}") from error


def wait_until_running(devices: Iterable[str], *, namespace: str) -> None:
    """Return when `devices` carry frames: after plugging in, the kernel takes some milliseconds to notice the carrier.

    Raises:
        LabError: not within 5 s.
    """
    deadline_s = time.monotonic() + _CARRIER_TIMEOUT_S
    with entered(namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for device in devices:
            while not _flags(control, device) & _IFF_RUNNING:
                if time.monotonic() > deadline_s:
                    raise LabError(f"{device} in {namespace} has no carrier after {_CARRIER_TIMEOUT_S:g} s")
                time.sleep(0.002)


def has_netem() -> bool:
    """Whether this kernel takes a netem qdisc: tried for real, in a namespace that is gone afterwards.

    The probe runs in the namespace of a child process (`unshare --net`), so that no name is left behind by any crash.
    """
    probe = f"hqp{uuid.uuid4().hex[:6]}"
    lines = f"link add {probe} type dummy\n"
    script = ["unshare", "--net", "sh", "-c", f"ip -batch - && tc qdisc add dev {probe} root netem delay 1ms"]
    try:
        command(script, input_text=lines)
    except LabError:
        return False
    return True


def _batch(argv: list[str], lines: list[str]) -> None:
    if not lines:
        return
    try:
        command([*argv, "-batch", "-"], input_text="\n".join(lines) + "\n")
    except LabError as error:
        failed = re.search(r"Command failed -:(\d+)", str(error))
        if failed is None:
            raise
        raise LabError(f"{' '.join(argv)} {lines[int(failed[1]) - 1]}: {error.args[0]}") from error


def _flags(control: socket.socket, device: str) -> int:
    answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16s24x", device.encode()))
    return int(struct.unpack("16xH22x", answer)[0])


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise LabError(f"cannot enter a network namespace: {os.strerror(number)}")
