"""Faults: what goes wrong with a broker, its disk and its link while training, storage and people use the link.

Two scenes: the sender's own link, and the way in of a host to which others without brokers store, so that its kernel
shapes what arrives on an IFB. Each fault has a block of its own: everything runs for a while, the fault happens,
everything is watched, what is broken is mended as an operator or systemd would, and everything is watched again.

Where the same can go wrong without a broker it does, for comparison: the cable, and an IFB of a fixed tree.
"""

from __future__ import annotations

import contextlib
import errno
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shaping.kernel import RealKernel
from shaping.model.names import INNER_MINOR
from tools.brokerbench import scenes
from tools.brokerbench.run import Run
from tools.brokerbench.scenarios.shares import JOB, counters_of, payload_bytes
from tools.brokerbench.scenes import Scene
from tools.brokerbench.stage import Job, Stage
from tools.brokerbench.variants import HERE
from tools.measure import fixed_inbound
from tools.measure.programs import environment
from tools.measure.wall_clock import HALF_PAST_TWELVE_S, HOUR_S, OFFICE_HOURS, WallClock

SCENARIO = "faults"
BEFORE_S, BROKEN_S, AFTER_S = 4.0, 4.0, 4.0
CARRIER_LOST_S = 1.0
DEAF_S = 2.0
"""With the IFB of a fixed tree nothing arrives any more: less than what training's connections outlive."""
HOLD_WITHIN_S, HOLD_RATE_SHARE = 12.0, 0.4
"""Storage is held back for bursts while a queue may stand elsewhere: after a cut, which a slower link brings about."""

RIGHT_WITHIN_S, POLL_S = 20.0, 0.02
NOT_HELD = {"not_tried": f"storage was not held back within {HOLD_WITHIN_S:g} s"}
DISK_BYTES = 96 * 2**20
REDIRECTED = re.compile(r"mirred \(Egress Redirect to device (hqifb\d+)\)")
"""What tc says of a filter that leads to a device which is there."""

Fault = Callable[["_Faults"], Mapping[str, Any]]


def measure(run: Run) -> None:
    """One block a fault."""
    sender, inbound = scenes.sender(run.settings, name=SCENARIO), scenes.inbound(run.settings, name=f"{SCENARIO}-in")
    with run.guarded(SCENARIO, "all at the sender"):
        _at(
            run,
            sender,
            host="a",
            watch=sender.target_address,
            faults={
                "killed in a hold": ("brokered", _Faults.killed),
                "link down and up": ("brokered", _Faults.carrier_lost),
                "link down and up, no broker": ("none", _Faults.carrier_lost),
                "disk full": ("brokered", _Faults.disk_full),
                "second broker": ("brokered", _Faults.second_broker),
                "clock set back": ("brokered", _Faults.clock_set_back),
            },
        )
    with run.guarded(SCENARIO, "all on the way in"):
        _at(
            run,
            inbound,
            host="b",
            watch=inbound.lab["r"].address_on("b"),
            faults={
                "ingress device deleted": (f"brokered{HERE}", _Faults.ingress_device_deleted),
                "ingress device deleted, no broker": (f"static{HERE}", _Faults.fixed_device_deleted),
            },
        )


def _at(run: Run, scene: Scene, *, host: str, watch: str, faults: Mapping[str, tuple[str, Fault]]) -> None:
    """The faults of one scene, which happen to one host, from where people ask an address."""
    settings = run.settings
    job = Job(name=JOB, compute_s=settings.compute_s, payload_bytes=payload_bytes(settings, scene.rate_bits_per_s))

    def prepare(stage: Stage, stack: contextlib.ExitStack) -> None:
        stack.enter_context(_disk(stage.brokers.seats[host].directory))

    left = dict(faults)
    try:
        with Stage(scene, settings, jobs=[job], watch=(host, watch), prepare=prepare) as stage:
            for name, (condition, fault) in faults.items():
                if not run.in_time:
                    run.write("failure", SCENARIO, what=name, error="no time was left")
                else:
                    with run.guarded(SCENARIO, name):
                        _block(run, stage, host, name, condition, fault)
                del left[name]
    except Exception as error:
        for name in left:  # each is a goal of its own
            run.write("failure", SCENARIO, what=name, error=f"its stage failed: {error}")
        raise


def _block(run: Run, stage: Stage, host: str, name: str, condition: str, fault: Fault) -> None:
    try:
        stage.enter(condition)
        stage.train(BEFORE_S)
        stage.forget()
        begin_s = time.monotonic()
        found = dict(fault(_Faults(stage, host)))
        end_s = time.monotonic()
        stage.rest()
        seen = stage.seen()
    finally:
        stage.lab.links[stage.scene.bottleneck].set_rate(stage.scene.rate_bits_per_s)
        stage.leave(condition)
        tag = f"{SCENARIO}-{name.replace(' ', '-').replace(',', '')}"
        decided = run.keep_decisions(stage, tag=tag)
    if "not_tried" in found:
        run.write("not-tried", SCENARIO, condition=name, why=found["not_tried"])
        return
    run.write(
        "block", SCENARIO, condition=name, begin_s=begin_s, end_s=end_s, found=found,
        counters=counters_of(stage.scene), decisions=decided, **seen,
    )  # fmt: skip
    run.say(f"{SCENARIO}: {name}: {found}")


