"""The relay process: carries frames between pairs of TAP devices with delay and loss, where the kernel has no netem.

One process and one loop for all links of a lab. It runs inside the lab's wires namespace, makes the TAP devices there
(they vanish with it), and takes orders on a Unix socket, one JSON object a packet:

    {"op": "add", "link": "a-r", "taps": ["t1a", "t1b"], "delay_s": 0.002, "loss": 0.0, "seed": 1, "offload": false}
    {"op": "set", "link": "a-r", "delay_s": 0.01}            any of delay_s, loss, spoiling (`spoil.Spoiling`'s fields)
    {"op": "status"}

and answers {"ok": true, ...} or {"ok": false, "error": "..."}.

Waking up costs more than carrying a frame (20 us against 15), so while frames are under way the loop does not wait
for each: it sleeps one tick and then does all that has come due. A frame that is found after a tick arrived half a
tick ago on average, and one that is due within the next half is sent now; so a delay is right on average and off by
at most one tick. A tick is a tenth of the shortest delay, within 0.2 and 0.5 ms. An idle relay waits without ticks.

A link that offloads carries lumps: what TCP or UDP hands to the device in one piece of up to 64 KiB is one read and one
write, behind a header that says how to cut it and which checksum is to be made (struct virtio_net_hdr of
linux/virtio_net.h), and that passes unread. Nothing is dropped or spoiled at random there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

from hive_qos.errors import ConfigurationError
from tools.lab.delay import DelayLine
from tools.lab.model import LUMP_BYTES_MAX
from tools.lab.spoil import Spoiler, Spoiling

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_TCP = 0x01 | 0x02 | 0x04 | 0x08
"""CSUM, TSO4, TSO6 and TSO_ECN of linux/if_tun.h: lumps of TCP, and checksums that are still to be made."""
_TUN_F_UDP = 0x20 | 0x40
"""USO4 and USO6, from Linux 6.2: lumps of UDP. Without them the kernel cuts these before the device."""
_PR_SET_TIMERSLACK = 29
_BATCH_FRAMES = 64
"""Frames read from one device before the others get their turn: about 0.3 ms of work, or 2 ms of whole lumps."""
_TICK_S_MIN, _TICK_S_MAX = 0.0002, 0.0005
_FRAME_BYTES_MAX = 2048
"""MTU 1500 and headers, rounded up; a TAP device cuts longer frames."""


@dataclass(slots=True)
class _Lane:
    """One direction: read here, spoil, hold, write there."""

    link: str
    target_fd: int
    piece_bytes_max: int
    line: DelayLine
    spoiler: Spoiler


class Relay:
    """The loop. `serve` returns only by an exception or a signal."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._clients: dict[int, socket.socket] = {}
        self._lanes: dict[int, _Lane] = {}
        self._every_lane: list[_Lane] = []
        self._tick_s = _TICK_S_MIN
        self._busy = False
        self._epoll = select.epoll()
        self._epoll.register(listener, select.EPOLLIN)

    def serve(self) -> None:
        """Carry frames for ever."""
        poll, monotonic, sleep = self._epoll.poll, time.monotonic, time.sleep
        now_s = monotonic()
        half_s = self._tick_s / 2
        while True:
            if self._busy:
                sleep(self._tick_s)
                ready, before_s = poll(0), now_s
                now_s = monotonic()
                # Ticks last longer than asked for by what a timer and the work take: go by what they really last.
                half_s += ((now_s - before_s) / 2 - half_s) / 16
                arrived_s = now_s - half_s
            else:
                ready = poll()
                arrived_s = now_s = monotonic()
            for fd, _ in ready:
                lane = self._lanes.get(fd)
                if lane is None:
                    self._control(fd)
                else:
                    _read_all(fd, lane, arrived_s=arrived_s)
            self._busy = False
            until_s = now_s + min(half_s, _TICK_S_MAX)
            for lane in self._every_lane:
                if lane.line.next_due_s is not None:
                    _write_due(lane, now_s=until_s)
                    self._busy = self._busy or lane.line.next_due_s is not None

    def _control(self, fd: int) -> None:
        if fd == self._listener.fileno():
            client, _ = self._listener.accept()
            self._clients[client.fileno()] = client
            self._epoll.register(client, select.EPOLLIN)
            return
        client = self._clients[fd]
        try:
            packet = client.recv(65536)
            if packet:
                client.send(json.dumps(self._answer(packet)).encode())
                return
        except OSError:
            pass  # the asker went away in the middle: nothing to tell it
        del self._clients[fd]
        self._epoll.unregister(fd)
        client.close()

    def _answer(self, packet: bytes) -> dict[str, Any]:
        try:
            request = json.loads(packet)
            match request["op"]:
                case "add":
                    self._add(request)
                    return {"ok": True}
                case "set":
                    self._set(request)
                    return {"ok": True}
                case "status":
                    return {"ok": True, "links": self._status(), "cpu_s": time.process_time()}
                case other:
                    return {"ok": False, "error": f"no such operation {other!r}"}
        except (ConfigurationError, ValueError, KeyError, TypeError, OSError) as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def _add(self, request: dict[str, Any]) -> None:
        offload = request["offload"]
        one, two = (open_tap(name, offload=offload) for name in request["taps"])
        for part, (source, target) in enumerate(((one, two), (two, one))):
            seed = request["seed"] * 2 + part
            line = DelayLine(delay_s=request["delay_s"], loss=request["loss"], seed=seed)
            piece_bytes_max = LUMP_BYTES_MAX if offload else _FRAME_BYTES_MAX
            self._lanes[source] = _Lane(request["link"], target, piece_bytes_max, line, Spoiler(seed=seed))
            self._epoll.register(source, select.EPOLLIN)
        self._changed()

    def _set(self, request: dict[str, Any]) -> None:
        lanes = [lane for lane in self._lanes.values() if lane.link == request["link"]]
        if not lanes:
            raise KeyError(request["link"])
        spoiling = Spoiling(**request["spoiling"]) if "spoiling" in request else None
        for lane in lanes:
            lane.line.delay_s = float(request.get("delay_s", lane.line.delay_s))
            lane.line.loss = float(request.get("loss", lane.line.loss))
            lane.spoiler.spoiling = spoiling or lane.spoiler.spoiling
        self._changed()

    def _changed(self) -> None:
        self._every_lane = list(self._lanes.values())
        shortest_s = min(lane.line.delay_s for lane in self._every_lane)
        self._tick_s = min(_TICK_S_MAX, max(_TICK_S_MIN, shortest_s / 10))

    def _status(self) -> dict[str, list[dict[str, Any]]]:
        links: dict[str, list[dict[str, Any]]] = {}
        for lane in self._lanes.values():  # in order of adding: from the first end, then from the second
            line = lane.line
            links.setdefault(lane.link, []).append(
                {
                    "delay_s": line.delay_s,
                    "loss": line.loss,
                    "sent_frames": line.sent_frames,
                    "lost_frames": line.lost_frames,
                    "overrun_frames": line.overrun_frames,
                    "queued_bytes": line.queued_bytes,
                    "spoiled": lane.spoiler.done,
                }
            )
        return links


