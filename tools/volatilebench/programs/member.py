"""A member: trains as it is told, and writes down each meeting; or serves the register; or evaluates what was kept."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import torch
from torch._C._distributed_c10d import TCPStore

from hive_qos.errors import EvictedError
from tools.bench.programs.conversation import Begun, Order, cpu_s, serve
from tools.collectivesbench.programs.training import Task
from tools.measure.sampler import parse_interfaces
from tools.volatilebench.programs import stepper, tasks
from tools.volatilebench.programs.trainings import Ddp, Training, Volatile
from tools.volatilebench.settings import TOKENS
from transport.volatile.steps import Committed


class Member:
    """The handlers of this program's orders."""

    def __init__(self) -> None:
        self._store: TCPStore | None = None

    def serve_register(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Be the register of all jobs until the end; gives its port."""
        self._store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        return {"port": self._store.port}

    def train(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """Train; a line in `record` after each `every` steps, or after each meeting.

        Who is out of reach when the others end has ended, too.

        Args:
            order: `backend`, or `kind` and `options` of the algorithm; `store` (host, port), `job`; `rank`, `world`,
                `name`, `members_min`; `gather`, how many to wait for after `every` steps, or 0; `task`, `seed`,
                `every`, `steps`, `step_s`, `seconds_max`; `until`, a file that says when to end, which may come later,
                or ""; `record`, `each_meeting`; `snapshots` (a folder), `snapshot_every`.
        """
        begin_cpu_s = cpu_s()
        task = tasks.task_of(order["task"], order["seed"])
        optimizer = torch.optim.AdamW(task.model.parameters(), lr=task.learning_rate)
        training: Training = Ddp(order, task.model) if order["backend"] else Volatile(order, task.model, optimizer)
        with Path(order["record"]).open("a", encoding="utf-8") as out:
            try:
                _train(order, task, optimizer, training, begun, out)
            except EvictedError as error:
                _write(out, error=type(error).__name__, t_s=time.monotonic())
                if time.monotonic() < _until_s(order):
                    raise
        return {"cpu_s": cpu_s() - begin_cpu_s}

    def evaluate(self, order: Order, begun: Begun) -> Mapping[str, Any]:
        """The loss of each of `paths`, snapshots of a task."""
        task = tasks.task_of(order["task"], order["seed"])
        losses = []
        for path in order["paths"]:
            tasks.put(task.model, torch.load(path, weights_only=True))
            losses.append(tasks.evaluated(order["task"], task, order["seed"]))
        return {"losses": losses}


def _until_s(order: Order) -> float:
    path = Path(order["until"])
    return float(path.read_text(encoding="ascii")) if order["until"] and path.exists() else math.inf


def _train(
    order: Order, task: Task, optimizer: torch.optim.Optimizer, training: Training, begun: Begun, out: TextIO
) -> None:
    """From joining to the end."""
    asked_s = time.monotonic()
    with training.together(order):
        begun()
        begin_s = time.monotonic()
        _write(out, joined=True, asked_s=asked_s, t_s=begin_s, sent_bytes=_sent_bytes())
        losses: list[float] = []
        for step in range(1, order["steps"] + 1):
            step_end_s, before = time.monotonic() + order["step_s"], training.last
            loss = tasks.loss_of(task, training.model, seed=order["seed"], step=step, rank=order["rank"])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            losses.append(loss.item())
            time.sleep(max(0.0, step_end_s - time.monotonic()))
            with training.step(TOKENS[order["task"]]):
                optimizer.step()
            now_s = time.monotonic()
            counted = step % order["every"] == 0
            ends = step == order["steps"] or now_s > _until_s(order)
            if counted and not order["until"]:  # else the store, which a cut link takes out of reach, is not asked
                ends = training.ends(step, late=now_s - begin_s > order["seconds_max"]) or ends
            if step == order["every"] and order["gather"]:
                training.gather(order["gather"])  # a member lets others in when it meets, so not before
            if ends and not order["until"]:
                training.end()
            met = training.last if order["each_meeting"] and training.last is not before else None
            met = met if met and met.members else None  # or it was left out, and has taken the others' state
            if counted or ends or met is not None:
                line = {"t_s": now_s, "step": step, "loss": sum(losses) / len(losses), "sent_bytes": _sent_bytes()}
                losses.clear()
                _write(
                    out,
                    **line,
                    **(_commit(training, met) if met is not None else {}),
                    **_kept(order, line, training, met),
                )
            if ends:
                break


def _commit(training: Training, met: Committed) -> dict[str, Any]:
    """Who met, and what all of them have to hold alike."""
    assert training.group is not None, "only members of a group meet"
    return {
        "run": training.group.view.run,
        "commit": met.step,
        "members": [one.name for one in met.members],
        "attempts": met.attempts,
        "digest": training.group.digest.hex(),
        "weights": hashlib.blake2b(training.held().numpy().tobytes(), digest_size=16).hexdigest(),
    }


def _kept(order: Order, line: Mapping[str, Any], training: Training, met: Committed | None) -> dict[str, Any]:
    """Keep the parameters, where it is this member's turn: the first one of a meeting, else the first rank."""
    mine = met.members[0].name == order["name"] if met is not None else order["rank"] == 0
    if order["each_meeting"] and met is None:
        return {}
    number = line["step"] if met is None else met.step
    if not mine or number % order["snapshot_every"]:
        return {}
    path = Path(order["snapshots"]) / f"{number}.pt"
    torch.save(training.held(), path)
    return {"kept": str(path)}


def _sent_bytes() -> int:
    """What this host's interface has sent, headers included."""
    counters = parse_interfaces(Path("/proc/net/dev").read_text(encoding="ascii"))
    return counters[os.environ["HIVE_INTERFACE"]][2]


def _write(out: TextIO, **line: Any) -> None:
    out.write(json.dumps(line) + "\n")
    out.flush()


def main() -> None:
    """`python -m tools.volatilebench.programs.member`: carry out orders until standard input ends."""
    torch.set_num_threads(1)
    member = Member()
    serve(
        {
            "serve_register": member.serve_register,
            "train": member.train,
            "evaluate": member.evaluate,
            "steps": stepper.steps,
            "fetch": stepper.fetch,
        }
    )


if __name__ == "__main__":
    main()