class _Faults:
    """The faults, on a stage where everything runs. Each says what it found, with the time of what it did."""

    def __init__(self, stage: Stage, host: str) -> None:
        self._stage, self._host = stage, stage.lab[host]

    def killed(self) -> Mapping[str, Any]:
        """kill -9 while storage waits for a burst; nobody starts it again for a while."""
        stage = self._stage
        if not self._until_storage_is_held():
            return NOT_HELD
        at_s = time.monotonic()
        stage.brokers.kill(self._host.name)
        stage.train(1.0)
        ceil_bits_per_s = self._ceil_of_storage()
        stage.train(BROKEN_S)
        return {"at_s": at_s, "ceil_after_1_s": ceil_bits_per_s, **self._started_again()}

    def carrier_lost(self) -> Mapping[str, Any]:
        """Somebody pulls the plug, and puts it back."""
        link = self._stage.lab.links[self._stage.scene.bottleneck]
        link.down()
        self._stage.wait(CARRIER_LOST_S)
        at_s = time.monotonic()
        link.up()
        right_s = self._seconds_until_right(at_s) if self._stage.brokers.pids else None
        self._stage.train(BROKEN_S + AFTER_S)
        return {"at_s": at_s, "right_s": right_s}

    def disk_full(self) -> Mapping[str, Any]:
        """The disk of state and recording fills up; then the broker is killed, and started on the full disk."""
        stage, seat = self._stage, self._stage.brokers.seats[self._host.name]
        filler = seat.directory / "filler"
        at_s = time.monotonic()
        _fill(filler)
        try:
            stage.train(BROKEN_S)
            answers = stage.brokers.status(self._host.name) is not None
            stage.brokers.kill(self._host.name)
            stage.train(1.0)
            again = self._started_again()
        finally:
            filler.unlink()
        stage.train(AFTER_S)
        return {"at_s": at_s, "answers_on_full_disk": answers, **again}

    def second_broker(self) -> Mapping[str, Any]:
        """The same command a second time; the first must not notice."""
        seat, at_s = self._stage.brokers.seats[self._host.name], time.monotonic()
        program = Path(sys.executable).with_name("hive-qos")
        argv = [str(program), "broker", "--config", str(seat.directory / "broker.toml")]
        second = self._host.popen(argv, env=environment(), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        due_s = time.monotonic() + RIGHT_WITHIN_S
        while second.poll() is None and time.monotonic() < due_s:
            self._stage.train(0.1)
        if second.poll() is None:
            second.kill()
        words = second.communicate()[0].decode(errors="replace").strip().splitlines()
        right_s = self._seconds_until_right(at_s)
        self._stage.train(AFTER_S)
        return {"at_s": at_s, "exit_code": second.returncode, "words": words[-1:], "right_s": right_s}

    def ingress_device_deleted(self) -> Mapping[str, Any]:
        """Somebody deletes the device through which what comes in is shaped; the daemon runs on."""
        stage = self._stage
        due_s = time.monotonic() + RIGHT_WITHIN_S
        while (device := self._shaped_through()) is None:
            if time.monotonic() > due_s:
                return {"not_tried": f"nothing that comes in was shaped within {RIGHT_WITHIN_S:g} s"}
            stage.train(POLL_S)
        stage.train(BEFORE_S)  # it stands: what is made and deleted at once is made again after a second
        at_s = time.monotonic()
        self._host.run(["ip", "link", "del", device])
        due_s = at_s + RIGHT_WITHIN_S
        while not (right := self._shaped_through() is not None) and time.monotonic() < due_s:
            stage.train(POLL_S)
        right_s = time.monotonic() - at_s if right else None
        stage.train(BROKEN_S + AFTER_S)
        return {"at_s": at_s, "right_s": right_s}

    def fixed_device_deleted(self) -> Mapping[str, Any]:
        """The same where an administrator made the device; he is quick, and takes his tree away."""
        at_s = time.monotonic()
        self._host.run(["ip", "link", "del", fixed_inbound.DEVICE])
        self._stage.train(DEAF_S)
        fixed_inbound.remove(self._stage.lab, self._host.name, interface=self._host.interface)
        self._stage.train(BROKEN_S + AFTER_S)
        return {"at_s": at_s, "right_s": None}

    def clock_set_back(self) -> Mapping[str, Any]:
        """The daemon's wall clock goes back by an hour in a hold, forward again, and back before its next start."""
        stage, seat = self._stage, self._stage.brokers.seats[self._host.name]
        clock = WallClock(seat.directory)
        clock.set_to(HALF_PAST_TWELVE_S)
        file = seat.directory / "broker.toml"
        usual = file.read_text()
        try:
            file.write_text(usual + OFFICE_HOURS + "weight = 2\n")
            stage.brokers.kill(self._host.name)
            self._started_again(more=clock.environment)
            in_hours = clock.behind_s
            if not self._until_storage_is_held():
                return NOT_HELD
            at_s = time.monotonic()
            clock.set_back(in_hours + HOUR_S)
            back_s = self._seconds_until_in_force([])
            stage.train(BROKEN_S)
            clock.set_back(in_hours)
            forward_s = self._seconds_until_in_force(["office hours"])
            stage.train(BROKEN_S)
            stage.brokers.kill(self._host.name)
            clock.set_back(in_hours + HOUR_S)
            again = self._started_again(more=clock.environment)
            followed = {"back": back_s, "forward": forward_s, "back again": self._seconds_until_in_force([])}
        finally:
            file.write_text(usual)
        return {"at_s": at_s, "schedule_followed_s": followed, **again}

    def _until_storage_is_held(self) -> bool:
        """A slower link brings it about; False where it does not come."""
        stage = self._stage
        stage.lab.links[stage.scene.bottleneck].set_rate(int(HOLD_RATE_SHARE * stage.scene.rate_bits_per_s))
        due_s = time.monotonic() + HOLD_WITHIN_S
        while not (held := self._storage_is_held()) and time.monotonic() < due_s:
            stage.train(POLL_S)
        return held

    def _seconds_until_in_force(self, schedules: list[str]) -> float | None:
        """Until the daemon says that these hold."""
        since_s = time.monotonic()
        while (took_s := time.monotonic() - since_s) < RIGHT_WITHIN_S:
            status = self._stage.brokers.status(self._host.name)
            if status and [each["name"] for each in status["schedules"]] == schedules:
                return took_s
            self._stage.train(POLL_S)
        return None

    def _started_again(self, more: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Start the daemon, and say how long it took until its tree and its word were right.

        Args:
            more: of its environment.
        """
        started_s = time.monotonic()
        self._stage.brokers.start([self._host.name], more=more)
        right_s = self._seconds_until_right(started_s)
        self._stage.brokers.wait_for_sessions([self._host.name])
        sessions_s = time.monotonic() - started_s
        self._stage.train(AFTER_S)
        return {"started_at_s": started_s, "right_s": right_s, "sessions_s": sessions_s}

    def _seconds_until_right(self, since_s: float) -> float | None:
        """Until the daemon answers, knows its interface's capacity and reads its counters, and the tree is its own."""
        due_s = time.monotonic() + RIGHT_WITHIN_S
        while time.monotonic() < due_s:
            status = self._stage.brokers.status(self._host.name)
            if status and _is_right(status) and "htb ffe0:" in self._root():
                return time.monotonic() - since_s
            self._stage.train(POLL_S)
        return None

    def _root(self, device: str | None = None) -> str:
        words = ["tc", "qdisc", "show", "dev", device or self._host.interface, "root"]
        return self._host.run(words, check=False).stdout

    def _shaped_through(self) -> str | None:
        """The device to which what comes in is led and on which our tree is; None where it comes in unshaped."""
        hook = self._host.run(["tc", "filter", "show", "dev", self._host.interface, "ingress"]).stdout
        found = REDIRECTED.search(hook)
        return found[1] if found and "htb ffe0:" in self._root(found[1]) else None

    def _storage_is_held(self) -> bool:
        status = self._stage.brokers.status(self._host.name)
        classes = status["interfaces"][0]["classes"] if status and status["interfaces"] else []
        return any(each["name"] == "storage" and each["reason"]["code"] == "yields-to-burst" for each in classes)

    def _ceil_of_storage(self) -> int:
        """As the kernel has it, in bits per second; 0 where there is no such class."""
        with self._host.enter(), contextlib.closing(RealKernel()) as kernel:
            tree = kernel.observe(self._host.interface)
        ceils = [spec.ceil_bits_per_s for spec in tree.classes if spec.minor == INNER_MINOR["storage"]] if tree else []
        return ceils[0] if ceils else 0


def _is_right(status: Mapping[str, Any]) -> bool:
    interfaces = status["interfaces"]
    codes = {alarm["code"] for alarm in status["alarms"]}
    bad = {"interface-missing", "counters-stale", "counters-unreadable", "apply-failed", "watchdog-missing"}
    return bool(interfaces) and interfaces[0]["capacity_bits_per_s"] > 0 and not codes & bad


@contextlib.contextmanager
def _disk(directory: Path) -> Iterator[None]:
    """A small file system of its own for a broker's directory, with what is in it."""
    kept = {path.name: path.read_text() for path in directory.iterdir() if path.is_file()}
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "tmpfs", str(directory)], check=True)
    try:
        for name, text in kept.items():
            (directory / name).write_text(text)
        (directory / "state").mkdir(mode=0o755)
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def _fill(path: Path) -> None:
    """Write until there is no room left."""
    chunk = bytes(2**20)
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while file.write(chunk[:size]):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