def _read_all(fd: int, lane: _Lane, *, arrived_s: float) -> None:
    push, piece_bytes_max = lane.line.push, lane.piece_bytes_max
    spoiler = None if lane.spoiler.idle else lane.spoiler
    try:
        for _ in range(_BATCH_FRAMES):
            frame = os.read(fd, piece_bytes_max)
            for one in (frame,) if spoiler is None else spoiler.pass_on(frame):
                push(one, now_s=arrived_s)
    except BlockingIOError:
        pass  # the device has no more: the ordinary end of a batch


def _write_due(lane: _Lane, *, now_s: float) -> None:
    pop_due, fd = lane.line.pop_due, lane.target_fd
    while (frame := pop_due(now_s=now_s)) is not None:
        try:
            os.write(fd, frame)
        except OSError as error:
            # EIO: the device is down, a cut link; EINVAL: a lump whose header the kernel refuses. Both are lost.
            if error.errno not in (errno.EIO, errno.EINVAL):
                raise


def open_tap(name: str, *, offload: bool = False) -> int:
    """Make a TAP device in the namespace of this process and return its non-blocking descriptor.

    Args:
        offload: what is read and written has a header of 10 bytes (struct virtio_net_hdr) before it, and is a lump of
            up to 64 KiB where it came as one.
    """
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = _IFF_TAP | _IFF_NO_PI | (_IFF_VNET_HDR if offload else 0)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        if offload:
            _take_lumps(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _take_lumps(fd: int) -> None:
    try:
        fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_TCP | _TUN_F_UDP)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_TCP)


def hurry() -> None:
    """Run ahead of the machine's other work where that is allowed: a late relay is a wrong delay. Brokers have
    real-time priority 1, and a network does not wait for them."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
    except OSError:
        with contextlib.suppress(OSError):
            os.nice(-15)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def main() -> None:
    """`python -m tools.lab.relay SOCKET`: listen there, and say so by a line on standard output."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(sys.argv[1])
    listener.listen(8)
    hurry()
    print("ready", flush=True)
    Relay(listener).serve()


if __name__ == "__main__":
    main()
