"""One scene with everything that runs in it: counters, storage, people, brokers, jobs. A context: gone at its end."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from tools.brokerbench import peering, variants
from tools.brokerbench.programs import flood
from tools.brokerbench.scenes import TRAINERS, Scene
from tools.brokerbench.settings import IDLE, Settings
from tools.measure.brokers import Brokers, Seat, configuration, group_of
from tools.measure.crew import Crew, MeasureError
from tools.measure.programs import close_input, environment, python, start
from tools.measure.surroundings import work_directory
from tools.measure.tail import Tail
from tools.measure.usage import cpu_seconds, relays

MEET_PORT = 29500


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job: what a step computes, how much it reduces, whether computing takes half to twice as long, and
    whether a scalar is reduced after it, as a loss is."""

    name: str
    compute_s: float
    payload_bytes: int
    irregular: bool = False
    scalar: bool = False


class Stage:
    """A scene that is up.

    Args:
        jobs: who trains; each has a rank in every training host.
        configure: a host's broker.toml, where it is not the usual one.
        on_step: told of each step of rank 0: job and record.
        watch: an echo is asked from host to address all the time.
        watch_classes: a node whose traffic classes are watched for changes.
        prepare: called when brokers have their directories and nothing runs; what it puts on the stack is undone when
            everything has ended.
    """

    def __init__(
        self,
        scene: Scene,
        settings: Settings,
        *,
        jobs: Sequence[Job] = (),
        configure: Callable[[str], Callable[[Seat], str]] | None = None,
        on_step: Callable[[str, Mapping[str, Any]], None] = lambda job, record: None,
        watch: tuple[str, str] | None = None,
        watch_classes: str | None = None,
        prepare: Callable[[Stage, ExitStack], object] = lambda stage, stack: None,
    ) -> None:
        self.scene, self.settings, self.lab = scene, settings, scene.lab
        self._jobs, self._on_step, self._watch, self._prepare = tuple(jobs), on_step, watch, prepare
        self._watch_classes = watch_classes
        self._configure = configure or self._usual_configuration
        self._stack = ExitStack()
        self._helpers: dict[str, subprocess.Popen[bytes]] = {}
        self._loads: list[subprocess.Popen[bytes]] = []
        self._tails: dict[str, Tail] = {}
        self.crews: dict[str, Crew] = {}
        self.steps: dict[str, list[Mapping[str, Any]]] = {}
        self.work: Path
        self.brokers: Brokers

    # --- up and down ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.work = stack.enter_context(work_directory("hq-bb-"))
            stack.enter_context(contextlib.closing(self.lab))
            self.lab.up()
            if self.scene.inbound_bits_per_s:
                peering.issue(self.work / "ca", self.lab, self.scene.believed_bits_per_s)
            self.brokers = Brokers(
                lab=self.lab,
                directory=self.work,
                configurations={host: self._configure(host) for host in self.scene.believed_bits_per_s},
            )
            self._prepare(self, stack)
            stack.callback(self._end)
            self._start_helpers()
            for number, job in enumerate(self._jobs):
                self._start_job(job, number)
            for crew in self.crews.values():
                crew.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _end(self) -> None:
        self.stop_storage()
        for crew in self.crews.values():
            crew.close()
        for helper in self._helpers.values():
            close_input(helper)

    def _usual_configuration(self, host: str) -> Callable[[Seat], str]:
        scene = self.scene
        return configuration(
            interface=self.lab[host].interface,
            rate_bits_per_s=scene.believed_bits_per_s[host],
            group=group_of(self.settings.user),
            storage_port=flood.PORT,
            inbound_bits_per_s=scene.inbound_bits_per_s.get(host),
            peers=peering.section(self.work / "ca", host) if scene.inbound_bits_per_s else "",
        )

    def _start_helpers(self) -> None:
        for node in self.scene.sampled:
            output = self._tail(f"samples-{node}")
            self._helper(node, "sampler", python("tools.measure.sampler", "--host", node, "--output", output))
        target, address = self.scene.target, self.scene.target_address
        sink = ("sink", "--address", address, "--output", self._tail("sink"))
        self._helper(target, "sink", python("tools.brokerbench.programs.flood", *sink))
        if self._watch is not None:
            node, address = self._watch
            argv = python("tools.brokerbench.programs.echoes", "--address", address, "--output", self._tail("echoes"))
            self._helper(node, "echoes", argv)
        if self._watch_classes is not None:
            argv = python("tools.brokerbench.programs.watcher", "--output", self._tail("classes"))
            self._helper(self._watch_classes, "watcher", argv)
        self._await_sink(target)

    def _await_sink(self, target: str) -> None:
        due_s = time.monotonic() + 10.0
        while not (self.work / "sink.jsonl").exists() or not (self.work / "sink.jsonl").stat().st_size:
            if time.monotonic() > due_s:
                raise MeasureError(f"storage's sink did not start\n{(self.work / f'sink-{target}.log').read_text()}")
            time.sleep(0.05)

    def _tail(self, name: str) -> str:
        path = self.work / f"{name}.jsonl"
        self._tails[name] = Tail(path)
        return str(path)

    def _helper(self, node: str, name: str, argv: list[str]) -> None:
        with (self.work / f"{name}-{node}.log").open("wb") as log:
            self._helpers[f"{name}-{node}"] = start(self.lab[node], argv, log=log)

    def _start_job(self, job: Job, number: int) -> None:
        directory = self.work / job.name
        directory.mkdir()
        steps = self.steps.setdefault(job.name, [])

        def start_rank(rank: int, control: Path, log: BinaryIO) -> subprocess.Popen[bytes]:
            host = TRAINERS[rank]
            meet = f"{self.lab[TRAINERS[0]].address}:{MEET_PORT + number}"
            argv = python("tools.brokerbench.programs.rank", "--control", str(control), "--rank", str(rank))
            argv += ["--meet", meet, "--payload-bytes", str(job.payload_bytes), "--compute-s", str(job.compute_s)]
            argv += ["--irregular"] if job.irregular else []
            argv += ["--scalar"] if job.scalar else []
            argv += ["--busy"] if self.settings.busy else []
            env = environment(
                HIVE_INTERFACE=self.lab[host].interface,
                HIVE_ENGINE=self.settings.engine,
                HIVE_JOB=job.name,
                HIVE_JOB_SECRET="benchmark-only-secret-of-this-run",
                HIVE_BROKER=self.brokers.seats[host].session_socket,
            )
            return self.lab[host].popen(
                argv, user=self.settings.user, env=env, cwd="/", stdout=log, stderr=subprocess.STDOUT
            )

        def on_step(record: Mapping[str, Any]) -> None:
            steps.append(record)
            if record["rank"] == 0:
                self._on_step(job.name, record)

        self.crews[job.name] = Crew(
            hosts=TRAINERS, directory=directory, start=start_rank, on_step=on_step, on_wake=self._on_wake
        )

    # --- what changes from block to block -------------------------------------------------------------------------

    def enter(self, condition: str) -> None:
        """Bring the variant about, and storage where the condition has it."""
        for crew in self.crews.values():
            crew.tell({"announce": condition != "quiet"})
        variants.install(self.scene, self.lab, condition)
        if variants.is_ours(condition):
            self.brokers.start(variants.brokers_of(self.scene, condition))
            if self._jobs:
                self.brokers.wait_for_sessions(TRAINERS, count=len(self._jobs))
        if condition != IDLE:
            self.start_storage()
            self.wait(self.settings.flood_s)

    def leave(self, condition: str) -> None:
        """Undo it."""
        self.stop_storage()
        if variants.is_ours(condition):
            self.brokers.stop()
        variants.uninstall(self.scene, self.lab, condition)

    def start_storage(self) -> None:
        """Let storage begin; it goes on until it is stopped."""
        send = ["send", "--address", self.scene.target_address, "--flows", str(self.settings.flows)]
        send += ["--busy", str(self.settings.flows_busy), "--rate", str(self.settings.flows_bits_per_s)]
        argv = python("tools.brokerbench.programs.flood", *send)
        with (self.work / "flood.log").open("ab") as log:
            for host in self.scene.flooders:
                self._loads.append(start(self.lab[host], argv, log=log, user=self.settings.user))

    def stop_storage(self) -> None:
        """End storage."""
        for load in self._loads:
            close_input(load)
        self._loads.clear()

    def wait(self, seconds: float) -> None:
        """Let time pass, and notice who ends meanwhile."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            if self.crews:
                next(iter(self.crews.values())).pump(min(left_s, 0.1))
            else:
                self._on_wake()
                time.sleep(min(left_s, 0.1))

    def train(self, seconds: float) -> None:
        """Let all jobs go on for so long; what they were granted ahead they may still do."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            for crew in self.crews.values():
                crew.go_on()
                crew.pump(min(left_s, 0.02))

    def rest(self) -> None:
        """Wait until all jobs have done what they were granted."""
        for crew in self.crews.values():
            crew.rest()

    # --- what was seen --------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop what was seen so far: a block begins."""
        for tail in self._tails.values():
            tail.lines()
        for steps in self.steps.values():
            steps.clear()

    def seen(self) -> dict[str, Any]:
        """Everything since `forget`, raw."""
        samples = {node: self._tails[f"samples-{node}"].lines() for node in self.scene.sampled}
        sink = [[line["t_s"], line["bytes"]] for line in self._tails["sink"].lines()]
        found = {"steps": {job: list(steps) for job, steps in self.steps.items()}, "samples": samples, "sink": sink}
        if self._watch is not None:
            found["echoes"] = [[line["t_s"], line["trip_s"]] for line in self._tails["echoes"].lines()]
        if self._watch_classes is not None:
            found["classes"] = [
                [line["t_s"], line["minor"], line["rate_bits_per_s"], line["ceil_bits_per_s"]]
                for line in self._tails["classes"].lines()
            ]
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """So far, of each program."""
        groups = {
            f"rank {job} {host}": [process.pid]
            for job, crew in self.crews.items()
            for host, process in crew.processes.items()
        }
        groups |= {f"broker {host}": [pid] for host, pid in self.brokers.pids.items()}
        groups |= {name: [process.pid] for name, process in self._helpers.items()}
        groups["storage"] = [process.pid for process in self._loads]
        groups["links"] = relays()
        return cpu_seconds(groups)

    def _on_wake(self) -> None:
        for name, process in self._helpers.items():
            if process.poll() is not None:
                words = (self.work / f"{name}.log").read_text(errors="replace")[-600:]
                raise MeasureError(f"{name} ended ({process.returncode})\n{words}")
        for load in self._loads:
            if load.poll() is not None:
                words = (self.work / "flood.log").read_text(errors="replace")[-600:]
                raise MeasureError(f"storage ended ({load.returncode})\n{words}")
