"""A running link: change its rate, delay and loss while traffic flows, cut it, read its counters."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hive_qos.errors import ConfigurationError
from tools.lab import wire
from tools.lab.kernel import LabError, ip_batch, qdiscs, tc_batch
from tools.lab.model import NO_SINGLE_FRAMES, LinkSpec, check_delay, check_loss, check_rate
from tools.lab.plan import LinkPlan
from tools.lab.spoil import Spoiling

if TYPE_CHECKING:
    from tools.lab.lab import Lab

_RELAY_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class LinkCounters:
    """One direction of a link since the lab came up.

    Args:
        bytes: that left the queue, Ethernet header included (14 a frame), as the rate counts them.
        packets: frames that left the queue; a lump (`LinkSpec.offload`) counts as the frames that it stands for.
        drops: frames, or whole lumps, that found the queue full.
        backlog_bytes: in the queue now.
        lost: frames taken by random loss (0 with netem, which counts them as drops).
    """

    bytes: int
    packets: int
    drops: int
    backlog_bytes: int
    lost: int


class Link:
    """A link of a lab that is up. Both directions change together.

    Every setter checks its value (ConfigurationError) and raises LabError when the kernel refuses.
    """

    def __init__(self, lab: Lab, name: str) -> None:
        self._lab = lab
        self.name = name

    @property
    def spec(self) -> LinkSpec:
        """As declared; what was set since is in `rate_bits_per_s` and the like."""
        return self._plan.spec

    @property
    def ends(self) -> tuple[str, str]:
        """The names of both nodes."""
        return self.spec.first, self.spec.second

    @property
    def medium(self) -> wire.Medium:
        """What carries it: veth, netem or relay."""
        return self._lab.medium_of(self.name)

    @property
    def rate_bits_per_s(self) -> int | None:
        """The rate that the kernel has now; None for no limit."""
        rate = int(self._buckets()[0]["options"]["rate"]) * 8
        return None if rate >= wire.RATE_BITS_PER_S_UNLIMITED else rate

    @property
    def buffer_bytes(self) -> int:
        """The queue's length, the same at every rate."""
        return self._lab.limit_bytes_of(self.name)

    def set_rate(self, rate_bits_per_s: int | None) -> None:
        """Change the rate of both directions at once; frames in the queue stay, and its length in bytes too."""
        check_rate(f"link.{self.name}.rate", rate_bits_per_s)
        limit_bytes = self._lab.limit_bytes_of(self.name, first_rate_bits_per_s=rate_bits_per_s)
        medium = self.medium
        lines = [
            wire.tbf(device, medium=medium, verb="change", rate_bits_per_s=rate_bits_per_s, limit_bytes=limit_bytes)
            for device in wire.shaping_devices(self._plan, medium)
        ]
        tc_batch(lines, namespace=self._lab.wires)

    def set_delay(self, delay_s: float) -> None:
        """Change the propagation delay, each way. Frames under way keep the delay that they left with."""
        check_delay(f"link.{self.name}.delay", delay_s)
        self._set_path(delay_s=delay_s)

    def set_loss(self, loss: float) -> None:
        """Change the share of frames lost at random, each way; 1.0 cuts the link and keeps the carrier."""
        check_loss(f"link.{self.name}.loss", loss)
        if loss and self.spec.offload:
            raise ConfigurationError(f"link.{self.name}.loss", loss, NO_SINGLE_FRAMES)
        self._set_path(loss=loss)

    def set_spoiling(self, spoiling: Spoiling) -> None:
        """Double, hold up, cut or spoil shares of the UDP datagrams, each way, on a link that the relay carries."""
        if self.spec.offload:
            raise ConfigurationError(f"link.{self.name}.spoiling", spoiling, NO_SINGLE_FRAMES)
        if self.medium != "relay":
            reason = f'{self.medium} carries it; declare it with carrier="relay"'
            raise ConfigurationError(f"link.{self.name}.spoiling", spoiling, reason)
        self._lab.relay_request({"op": "set", "link": self.name, "spoiling": asdict(spoiling)})

    def spoiled(self) -> dict[str, dict[str, int]]:
        """How many datagrams were spoiled since the lab came up, by the sending node and `Spoiling`'s field."""
        lanes = self._lab.relay_request({"op": "status"})["links"][self.name]
        return {end: lane["spoiled"] for end, lane in zip(self.ends, lanes, strict=True)}

    def down(self) -> None:
        """Unplug both ends: both nodes lose the carrier."""
        ip_batch(
            [f"link set {end.wire} down" for end in (self._plan.first, self._plan.second)], namespace=self._lab.wires
        )

    def up(self) -> None:
        """Plug both ends in again."""
        ip_batch(
            [f"link set {end.wire} up" for end in (self._plan.first, self._plan.second)], namespace=self._lab.wires
        )

    def counters(self) -> dict[str, LinkCounters]:
        """Both directions, by the name of the sending node."""
        lost = [0, 0]
        if self.medium == "relay":
            status = self._lab.relay_request({"op": "status"})["links"][self.name]
            lost = [lane["lost_frames"] + lane["overrun_frames"] for lane in status]
        return {
            end: LinkCounters(
                bytes=bucket["bytes"],
                packets=bucket["packets"],
                drops=bucket["drops"],
                backlog_bytes=bucket["backlog"],
                lost=lost_frames,
            )
            for end, bucket, lost_frames in zip(self.ends, self._buckets(), lost, strict=True)
        }

    def path(self) -> tuple[float, float]:
        """Delay in seconds and loss as they are now, each way."""
        if self.medium == "relay":
            lane = self._lab.relay_request({"op": "status"})["links"][self.name][0]
            return lane["delay_s"], lane["loss"]
        if self.medium == "netem":
            options = self._qdisc("1:")[0]["options"]
            return options["delay"]["delay"], options.get("loss-random", {}).get("loss", 0.0)
        return 0.0, 0.0

    def _set_path(self, *, delay_s: float | None = None, loss: float | None = None) -> None:
        medium = self.medium
        if medium == "veth":
            if not delay_s and not loss:
                return
            key, value = ("delay", delay_s) if delay_s else ("loss", loss)
            reason = 'this link was made without delay and loss; declare it with carrier="relay" (or "netem")'
            raise ConfigurationError(f"link.{self.name}.{key}", value, reason)
        if medium == "relay":
            change = {"delay_s": delay_s, "loss": loss}
            wanted = {key: value for key, value in change.items() if value is not None}
            self._lab.relay_request({"op": "set", "link": self.name, **wanted})
            return
        delay_now_s, loss_now = self.path()
        lines = [
            wire.netem(
                device,
                verb="change",
                delay_s=delay_s if delay_s is not None else delay_now_s,
                loss=loss if loss is not None else loss_now,
            )
            for device in wire.shaping_devices(self._plan, medium)
        ]
        tc_batch(lines, namespace=self._lab.wires)

    @property
    def _plan(self) -> LinkPlan:
        return next(link for link in self._lab.plan.links if link.spec.name == self.name)

    def _buckets(self) -> list[dict[str, Any]]:
        return self._qdisc("2:")

    def _qdisc(self, handle: str) -> list[dict[str, Any]]:
        found = {qdisc["dev"]: qdisc for qdisc in qdiscs(self._lab.wires) if qdisc.get("handle") == handle}
        devices = wire.shaping_devices(self._plan, self.medium)
        if not all(device in found for device in devices):
            raise LabError(f"link {self.name}: qdisc {handle} is gone from {' or '.join(devices)}")
        return [found[device] for device in devices]


def ask_relay(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Send one request to the relay that listens at `path` and return its answer.

    Raises:
        LabError: no relay there, or it refuses; with its words.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_RELAY_TIMEOUT_S)
        try:
            connection.connect(str(path))
            connection.send(json.dumps(request).encode())
            answer: dict[str, Any] = json.loads(connection.recv(1 << 20))
        except (OSError, ValueError) as error:
            raise LabError(f"the relay does not answer: {error}") from error
    if not answer["ok"]:
        raise LabError(f"the relay refuses {request['op']}: {answer['error']}")
    return answer
