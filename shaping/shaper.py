"""Make interfaces look as wanted and keep them so: observe, diff, apply, read back, and put back at the end.

    with Shaper(RealKernel(), Journal(Path("/var/lib/hive-qos"))) as shaper:
        shaper.attach(shape)
        shaper.apply(changed_shape)
        shaper.counters("eth0").classes["storage"].sent_bytes

Synchronous, for one thread. Closing releases sockets and leaves the interfaces as they are; `detach` puts back.
"""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType

from hive_qos.errors import HiveError, ShapingError
from shaping.classify.rules import Classification
from shaping.egress import Egress, undo_after
from shaping.gso_limit import Segments
from shaping.ingress import Ingress
from shaping.journal import Journal
from shaping.kernel_api import Classifier, Kernel
from shaping.model.names import LEAF_MINOR, MARK_MINOR
from shaping.model.observations import Attachment, Capabilities, InterfaceCounters, SegmentState
from shaping.model.shapes import InterfaceShape
from shaping.model.tree import Operation, Tree


class Shaper:
    """The kernel side of a broker, for every interface that it was given. `ingress` shapes what arrives."""

    def __init__(self, kernel: Kernel, journal: Journal, *, classifier: Classifier | None = None) -> None:
        """Nothing is touched yet.

        Args:
            classifier: enforces rules on cgroups and users (`cgroup.SocketClassifier`); None leaves them out.
        """
        self._kernel = kernel
        self._journal = journal
        self._classification = Classification(kernel, classifier)
        self._segments = Segments(kernel, journal)
        self._egress = Egress(kernel, journal)
        self.ingress = Ingress(kernel, journal, capabilities=lambda: self.capabilities)

    @property
    def capabilities(self) -> Capabilities:
        """What this kernel offers."""
        return self._egress.capabilities

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The attached ones."""
        return self._egress.interfaces

    def mark_minor(self, target: str) -> int:
        """What `mark_socket` gets for a flow of `target` (a key of `MARK_MINOR`).

        Without u32 nothing leads from an inner node to a leaf: marks name the default leaf then. That is known when the
        first interface has been attached.
        """
        return (MARK_MINOR if self.capabilities.u32 else LEAF_MINOR)[target]

    def attach(self, shape: InterfaceShape, *, replace_foreign: bool = False) -> Attachment:
        """Take over one interface: journal the prior root, build the tree, or adopt the one of ours that is there.

        A tree of ours with another structure than we would build is built anew: what waits in its queues is lost.

        Args:
            replace_foreign: replace a root, and a gso_max_segs, that somebody configured; what was there is journalled
                and put back by `detach`.

        Raises:
            ConfigurationError: no such interface; a foreign root and not `replace_foreign`.
            ShapingError: the kernel side failed; the interface is as before, or has its prior root back. A kernel or
                process that cannot do rules on cgroups and users is no error: it is told, and the rest works.
            ValueError: a shape that cannot be (`plan.desired_tree`); nothing was touched.
        """
        interface = shape.interface
        attachment = self._egress.attach(shape, replace_foreign=replace_foreign)
        self._classification.ask(interface, shape.rules)
        try:
            notes = self.classify()
            limited = self._segments.attach(interface, shape.gso_max_segs, take_over=replace_foreign)
        except BaseException as error:  # it goes on below; but nobody would know of the tree that is there now
            undo_after(error, lambda: self.detach(interface))
            raise
        if limited is not None:
            notes = (*notes, f"{interface}: {limited}")
        notes = (*notes, *self._egress.journal_line(interface, shape.line_bits_per_s))
        return replace(attachment, notes=(*attachment.notes, *notes))

    def apply(self, shape: InterfaceShape) -> tuple[Operation, ...]:
        """Bring an attached interface to `shape`, losing no packet; returns what was done, empty when nothing was.

        It compares with what was last read back, and does not ask the kernel again when nothing is to do.

        Raises:
            ConfigurationError: not attached.
            ShapingError: the kernel side failed. What is there then is read again at the next call.
        """
        operations = self._egress.apply(shape)
        self._segments.apply(shape.interface, shape.gso_max_segs)
        self._egress.journal_line(shape.interface, shape.line_bits_per_s)
        if self._classification.ask(shape.interface, shape.rules):
            self.classify()
        return operations

    def open(self, interface: str, line_bits_per_s: int | None) -> tuple[Operation, ...]:
        """Let every class of an attached interface send what the line carries, as `failsafe` does; rates stay.

        The next `apply` puts ceilings back.

        Raises:
            ConfigurationError: not attached.
            ShapingError: the kernel side failed. What is there then is read again by `verify`.
        """
        return self._egress.open(interface, line_bits_per_s)

    def classify(self) -> tuple[str, ...]:
        """Enforce the rules of all attached interfaces that concern this network namespace as a whole: those on cgroups
        and users, and those on packets that it forwards.

        Cheap when nothing changed: call it about once a second, so that cgroups which come later are found.

        Returns:
            Sentences on rules that are not in force, and why: without CAP_BPF or BPF they are told here, and passed
            sockets, ports and DSCP go on working.

        Raises:
            ShapingError: the rules could not even be tried.
        """
        return self._classification.enforce({target: self.mark_minor(target) for target in MARK_MINOR})

    def verify(self, interface: str) -> bool:
        """Whether the kernel still has what was last applied. If not, what it has is what `apply` starts from next.

        Raises:
            ConfigurationError: not attached, or the interface is gone.
            ShapingError: the root is not ours any more: somebody replaced it. Attach again to take it back.
        """
        unchanged = self._egress.verify(interface)
        return self._segments.verify(interface) and unchanged

    def segments(self, interface: str) -> SegmentState:
        """What came of an attached interface's `gso_max_segs`.

        Raises:
            ConfigurationError: not attached.
        """
        self._egress.known(interface)
        return self._segments.state(interface)

    def counters(self, interface: str) -> InterfaceCounters:
        """Read an attached interface.

        Raises:
            ConfigurationError: not attached, or the interface is gone.
            ShapingError: classes of ours are missing; somebody changed the tree. `verify` says what is left.
        """
        return self._egress.counters(interface)

    def observe(self, interface: str) -> Tree | None:
        """The tree of ours that is there now, or None."""
        return self._kernel.observe(interface)

    def detach(self, interface: str) -> tuple[str, ...]:
        """Put back what was there before, in both directions; returns sentences on what could not be put back.

        Works for interfaces that this object did not attach, too, when the journal knows them or a tree of ours is
        there. An interface that is gone is only forgotten.
        """
        classified = self._classification.forget(interface)
        try:
            notes = self.ingress.detach(interface)
        except (HiveError, OSError) as error:  # an IFB that stays is no reason to leave the root as it is
            undo_after(error, lambda: self._give_back(interface, classified=classified))
            raise
        return (*notes, *self._give_back(interface, classified=classified))

    def _give_back(self, interface: str, *, classified: bool) -> tuple[str, ...]:
        """The outbound direction: segments, root and rules."""
        notes = (*self._segments.put_back(interface), *self._egress.put_back(interface))
        if classified:  # last: whatever the rules of other interfaces meet, this one's root is back by now
            try:
                notes = (*notes, *self.classify())
            except ShapingError as error:
                notes = (*notes, str(error))
        return notes

    def release(self, interface: str) -> None:
        """Know an interface no more, and leave it as it is: it has another name now, by which `attach` adopts it."""
        self._egress.release(interface)
        self._classification.forget(interface)
        self._segments.release(interface)
        self.ingress.release(interface)

    def clear(self) -> tuple[str, ...]:
        """Remove all that is ours from this network namespace, whoever made it: trees, IFBs, programs, journal
        entries.

        Returns:
            Sentences on what was removed, and on what could not be put back.

        Raises:
            HiveError, OSError: something was refused; all the rest has been removed by then.
        """
        notes: list[str] = []
        refused: list[HiveError | OSError] = []
        ours = [name for name in self._kernel.interfaces() if self._kernel.observe(name) is not None]
        for interface in sorted({*ours, *self._journal.interfaces()}):
            try:
                notes.extend(self.detach(interface) or (f"{interface}: put back what was there before",))
            except (HiveError, OSError) as error:
                refused.append(error)
        notes.extend(self.ingress.clear(refused))
        try:
            notes.extend(self._classification.clear())
        except ShapingError as error:
            refused.append(error)
        if refused:
            for line in (*notes, *map(str, refused[1:])):
                refused[0].add_note(line)
            raise refused[0]
        return tuple(notes)

    def close(self) -> None:
        """Release sockets. The tree stays and traffic flows on; what is forwarded is not told any more."""
        self._kernel.close()

    def __enter__(self) -> Shaper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
