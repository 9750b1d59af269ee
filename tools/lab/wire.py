"""The commands that make a link, as text for `ip -batch` and `tc -batch`. Pure.

All links of a lab run through one namespace of their own, the wires, so that neither hosts nor routers carry a qdisc
of ours. A frame that enters the wires is passed on (ingress, u32 match-all, mirred) to the device where it leaves,
and the root qdisc of that device is the link in this direction:

    veth    first -- w1a  >>  w1b[TBF] -- second
    netem   first -- w1a  >>  w1b[netem[TBF]] -- second
    relay   first -- w1a  >>  t1a[TBF] ~~ relay: delay, loss ~~ t1b  >>  w1b -- second

Passing on is "mirror, then drop", not "redirect": the copy no longer belongs to the sending socket. With a redirect
the sender would feel the queue of the link through its send buffer (a socket's memory is freed when the frame is
sent), as no host feels a queue in the network, and TCP would never fill the buffer.

Segmentation offload is off on all these devices, unless the link is declared with it: a token bucket and a byte limit
count frames as a wire would. With it they count every frame's header still (the kernel knows how many frames a lump
stands for), let a lump pass whole that fits the bucket, and cut a larger one.
No limit is a token bucket of 100 Gbit/s, so that a rate can be set later with `change`, which keeps the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tools.lab.model import LinkSpec
from tools.lab.plan import LinkPlan

Medium = Literal["veth", "netem", "relay"]

RATE_BITS_PER_S_UNLIMITED = 100_000_000_000
LIMIT_BYTES_UNLIMITED = 16 * 2**20
"""A queue without a rate hardly builds; 16 MiB takes a burst of many senders."""

LIMIT_BYTES_MIN = 3_200
"""Two full Ethernet frames and headers: with less, nothing larger than a frame's gap could ever be sent."""

BURST_S = 0.003
"""The bucket holds 3 ms at the rate: a timer that fires 2 ms late on a busy machine costs no throughput."""

_INDEX_FIRST = 1000
"""Above every index in the wires namespace, which counts from 1."""

NETEM_FRAMES_MAX = 200_000
"""Frames in flight in netem: 1 Gbit/s of small frames at 100 ms fit."""


def choose_medium(spec: LinkSpec, *, has_netem: bool) -> Medium:
    """What carries this link: see `model.Carrier`."""
    if spec.carrier != "auto":
        return spec.carrier
    if spec.delay_s == 0 and spec.loss == 0:
        return "veth"
    return "netem" if has_netem else "relay"


def buffer_bytes(spec: LinkSpec, *, first_rate_bits_per_s: int | None) -> int:
    """The queue's length: the stated bytes, or the stated time at the first rate that the link had."""
    if spec.buffer_bytes is not None:
        return spec.buffer_bytes
    if first_rate_bits_per_s is None:
        return LIMIT_BYTES_UNLIMITED
    return max(LIMIT_BYTES_MIN, int(first_rate_bits_per_s * spec.buffer_s / 8))


def shaping_devices(link: LinkPlan, medium: Medium) -> tuple[str, str]:
    """The devices whose qdisc is the link: for frames from the first end, then from the second."""
    return link.taps if medium == "relay" else (link.second.wire, link.first.wire)


def tbf(device: str, *, medium: Medium, verb: str, rate_bits_per_s: int | None, limit_bytes: int) -> str:
    """One `tc` line that adds or changes the token bucket of one direction."""
    rate = rate_bits_per_s if rate_bits_per_s is not None else RATE_BITS_PER_S_UNLIMITED
    burst = max(LIMIT_BYTES_MIN, int(rate * BURST_S / 8))
    where = "parent 1:1" if medium == "netem" else "root"
    return f"qdisc {verb} dev {device} {where} handle 2: tbf rate {rate}bit burst {burst} limit {limit_bytes}"


def netem(device: str, *, verb: str, delay_s: float, loss: float) -> str:
    """One `tc` line that adds or changes delay and loss where the kernel does them."""
    delay = f"delay {round(delay_s * 1e6)}us"
    return f"qdisc {verb} dev {device} root handle 1: netem limit {NETEM_FRAMES_MAX} {delay} loss {loss * 100:.6f}%"


def pass_on(source: str, target: str) -> list[str]:
    """`tc` lines by which whatever comes in at `source` goes out at `target`."""
    return [
        f"qdisc add dev {source} ingress",
        f"filter add dev {source} parent ffff: protocol all prio 1 u32 match u32 0 0"
        f" action mirred egress mirror dev {target} drop",
    ]


def tc_lines(link: LinkPlan, medium: Medium, *, limit_bytes: int) -> list[str]:
    """All `tc` lines of a new link, for the wires namespace; the TAP devices of a relay have to be there."""
    spec, lines = link.spec, []
    for device in shaping_devices(link, medium):
        if medium == "netem":
            lines.append(netem(device, verb="add", delay_s=spec.delay_s, loss=spec.loss))
        lines.append(
            tbf(device, medium=medium, verb="add", rate_bits_per_s=spec.rate_bits_per_s, limit_bytes=limit_bytes)
        )
    one, two = link.first.wire, link.second.wire
    if medium == "relay":
        tap_one, tap_two = link.taps
        pairs = [(one, tap_one), (tap_two, two), (two, tap_two), (tap_one, one)]
    else:
        pairs = [(one, two), (two, one)]
    for source, target in pairs:
        lines += pass_on(source, target)
    return lines


def veth_lines(link: LinkPlan, *, namespaces: Mapping[str, str], wires: str) -> list[str]:
    """`ip` lines that plug both ends into the wires; run from any namespace.

    The index has to differ from the peer's: the kernel notices the carrier of a device that seems to be linked to
    itself up to a second later (`linkwatch_urgent_event` compares the two numbers across namespaces).
    """
    index = _INDEX_FIRST + link.number
    return [
        f"link add name {end.name} index {index} address {end.mac} netns {namespaces[end.node]}"
        f" type veth peer name {end.wire} netns {wires}"
        for end in (link.first, link.second)
    ]
