"""The scenarios of one flow: over loopback, over a fast link, over a slow lossy one."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tools.bench import contenders, iperf
from tools.bench.pairs import Flow, Pair
from tools.bench.place import Place, loopback, of_host
from tools.bench.settings import FRAMES, MIB, OFFLOAD, OFFLOAD_DELAY
from tools.bench.turns import Measure, Run, lab_up
from tools.lab import Lab


def measure_of(flow: Flow, *, warm_up_s: float, rate_bits_per_s: int | None) -> Measure:
    """One flow is one record."""

    def measure(pair: Pair) -> Sequence[Mapping[str, Any]]:
        return [record(pair, flow, warm_up_s=warm_up_s, rate_bits_per_s=rate_bits_per_s)]

    return measure


def record(pair: Pair, flow: Flow, *, warm_up_s: float, rate_bits_per_s: int | None) -> dict[str, Any]:
    """Let one flow run, and give what is kept of it."""
    return {"kind": "flow", "warm_up_s": warm_up_s, "rate_bits_per_s": rate_bits_per_s, **pair.flow(flow)}


@contextmanager
def tcp_beside(first: Place, second: Place, *, seconds: float, log: Path) -> Generator[dict[str, Any]]:
    """A TCP flow on the same link from now on; what it carried is in the record, as `beside`, once it has ended."""
    found: dict[str, Any] = {}
    with ThreadPoolExecutor(1) as pool:
        tcp = pool.submit(iperf.measure, first, second, seconds=seconds, congestion="cubic", log=log)
        yield found
        found["beside"] = tcp.result()["receiver"]["samples"]


def loopback_flows(run: Run) -> None:
    """1: one connection over loopback, ordinary and large packets."""
    settings = run.settings
    flow = Flow(seconds=settings.loopback_s, bytes_max=settings.flow_bytes_max, message_bytes=4 * MIB, outstanding=3)
    measure = measure_of(flow, warm_up_s=settings.warm_up_s, rate_bits_per_s=None)
    with ExitStack() as stack:
        pairs = run.pairs(stack, "loopback", contenders.LOOPBACK, loopback("a"), loopback("b"))
        run.turns("loopback", "loopback", pairs, measure, repetitions=settings.repetitions, lab=None)


def lan_flows(run: Run) -> None:
    """2: one connection over a fast link, cut into frames by the hosts' processors and by their network cards.

    The lab's links take single frames, and their work for each (82,000 a second) is done in the sender's name. With
    segmentation offload, as every network card has it, the lab moves lumps and the processes are left with their own;
    and the lab's relay, which could not carry so many frames, carries so many lumps: that link has a delay, too.
    """
    settings = run.settings
    flow = Flow(seconds=settings.lan_s, bytes_max=settings.flow_bytes_max, message_bytes=2 * MIB, outstanding=4)
    measure = measure_of(flow, warm_up_s=settings.warm_up_s, rate_bits_per_s=settings.lan_bits_per_s)
    for case, offload, delay_s in (
        (FRAMES, False, 0.0),
        (OFFLOAD, True, 0.0),
        (OFFLOAD_DELAY, True, settings.lan_delay_s),
    ):
        lab = Lab("bench-lan")
        two_hosts(lab)
        rate_bits_per_s, buffer_s = settings.lan_bits_per_s, settings.lan_buffer_s
        lab.link("a", "b", rate_bits_per_s=rate_bits_per_s, delay_s=delay_s, buffer_s=buffer_s, offload=offload)
        with lab_up(lab), ExitStack() as stack:
            pairs = run.pairs(stack, "lan", contenders.LAN, *ends(lab))
            run.turns("lan", case, pairs, measure, repetitions=settings.repetitions, lab=lab)


def lossy_flows(run: Run) -> None:
    """3: one connection over a slow link with delay, at each rate of random loss."""
    settings = run.settings
    lab = Lab("bench-loss")
    two_hosts(lab)
    link = lab.link("a", "b", rate_bits_per_s=settings.loss_bits_per_s, delay_s=settings.loss_delay_s, buffer_s=0.05)
    # 16 messages of 256 KiB are 4 MiB: the link's 1 MB of delay, its queue of 1.25 MB, and as much again.
    flow = Flow(seconds=settings.loss_s, bytes_max=settings.flow_bytes_max, message_bytes=MIB // 4, outstanding=16)
    measure = measure_of(flow, warm_up_s=2 * settings.warm_up_s, rate_bits_per_s=settings.loss_bits_per_s)
    with lab_up(lab), ExitStack() as stack:
        pairs = run.pairs(stack, "loss", contenders.LOSS, *ends(lab))
        for loss in settings.losses:
            link.set_loss(loss)
            case = f"{100 * loss:g} % loss"
            run.turns("loss", case, pairs, measure, repetitions=settings.loss_repetitions, lab=lab)


def two_hosts(lab: Lab) -> None:
    """Hosts a and b, with what most hosts use, whatever this machine's default is."""
    for name in ("a", "b"):
        lab.host(name, congestion="cubic")


def ends(lab: Lab) -> tuple[Place, Place]:
    """The places of hosts a and b."""
    return of_host(lab["a"]), of_host(lab["b"])
