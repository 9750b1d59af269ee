"""A lab from declaration to the end: makes what is declared, and takes all of it down whatever happens.

Order of work, so that no crash leaves anything behind: write the lab down (`state`), start the guard, then make
namespaces, devices, qdiscs. Whoever dies, the next one cleans up: the owner on leaving the block, the guard on the
owner's death, the next lab or `hive-lab down --all` on the death of both.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hive_qos.errors import ConfigurationError
from tools.lab import description as text_form
from tools.lab import make, state, wire
from tools.lab.host import Host, kill_session
from tools.lab.kernel import LabError
from tools.lab.link import Link, LinkCounters, ask_relay
from tools.lab.model import BUFFER_S_DEFAULT, Carrier, Description, LinkSpec, NodeSpec
from tools.lab.plan import Plan, make_plan
from tools.lab.state import LabState, Process

__all__ = ["Host", "Lab", "LabError", "Link", "LinkCounters"]


class Lab:
    """Hosts, routers and links; see the package's docstring for an example.

    Args:
        name: for people, in `hive-lab status`.
    """

    def __init__(self, name: str = "lab") -> None:
        self.description = Description(name=name)
        self.plan: Plan = make_plan(self.description)
        self._state: LabState | None = None
        self._owns = True
        self._made_nodes: set[str] = set()
        self._made_links: set[str] = set()
        self._mediums: dict[str, wire.Medium] = {}
        self._limits_bytes: dict[str, int] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._relay: subprocess.Popen[bytes] | None = None
        self._children: set[subprocess.Popen[bytes]] = set()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Lab:
        """A lab as described in a TOML file (`docs/reference/lab.md`); up on entering the block.

        Raises:
            ConfigurationError: the file says something that cannot work.
            OSError: the file cannot be read.
        """
        return cls.from_description(text_form.parse(Path(path).read_text(encoding="utf-8")))

    @classmethod
    def from_description(cls, description: Description) -> Lab:
        """A lab as described; up on entering the block."""
        lab = cls(description.name)
        lab._declare(description)
        return lab

    @classmethod
    def attach(cls, lab_id: str) -> Lab:
        """A lab that somebody else owns, to use it from another process; `close` leaves it as it is.

        Raises:
            LabError: there is none with this id, or another version of this program has made it.
        """
        found = state.read(lab_id)
        if found is None or found.description is None:
            raise LabError(f"no lab {lab_id!r} is up")
        try:
            lab = cls.from_description(text_form.from_plain(found.description))
        except (TypeError, KeyError, ConfigurationError) as error:
            reason = f"lab {lab_id} is of another version of this program; it can only be taken down ({error})"
            raise LabError(reason) from error
        lab._state, lab._owns = found, False
        lab._mediums, lab._limits_bytes = dict(found.mediums), dict(found.limits_bytes)
        lab._made_nodes = {node.name for node in lab.description.nodes}
        lab._made_links = set(lab._mediums)
        return lab

    # Declaring

    def host(
        self,
        name: str,
        *,
        site: str = "",
        congestion: str = "",
        sysctls: Mapping[str, str] | None = None,
        gso_max_segs: int = 1,
    ) -> Host:
        """Declare a host; `NodeSpec` explains the arguments."""
        return self._node(
            NodeSpec(name=name, site=site, congestion=congestion, sysctls=sysctls or {}, gso_max_segs=gso_max_segs)
        )

    def router(self, name: str, *, site: str = "") -> Host:
        """Declare a router: a node that forwards."""
        return self._node(NodeSpec(name=name, kind="router", site=site))

    def site(self, name: str, hosts: Sequence[str]) -> None:
        """Declare a router called `name`, `hosts` around it, and a link from each."""
        self.router(name, site=name)
        for host in hosts:
            self.host(host, site=name)
            self.link(host, name)

    def link(
        self,
        first: str,
        second: str,
        *,
        rate_bits_per_s: int | None = None,
        delay_s: float = 0.0,
        loss: float = 0.0,
        buffer_s: float = BUFFER_S_DEFAULT,
        buffer_bytes: int | None = None,
        name: str | None = None,
        carrier: Carrier = "auto",
        seed: int = 1,
        offload: bool = False,
    ) -> Link:
        """Declare a link between two declared nodes; `LinkSpec` explains the arguments. May be done while up, too.

        A second link between the same two needs a name of its own. Take `carrier="relay"` for a link without delay
        that is to get one later.
        """
        spec = LinkSpec(
            name=name or f"{first}-{second}",
            first=first,
            second=second,
            rate_bits_per_s=rate_bits_per_s,
            delay_s=delay_s,
            loss=loss,
            buffer_s=buffer_s,
            buffer_bytes=buffer_bytes,
            carrier=carrier,
            seed=seed,
            offload=offload,
        )
        self._declare(replace(self.description, links=(*self.description.links, spec)))
        return Link(self, spec.name)

    # What there is

    def __getitem__(self, name: str) -> Host:
        """The node called `name`; KeyError when it was not declared."""
        if name not in self.plan.interfaces:
            raise KeyError(name)
        return Host(self, name)

    @property
    def hosts(self) -> dict[str, Host]:
        """All nodes that are hosts, in order of declaration."""
        return {node.name: Host(self, node.name) for node in self.description.nodes if node.kind == "host"}

    @property
    def routers(self) -> dict[str, Host]:
        """All nodes that are routers."""
        return {node.name: Host(self, node.name) for node in self.description.nodes if node.kind == "router"}

    @property
    def links(self) -> dict[str, Link]:
        """All links by name."""
        return {link.name: Link(self, link.name) for link in self.description.links}

    @property
    def id(self) -> str:
        """The lab's id, part of the name of everything it makes."""
        return self.require_up().id

    @property
    def wires(self) -> str:
        """The namespace through which all links run."""
        return f"{state.prefix_of(self.id)}0"

    # Life

    def __enter__(self) -> Self:
        if self.description.nodes:
            self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def up(self) -> Self:
        """Make what is declared and not there yet. Whatever goes wrong, everything made so far is taken down.

        Raises:
            LabError: the kernel refuses something; the text says what.
        """
        try:
            if self._state is None:
                self._begin()
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Take everything down. Safe to repeat. Ctrl-C waits until it is done."""
        if self._state is None or not self._owns or self._state.owner.pid != os.getpid():
            return  # not ours to end: attached, detached, or inherited by a forked child
        with _undisturbed():
            lab_id = self._state.id
            for process in tuple(self._children):
                kill_session(process)
            self._children.clear()
            state.tear_down(lab_id)
            for helper in (self._relay, self._guard):
                if helper is not None:
                    helper.kill()
                    helper.wait()
                    if helper.stdout is not None:
                        helper.stdout.close()
            self._relay = self._guard = self._state = None
            self._made_nodes.clear()
            self._made_links.clear()
            self._mediums.clear()
            self._limits_bytes.clear()

    def detach(self) -> None:
        """Leave the lab to its guard: it stays after this process, until `hive-lab down`."""
        now = self.require_up()
        if now.guard is None:
            raise LabError("the lab has no guard")
        self._state = replace(now, owner=now.guard, detached=True)
        state.write(self._state)
        self._owns = False

    def require_up(self) -> LabState:
        """What is written down about the lab; LabError when it is not up."""
        if self._state is None:
            raise LabError("the lab is not up; call up() first")
        return self._state

    # For Host and Link

    def namespace_of(self, node: str) -> str:
        """The namespace of a node."""
        return f"{state.prefix_of(self.id)}{node}"

    def medium_of(self, link: str) -> wire.Medium:
        """What carries a link."""
        self.require_up()
        return self._mediums[link]

    def limit_bytes_of(self, link: str, *, first_rate_bits_per_s: int | None = None) -> int:
        """The queue's length of a link; decided for good when it first gets a rate."""
        if link not in self._limits_bytes:
            spec = next(spec for spec in self.description.links if spec.name == link)
            limit_bytes = wire.buffer_bytes(spec, first_rate_bits_per_s=first_rate_bits_per_s)
            if first_rate_bits_per_s is None:
                return limit_bytes
            self._limits_bytes[link] = limit_bytes
            self._write()
        return self._limits_bytes[link]

    def relay_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the relay something; LabError with its words when it refuses."""
        return ask_relay(state.directory_of(self.id) / "relay.sock", request)

    def adopt(self, process: subprocess.Popen[bytes]) -> None:
        """Remember a program, to kill and reap it at the end."""
        for child in tuple(self._children):  # a copy: programs are started from many threads
            if child.poll() is not None:
                self._children.discard(child)
        self._children.add(process)

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """A program has ended and was reaped."""
        self._children.discard(process)

    # Making

    def _node(self, spec: NodeSpec) -> Host:
        self._declare(replace(self.description, nodes=(*self.description.nodes, spec)))
        return Host(self, spec.name)

    def _declare(self, description: Description) -> None:
        self.description = description
        self.plan = make_plan(description)

    def _begin(self) -> None:
        state.sweep()
        taken = set(state.all_ids())
        fresh = iter(lambda: uuid.uuid4().hex[:4], "")
        lab_id = next(new for new in fresh if new not in taken and not state.namespaces_of(new))
        self._state = LabState(id=lab_id, name=self.description.name, owner=Process.of(os.getpid()))
        state.create(self._state)
        self._guard = make.start_guard(lab_id)
        self._write()
        make.wires(self.wires)

    def _make(self) -> None:
        nodes = [node for node in self.description.nodes if node.name not in self._made_nodes]
        make.nodes(nodes, namespaces=self._namespaces)
        self._made_nodes |= {node.name for node in nodes}
        make.hosts_files(self.plan, namespaces=self._namespaces)
        links = [link for link in self.plan.links if link.spec.name not in self._made_links]
        if not links:
            return
        self._mediums |= make.choose_mediums(links)
        make.cables(links, self.description.nodes, namespaces=self._namespaces, wires=self.wires)
        relayed = [link for link in links if self._mediums[link.spec.name] == "relay"]
        if relayed and self._relay is None:
            self._relay = make.start_relay(self.id, wires=self.wires)
        for link in relayed:
            spec = link.spec
            order = {"op": "add", "link": spec.name, "taps": link.taps, "offload": spec.offload}
            self.relay_request({**order, "delay_s": spec.delay_s, "loss": spec.loss, "seed": spec.seed})
        for link in links:
            name = link.spec.name
            limit_bytes = self.limit_bytes_of(name, first_rate_bits_per_s=link.spec.rate_bits_per_s)
            make.wire_up(link, self._mediums[name], wires=self.wires, limit_bytes=limit_bytes)
        new = {link.spec.name for link in links}
        make.addresses(self.plan, self.description.nodes, links=new, namespaces=self._namespaces)
        self._made_links |= new
        self._write()

    @property
    def _namespaces(self) -> dict[str, str]:
        return {name: self.namespace_of(name) for name in self.plan.interfaces}

    def _write(self) -> None:
        if self._state is None:
            return
        if not self._owns:  # attached: only the queues' lengths are decided here
            self._state = replace(self._state, limits_bytes=dict(self._limits_bytes))
            state.write(self._state)
            return
        guard = Process.of(self._guard.pid) if self._guard is not None else None
        self._state = replace(
            self._state,
            guard=guard,
            description=text_form.to_plain(self.description),
            mediums=dict(self._mediums),
            limits_bytes=dict(self._limits_bytes),
        )
        state.write(self._state)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block is done (where this is the main thread, which alone may say so)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    kept = {
        number: signal.signal(number, lambda got, _: pending.append(got)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        for late in pending:
            os.kill(os.getpid(), late)
