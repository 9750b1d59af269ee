"""A side of a benchmark that runs PyTorch's Gloo: `send`/`recv` between two ranks, over plain TCP.

Rank 0 sends. Several messages are under way at once where the order says so, each with a tag of its own; tags are
taken in turn, for both sides must know them beforehand. A flow ends with messages of zeros, one for each that the
receiver waits for.
"""

from __future__ import annotations

import argparse
import datetime
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from tools.bench.programs.conversation import Begun, Order, serve
from tools.bench.programs.samples import Samples

ANSWER_TAG, PING_TAG, BULK_FLAG_TAG, BULK_TAG, FLOW_TAG = 2, 3, 4, 5, 16
TIMEOUT = datetime.timedelta(seconds=60)


class GlooSide:
    """The handlers of this program's orders; rank 0 is the sender of everything."""

    def __init__(self, rank: int) -> None:
        self._rank, self._other = rank, 1 - rank

    def join(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Meet the other side."""
        begun()
        where = f"tcp://{order['address']}:{order['port']}"
        dist.init_process_group("gloo", init_method=where, rank=self._rank, world_size=2, timeout=TIMEOUT)
        return {"torch": torch.__version__}

    def send(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Keep `outstanding` messages under way for `seconds` or `bytes_max`, then end every receive."""
        payload = torch.full((order["message_bytes"],), 0x5A, dtype=torch.uint8)
        places, samples, under_way, step = order["outstanding"] + 1, Samples(), deque[dist.Work](), 0
        begun()
        end_s = time.monotonic() + order["seconds"]
        while time.monotonic() < end_s and step * payload.numel() < order["bytes_max"]:
            under_way.append(_work(dist.isend(payload, self._other, tag=FLOW_TAG + step % places)))
            step += 1
            if len(under_way) >= order["outstanding"]:
                under_way.popleft().wait()
                samples.add(payload.numel())
        samples.stop()
        for work in under_way:
            work.wait()
            samples.add(payload.numel())
        found, end = samples.result(), torch.zeros_like(payload)
        for _ in range(places):
            dist.send(end, self._other, tag=FLOW_TAG + step % places)
            step += 1
        return found

    def receive(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Take a flow, one receive more posted ahead than the sender has under way; sleep first for `sleep_s`."""
        places, step = order["outstanding"] + 1, 0
        buffers = [torch.zeros(order["message_bytes"], dtype=torch.uint8) for _ in range(places)]
        samples = Samples()

        def post(place: int) -> dist.Work:
            return _work(dist.irecv(buffers[place], self._other, tag=FLOW_TAG + place))

        begun()
        time.sleep(order["sleep_s"])
        posted = deque(map(post, range(places)))
        while True:
            posted.popleft().wait()
            if not buffers[step % places][0]:
                break
            samples.add(order["message_bytes"])
            posted.append(post(step % places))
            step += 1
        found = samples.result()
        for work in posted:
            work.wait()
        return found

    def ping(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Round trips of each size in turn; with `bulk_bytes`, while that much flows to the same peer."""
        sizes = order["sizes"]
        trips: dict[str, list[float]] = {str(size): [] for size in sizes}
        out = {size: torch.ones(size, dtype=torch.uint8) for size in sizes}
        back = {size: torch.zeros(size, dtype=torch.uint8) for size in sizes}
        stop, flowing = threading.Event(), {"bytes": 0.0}
        bulk = threading.Thread(target=self._bulk_out, args=(order, stop, flowing))
        if order["bulk_bytes"]:
            bulk.start()
            time.sleep(order["bulk_lead_s"])
        begin_s, number = time.monotonic(), 0
        while time.monotonic() - begin_s < order["seconds"]:
            size = sizes[number % len(sizes)]
            started_s = time.perf_counter()
            dist.send(out[size], self._other, tag=PING_TAG)
            dist.recv(back[size], self._other, tag=ANSWER_TAG)
            trips[str(size)].append(time.perf_counter() - started_s)
            number += 1
            time.sleep(order["pause_s"])
        stop.set()
        if order["bulk_bytes"]:
            bulk.join()
        dist.send(torch.zeros(sizes[number % len(sizes)], dtype=torch.uint8), self._other, tag=PING_TAG)
        return {"round_trips_s": trips, "bulk": flowing if order["bulk_bytes"] else None}

    def echo(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Send back what comes, up to zeros: Gloo cannot receive "whatever comes next or the end"."""
        sizes, number = order["sizes"], 0
        buffers = {size: torch.zeros(size, dtype=torch.uint8) for size in sizes}
        bulk = threading.Thread(target=self._bulk_in, args=(order,))
        if order["bulk_bytes"]:
            bulk.start()
        begun()
        while True:
            buffer = buffers[sizes[number % len(sizes)]]
            dist.recv(buffer, self._other, tag=PING_TAG)
            if not buffer[0]:
                break
            dist.send(buffer, self._other, tag=ANSWER_TAG)
            number += 1
        if order["bulk_bytes"]:
            bulk.join()
        return {"answered": number}

    def _bulk_out(self, order: Order, stop: threading.Event, flowing: dict[str, float]) -> None:
        payload = torch.full((order["bulk_message_bytes"],), 0x5A, dtype=torch.uint8)
        left, begin_s = order["bulk_bytes"] // payload.numel(), time.monotonic()
        while left and not stop.is_set():
            dist.send(torch.ones(1, dtype=torch.uint8), self._other, tag=BULK_FLAG_TAG)
            dist.send(payload, self._other, tag=BULK_TAG)
            flowing["bytes"] += payload.numel()
            left -= 1
        flowing |= {"exhausted": float(not left), "seconds": time.monotonic() - begin_s}
        dist.send(torch.zeros(1, dtype=torch.uint8), self._other, tag=BULK_FLAG_TAG)

    def _bulk_in(self, order: Order) -> None:
        buffer = torch.zeros(order["bulk_message_bytes"], dtype=torch.uint8)
        flag = torch.zeros(1, dtype=torch.uint8)
        while True:
            dist.recv(flag, self._other, tag=BULK_FLAG_TAG)
            if not flag.item():
                return
            dist.recv(buffer, self._other, tag=BULK_TAG)


def _work(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise RuntimeError("this rank is not in the group")
    return work


def main() -> None:
    """`python -m tools.bench.programs.gloo --rank N`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    side = GlooSide(parser.parse_args().rank)
    serve({name: getattr(side, name) for name in ("join", "send", "receive", "ping", "echo")})


if __name__ == "__main__":
    main()
