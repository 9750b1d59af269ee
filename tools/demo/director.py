"""The run itself: network, programs, phases in turn, records; and everything gone at the end, however it ends.

Between phases the trainers wait at a step boundary (the process group lives) while the conditions change; within a
phase nothing waits: the link loses half its rate between two steps.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from hive_qos import __version__
from hive_qos.errors import HiveError
from tools.checkout import read_checkout
from tools.demo import fixed, network, storage
from tools.demo import report as reports
from tools.demo.network import Network
from tools.demo.plan import Block, make_plan
from tools.demo.records import Recorder, read
from tools.demo.screen import Screen
from tools.demo.settings import Settings
from tools.demo.trainers import HOSTS, start_trainer
from tools.lab import Lab
from tools.measure.brokers import Brokers, configuration, group_of
from tools.measure.crew import Crew, MeasureError
from tools.measure.fixed import remove
from tools.measure.programs import close_input, python, start
from tools.measure.surroundings import terminated_like_interrupted, work_directory
from tools.measure.usage import cpu_seconds, relays
from transport.engine import find_engine

FLOOD_S = 1.5
"""Storage has the link to itself for so long before a flooded phase begins: TCP has left slow start."""

STATUS_EVERY_S = 0.5
SOURCE_BYTES = 16_000_000
"""Of files that each rsync copies again and again: a few seconds of the link."""

DAEMON_START_S = 1.0

STEPS_MAX = 1_000_000
"""Of a block, which its seconds end: this is never reached."""


def run(settings: Settings, output: Path, screen: Screen) -> None:
    """Do one run and leave its records in `output`.

    Raises:
        HiveError: a part failed; the records up to there are written, with an `end` event that says what.
        KeyboardInterrupt: Ctrl-C or SIGTERM; everything is taken down first.
    """
    with Recorder(output.resolve()) as recorder, terminated_like_interrupted():
        try:
            with work_directory("hq-demo-") as work, Lab("demo") as lab:
                _Run(settings, recorder, screen, lab, work).perform()
        except (HiveError, OSError, subprocess.SubprocessError) as error:
            recorder.event("end", complete=False, error=str(error))
            raise
        except KeyboardInterrupt:
            recorder.event("end", complete=False, error="interrupted")
            raise
        recorder.event("end", complete=True, error=None)


class _Run:
    def __init__(self, settings: Settings, recorder: Recorder, screen: Screen, lab: Lab, work: Path) -> None:
        self.settings, self.recorder, self.screen, self.lab, self.work = settings, recorder, screen, lab, work
        self.due_s = time.monotonic() + settings.run_seconds_max
        self.network: Network = network.declare(lab, settings)
        self.loads: list[subprocess.Popen[bytes]] = []
        self.helpers: list[subprocess.Popen[bytes]] = []
        self.pending: list[Mapping[str, Any]] = []
        self.brokers: Brokers | None = None
        self.crew: Crew | None = None
        self.status_due_s = 0.0

    def perform(self) -> None:
        settings = self.settings
        self.recorder.event("settings", settings=settings.as_record(), versions=_versions())
        if settings.backend == "hive":
            find_engine(settings.engine)  # one that is not here is said at once, not by a trainer that ends
        self.screen.say("setting up hosts, router and links")
        self.lab.up()
        self.recorder.event("topology", lab=self.lab.id, work=str(self.work), counters=self.network.topology())
        self._start_helpers()
        configurations = {
            host: configuration(
                interface=self.lab[host].interface,
                rate_bits_per_s=settings.rate_bits_per_s,
                group=group_of(settings.user),
                storage_port=storage.PORT,
                storage_guarantee=settings.storage_guarantee,
                guarantee_window_s=settings.guarantee_window_s,
            )
            for host in HOSTS
        }
        self.brokers = Brokers(lab=self.lab, directory=self.work, configurations=configurations)
        self._start_training()
        blocks = make_plan(settings)
        self.screen.begin(blocks)
        self._perform_blocks(blocks)
        self._finish()

    # --- what is there all the time ------------------------------------------------------------------------------

    def _start_helpers(self) -> None:
        for host in ("r", "s"):
            target = self.recorder.directory / "counters.jsonl"
            self._helper(host, "counters", python("tools.measure.sampler", "--host", host, "--output", str(target)))
        directory = self.work / "storage"
        directory.mkdir()
        directory.chmod(0o777)  # the daemon is the ordinary user's; the directory is this run's alone
        storage.write_source(self.work / "source", size_bytes=SOURCE_BYTES)
        serve = ("serve", "--directory", str(directory), "--address", "0.0.0.0")
        self._helper("s", "rsyncd", python("tools.demo.storage", *serve), user=self.settings.user)
        self._wait(DAEMON_START_S)

    def _helper(self, host: str, name: str, argv: list[str], *, user: str | None = None) -> None:
        with (self.work / f"{name}-{host}.log").open("wb") as log:
            self.helpers.append(start(self.lab[host], argv, log=log, user=user))

    def _start_training(self) -> None:
        from tools.demo.model import write_corpus  # imports torch, which a report does not need

        self.screen.say("starting training on hosts a and b")
        corpus = self.work / "corpus"
        write_corpus(corpus, size_bytes=self.settings.corpus_bytes)
        assert self.brokers is not None
        seats = self.brokers.seats

        def start_rank(rank: int, control: Path, log: BinaryIO) -> subprocess.Popen[bytes]:
            session_socket = seats[HOSTS[rank]].session_socket
            return start_trainer(
                self.lab, self.settings, rank, control=control, corpus=corpus, session_socket=session_socket, log=log
            )

        self.crew = Crew(
            hosts=HOSTS, directory=self.work, start=start_rank, on_step=self._on_step, on_wake=self._on_wake
        )
        self.crew.wait_ready()
        hello = self.crew.hello[0]
        self.recorder.event("ready", **hello)
        engine = f" ({hello['engine']} engine)" if hello["engine"] else ""
        self.screen.say(
            f"training {hello['parameters']:,} parameters over {self.settings.backend}{engine}: "
            f"{hello['gradient_bytes'] / 1e6:.2f} MB of gradients a step; "
            f"{hello['batch']} texts of a step on each host, {hello['compute_s']:.3f} s of computing alone"
        )

    # --- phases --------------------------------------------------------------------------------------------------

    def _perform_blocks(self, blocks: tuple[Block, ...]) -> None:
        assert self.crew is not None
        previous: Block | None = None
        for index, block in enumerate(blocks):
            following = blocks[index + 1] if index + 1 < len(blocks) else None
            flows_on = following is not None and _same_phase(block, following)
            if previous is None or not _same_phase(previous, block):
                self._enter(block)
            self._set_rate(block.half)
            first = self.crew.next_step
            self.screen.block(block)
            self._record_usage(index)
            until = self.crew.run(until=first + STEPS_MAX, seconds_max=block.seconds, flows_on=flows_on)
            self._record_usage(index)
            self._record_block(index, block, first, until)
            if not flows_on:
                self._leave(block)
            previous = block

    def _enter(self, block: Block) -> None:
        if block.condition == "static":
            fixed.tree(self.settings.rate_bits_per_s).install(self.lab, "a", interface=self.lab["a"].interface)
        elif block.condition == "brokered":
            assert self.brokers is not None
            self.brokers.start()
            if self.settings.backend == "hive":  # no other backend has a session with the broker
                self.brokers.wait_for_sessions(HOSTS)
        if block.condition != "idle":
            other = block.condition == "other-link"
            self._start_load(self.network.other_address if other else self.network.storage_address)
            self._wait(FLOOD_S)

    def _leave(self, block: Block) -> None:
        self._stop_loads()
        if block.condition == "static":
            remove(self.lab, "a", interface=self.lab["a"].interface)
        elif block.condition == "brokered":
            assert self.brokers is not None
            for host, pid in self.brokers.pids.items():
                resident_bytes = psutil.Process(pid).memory_info().rss
                self.recorder.event("broker-memory", host=host, resident_bytes=resident_bytes)
            self.brokers.stop()
            self._keep_decisions()
        self._set_rate("full")

    def _set_rate(self, half: str) -> None:
        full = self.settings.rate_bits_per_s
        rate = full if half == "full" else full // 2
        link = self.lab.links[self.network.uplink]
        if link.rate_bits_per_s != rate:
            link.set_rate(rate)
            self.recorder.event("link-rate", rate_bits_per_s=rate)

    def _record_usage(self, index: int) -> None:
        assert self.crew is not None
        assert self.brokers is not None
        groups = {f"trainer {host}": [process.pid] for host, process in self.crew.processes.items()}
        groups |= {f"broker {host}": [pid] for host, pid in self.brokers.pids.items()}
        groups["rsync"] = [process.pid for process in (*self.loads, self.helpers[-1])]
        groups["counters"] = [process.pid for process in self.helpers[:-1]]
        groups["links"] = relays()
        self.recorder.event("cpu", block=index, cpu_s=cpu_seconds(groups))

    def _keep_decisions(self) -> None:
        assert self.brokers is not None
        for host, seat in self.brokers.seats.items():
            source = seat.recording
            if source.exists():
                with (
                    source.open("rb") as lines,
                    (self.recorder.directory / f"decisions-{host}.jsonl").open("ab") as out,
                ):
                    shutil.copyfileobj(lines, out)
                source.unlink()

    def _record_block(self, index: int, block: Block, first: int, until: int) -> None:
        later = []
        for step in self.pending:
            if step["step"] >= until:
                later.append(step)
                continue
            labels = {"kind": block.kind, "condition": block.condition, "half": block.half, "round": block.round}
            self.recorder.write("steps", {**step, "block": index, **labels})
        seconds = [float(step["step_s"]) for step in self.pending if step["rank"] == 0 and step["step"] < until]
        self.pending = later
        self.recorder.event("block", index=index, first_step=first, until_step=until)
        self.screen.block_done(block, seconds, reports.compute(read(self.recorder.directory))["phases"])

    def _finish(self) -> None:
        assert self.crew is not None
        self.screen.say("comparing weights")
        self.crew.finish()
        for rank, done in sorted(self.crew.done.items()):
            self.recorder.event("weights", rank=rank, weights_sha256=done["weights_sha256"])
        self.crew.close()
        for helper in self.helpers:
            close_input(helper)

    # --- while it runs -------------------------------------------------------------------------------------------

    def _on_step(self, record: Mapping[str, Any]) -> None:
        self.pending.append(record)
        if record["rank"] == 0:
            self.screen.step(record)

    def _on_wake(self) -> None:
        now_s = time.monotonic()
        if now_s > self.due_s:
            raise MeasureError(f"not done after {self.settings.run_seconds_max:g} s; ended by the watchdog")
        for process in (*self.loads, *self.helpers):
            if process.poll() is not None:
                words = "\n".join(path.read_text(errors="replace")[-600:] for path in sorted(self.work.glob("*.log")))
                raise MeasureError(f"a helper ended ({process.returncode}): {process.args!r}\n{words}")
        if self.brokers is not None and self.brokers.pids and now_s >= self.status_due_s:
            self.status_due_s = now_s + STATUS_EVERY_S
            for host in self.brokers.pids:
                document = self.brokers.status(host)
                if document is not None:
                    shown = {key: document.get(key) for key in ("interfaces", "jobs", "alarms", "daemon")}
                    self.recorder.write("status", {"t_s": time.monotonic(), "host": host, **shown})
                    if host == HOSTS[0]:
                        self.screen.broker(document)

    def _wait(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            if self.crew is not None:
                self.crew.pump(min(left_s, 0.1))
            else:
                self._on_wake()
                time.sleep(min(left_s, 0.1))

    def _start_load(self, address: str) -> None:
        url = f"rsync://{address}:{storage.PORT}/sink"
        argv = python("tools.demo.storage", "copy", "--source", str(self.work / "source"), "--url", url)
        with (self.work / "rsync-a.log").open("wb") as log:
            self.loads.append(start(self.lab["a"], argv, log=log, user=self.settings.user))

    def _stop_loads(self) -> None:
        for load in self.loads:
            close_input(load)
        self.loads.clear()


def _same_phase(first: Block, second: Block) -> bool:
    return (first.kind, first.condition, first.round) == (second.kind, second.condition, second.round)


def _versions() -> dict[str, object]:
    rsync = subprocess.run(["rsync", "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    return {
        "hive-qos": __version__,
        **read_checkout().as_record(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "rsync": rsync[0] if rsync else "",
    }
