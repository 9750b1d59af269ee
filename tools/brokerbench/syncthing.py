"""Syncthing replicates a gigabyte beside training, over the sender's own link: with nobody in control, and with us.

    python -m tools.brokerbench.syncthing

Training is that of the scenario `sender`. A block begins with a new gigabyte and ends when the other Syncthing has it,
or after `--seconds`. It takes six to eight minutes, as root; tools/storage_programs.sh installs Syncthing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.adapters.http import ProgramHttp
from broker.adapters.program import ProgramError
from broker.policy.types import StorageProgram
from tools.brokerbench import scenes
from tools.brokerbench.scenarios.shares import JOB, payload_bytes
from tools.brokerbench.settings import IDLE, Settings
from tools.brokerbench.stage import Job, Stage
from tools.lab import privilege
from tools.lab.host import Host
from tools.lab.kernel import entered
from tools.measure.brokers import Seat, configuration, group_of
from tools.measure.surroundings import terminated_like_interrupted

PORT = 22000
WINDOW_S, GUARANTEE = 60.0, 0.2
SHAPED = 0.97
"""The part of the link that the broker shapes to."""
HASHING_S_MAX = 300.0
"""A gigabyte is hashed in seconds; a folder that cannot be read stays in its error for good."""
STEPS = 40
"""Of a look: some 15 s, then it is asked whether the copy is done."""
OPTIONS = {
    "globalAnnounceEnabled": "false", "localAnnounceEnabled": "false", "relaysEnabled": "false", "natEnabled": "false",
    "crashReportingEnabled": "false", "urAccepted": "-1", "stunKeepaliveStartS": "0", "startBrowser": "false",
    "reconnectionIntervalS": "1",
}  # fmt: skip
"""Nothing of it looks for anybody outside of the lab."""
app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)


class Syncthing:
    """One Syncthing in a host, with one shared folder."""

    def __init__(self, host: Host, home: Path) -> None:
        home.mkdir()
        said = host.run(
            ["syncthing", "generate", f"--home={home}", "--skip-port-probing", "--no-default-folder"],
            env={"HOME": str(home)},
        )
        found = re.search(r"Device ID: (\S+)", said.stdout + said.stderr)
        text = (home / "config.xml").read_text()
        for option, value in OPTIONS.items():
            text = re.sub(f"<{option}>[^<]*</{option}>", f"<{option}>{value}</{option}>", text)
        text = text.replace("<listenAddress>default<", f"<listenAddress>tcp://{host.address}:{PORT}<")
        (home / "config.xml").write_text(text)
        key = re.search("<apikey>([^<]+)<", text)
        assert found is not None, said
        assert key is not None, said
        self.host, self.home, self.device = host, home, found[1]
        self._http = ProgramHttp(StorageProgram("s", "syncthing", "http://127.0.0.1:8384"), {"X-API-Key": key[1]})
        self.folder = home / "data"
        self.folder.mkdir()
        with (home / "log").open("wb") as log:
            argv = ["nice", "-n", "10", "syncthing", "serve", f"--home={home}", "--no-browser", "--no-restart"]
            self.process = host.popen(argv, env={"HOME": str(home)}, stdout=log, stderr=log)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Use its REST interface from inside of its host."""
        with entered(self.host.namespace):
            return self._http.json(method, path, body)

    def ready(self) -> None:
        """Wait until it answers."""
        due_s = time.monotonic() + 60.0
        while True:
            with contextlib.suppress(ProgramError):
                self.ask("GET", "/rest/system/status")
                return
            if time.monotonic() > due_s:
                raise TimeoutError(f"Syncthing does not answer: {(self.home / 'log').read_text()[-500:]}")
            time.sleep(0.2)

    def know(self, other: Syncthing) -> None:
        """Share the folder with another one."""
        address = f"tcp://{other.host.address}:{PORT}"
        self.ask("POST", "/rest/config/devices", {"deviceID": other.device, "addresses": [address]})
        folder = {"id": "f", "path": str(self.folder), "fsWatcherEnabled": False}
        devices = [{"deviceID": one.device} for one in (self, other)]
        self.ask("POST", "/rest/config/folders", {**folder, "devices": devices})

    def add(self, name: str, size_bytes: int) -> None:
        """Put a new file into the folder, and have it found."""
        with (self.folder / name).open("wb") as file:
            for _ in range(size_bytes // 2**20):
                file.write(os.urandom(2**20))
        with contextlib.suppress(ProgramError):  # it answers when it has hashed the file, which may take longer
            self.ask("POST", "/rest/db/scan?folder=f")
        due_s = time.monotonic() + HASHING_S_MAX
        while (state := self.ask("GET", "/rest/db/status?folder=f")["state"]) != "idle":
            if time.monotonic() > due_s:
                raise TimeoutError(f"Syncthing has not taken up the new file: it is {state}")
            time.sleep(0.5)


class SyncthingStage(Stage):
    """A stage on which Syncthing is storage: it sends whenever it has something and its connections are not paused."""

    pair: tuple[Syncthing, Syncthing]

    def start_storage(self) -> None:
        """Let it connect."""
        for one in self.pair:
            one.ask("POST", "/rest/system/resume")

    def stop_storage(self) -> None:
        """Part them."""
        for one in getattr(self, "pair", ()):
            with contextlib.suppress(ProgramError):
                one.ask("POST", "/rest/system/pause")

    def wait_for_pair(self) -> None:
        """Start both and have them know each other."""
        first = Syncthing(self.lab["a"], self.work / "syncthing-a")
        second = Syncthing(self.lab["s"], self.work / "syncthing-s")
        self.pair = first, second
        for one in self.pair:
            one.ready()
        first.know(second)
        second.know(first)
        self.stop_storage()


def rates(samples: Sequence[Mapping[str, Any]], interface: str) -> tuple[list[float], list[int]]:
    """When what had been sent over an interface."""
    sent = [sample["interfaces"][interface][scenes.SENT] for sample in samples]
    return [sample["t_s"] for sample in samples], sent


def windows(times: Sequence[float], sent: Sequence[int], *, width_s: float) -> Iterator[float]:
    """Averages in bits per second over every whole window."""
    last = 0
    for first in range(len(times)):
        while last < len(times) and times[last] - times[first] < width_s:
            last += 1
        if last == len(times):
            return
        yield (sent[last] - sent[first]) * 8 / (times[last] - times[first])


def figures(stage: Stage, seen: Mapping[str, Any], *, done: bool) -> dict[str, Any]:
    """One block's figures: steps, and storage's wire bytes while it had something to send."""
    steps = sorted(one["step_s"] for one in seen["steps"][JOB] if one["rank"] == 0)
    router, samples = stage.lab["r"], seen["samples"]["r"]
    times, storage = rates(samples, router.interface_on("s"))
    _, compute = rates(samples, router.interface_on("b"))
    if done:  # what comes after its end is no storage's time
        whole = storage[0] + 0.995 * (storage[-1] - storage[0])
        end = 1 + next(i for i in range(len(storage)) if storage[i] >= whole)
        times, storage, compute = times[:end], storage[:end], compute[:end]
    over_s = times[-1] - times[0]
    got, used = (storage[-1] - storage[0]) * 8 / over_s, (compute[-1] - compute[0]) * 8 / over_s
    left = SHAPED * stage.scene.rate_bits_per_s - used
    found = {
        "steps": len(steps),
        "step_s": statistics.median(steps),
        "step_p95_s": steps[int(0.95 * (len(steps) - 1))],
        "over_s": over_s,
        "storage_bits_per_s": got,
        "compute_bits_per_s": used,
        "of_left": got / left,
    }
    least = min(windows(times, storage, width_s=WINDOW_S), default=None)
    return found if least is None else {**found, "least_window_of_guarantee": least / (GUARANTEE * SHAPED * 100e6)}


def block(stage: SyncthingStage, condition: str, *, size_bytes: int, seconds: float, say: Callable[[str], None]) -> Any:
    """One condition, from a new file until it has arrived."""
    crew = stage.crews[JOB]
    if condition != IDLE:
        stage.pair[0].add(condition, size_bytes)
    crew.run(until=crew.next_step + 10, seconds_max=60, flows_on=False)
    stage.enter(condition)
    stage.forget()
    begin_s, done = time.monotonic(), False
    while not done and time.monotonic() - begin_s < (30.0 if condition == IDLE else seconds):
        crew.run(until=crew.next_step + STEPS, seconds_max=60, flows_on=False)
        if condition != IDLE:
            done = (stage.pair[1].folder / condition).exists()
    stage.wait(0.3)
    found = figures(stage, stage.seen(), done=done)
    stage.leave(condition)
    say(f"{condition}: {json.dumps({**found, 'done': done})}")
    return found


@app.command()
def main(
    megabytes: Annotated[int, typer.Option(help="What is replicated in each block.")] = 1000,
    seconds: Annotated[float, typer.Option(help="A block of storage ends after so long at the latest.")] = 240.0,
    conditions: Annotated[str, typer.Option(help="Of storage, in turn.")] = "none,brokered",
) -> None:
    """Measure, and print each block's figures."""
    privilege.ensure([sys.executable, "-m", "tools.brokerbench.syncthing", *sys.argv[1:]])
    subprocess.run(["syncthing", "--version"], check=True, stdout=subprocess.DEVNULL)
    settings = Settings()
    scene = scenes.sender(settings)
    job = Job(name=JOB, compute_s=settings.compute_s, payload_bytes=payload_bytes(settings, scene.rate_bits_per_s))

    def configure(host: str) -> Callable[[Seat], str]:
        return configuration(
            interface=scene.lab[host].interface,
            rate_bits_per_s=scene.rate_bits_per_s,
            group=group_of(settings.user),
            storage_port=PORT,
        )

    with terminated_like_interrupted(), SyncthingStage(scene, settings, jobs=[job], configure=configure) as stage:
        stage.wait_for_pair()
        idle = block(stage, IDLE, size_bytes=0, seconds=0.0, say=print)
        for condition in conditions.split(","):
            found = block(stage, condition, size_bytes=megabytes * 10**6, seconds=seconds, say=print)
            least = found.get("least_window_of_guarantee")
            print(
                f"{condition}: step {found['step_s'] / idle['step_s']:.3f} of idle (95th percentile "
                f"{found['step_p95_s'] / idle['step_s']:.2f}), storage {found['storage_bits_per_s'] / 1e6:.1f} Mbit/s, "
                f"{found['of_left']:.2f} of what is left"
                + ("" if least is None else f", least minute {least:.2f} of its guarantee")
            )


if __name__ == "__main__":
    app()
