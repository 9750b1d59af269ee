"""Make interfaces look as wanted and keep them so: observe, diff, apply, read back, and put back at the end.

    with Shaper(RealKernel(), Journal(Path("/var/lib/hive-qos"))) as shaper:
        shaper.attach(shape)
        shaper.apply(changed_shape)
        shaper.counters("eth0").classes["storage"].sent_bytes

Synchronous, for one thread. Closing releases sockets and leaves the interfaces as they are; `detach` puts back.

What is at the root decides what `attach` does:

    the kernel's default (handle 0:)       journal it, build
    a foreign qdisc                        refuse, or with `replace_foreign` journal it, build
    ours, as we would build it, or less    adopt: change what differs, keep the queues and the old journal entry
    ours, but another structure            refuse, or with `rebuild` delete it and build; the old journal entry stays
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from hive_qos.errors import ConfigurationError, HiveError, KernelRejectedError, ShapingError
from shaping.classify.rules import Classification
from shaping.gso_limit import Segments
from shaping.ingress import Ingress
from shaping.journal import Journal
from shaping.kernel_api import Classifier, Kernel
from shaping.model import (
    LEAF_MINOR,
    MARK_MINOR,
    AddFilter,
    Attachment,
    Capabilities,
    IngressAttachment,
    IngressShape,
    InterfaceCounters,
    InterfaceShape,
    Operation,
    PriorQdisc,
    SegmentState,
    Tree,
)
from shaping.plan.counters import counters_of
from shaping.plan.desired_tree import desired_tree
from shaping.plan.diff import StructureError, diff


@dataclass(frozen=True)
class _Attached:
    """What we know of an interface: its journalled prior, the tree as last applied and read back, and its shape.

    `shape` is None where the tree is not known to be the shape's.
    """

    prior: PriorQdisc
    tree: Tree
    shape: InterfaceShape | None = None


class Shaper:
    """The kernel side of a broker, for every interface that it was given."""

    def __init__(self, kernel: Kernel, journal: Journal, *, classifier: Classifier | None = None) -> None:
        """Nothing is touched yet.

        Args:
            classifier: enforces rules on cgroups and users (`cgroup.SocketClassifier`); None leaves them out.
        """
        self._kernel = kernel
        self._journal = journal
        self._classification = Classification(kernel, classifier)
        self._segments = Segments(kernel, journal)
        self._ingress = Ingress(kernel, journal)
        self._lines: dict[str, int | None] = {}
        self._attached: dict[str, _Attached] = {}
        self._first_priors: dict[str, PriorQdisc] = {}  # of what is attached, and stays while somebody deletes a tree
        self._capabilities: Capabilities | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What this kernel offers."""
        if self._capabilities is None:
            self._capabilities = self._kernel.capabilities()
        return self._capabilities

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The attached ones."""
        return tuple(self._attached)

    def mark_minor(self, target: str) -> int:
        """What `mark_socket` gets for a flow of `target` (a key of `MARK_MINOR`).

        Without u32 nothing leads from an inner node to a leaf: marks name the default leaf then. That is known when the
        first interface has been attached.
        """
        return (MARK_MINOR if self.capabilities.u32 else LEAF_MINOR)[target]

    def attach(self, shape: InterfaceShape, *, replace_foreign: bool = False, rebuild: bool = False) -> Attachment:
        """Take over one interface: journal the prior root, build the tree, or adopt the one of ours that is there.

        Args:
            replace_foreign: replace a root, and a gso_max_segs, that somebody configured; what was there is journalled
                and put back by `detach`.
            rebuild: when a tree of ours has another structure than we would build, build anew (its queues are lost).

        Raises:
            ConfigurationError: no such interface; a foreign root and not `replace_foreign`; another structure and not
                `rebuild`.
            ShapingError: the kernel side failed; the interface is as before, or has its prior root back. A kernel or
                process that cannot do rules on cgroups and users is no error: it is told, and the rest works.
            ValueError: a shape that cannot be (`tree.desired_tree`); nothing was touched.
        """
        if not self.capabilities.htb:
            raise ShapingError("this kernel has no HTB (CONFIG_NET_SCH_HTB); nothing can be shaped here")
        interface = shape.interface
        desired_tree(shape, self.capabilities)  # what cannot be is refused before anything is looked at
        observed = self._kernel.observe(interface)
        wanted = desired_tree(shape, self.capabilities, observed)
        if observed is None:
            attachment = self._build_anew(interface, wanted, replace_foreign=replace_foreign)
        else:
            attachment = self._adopt(interface, observed, wanted, rebuild=rebuild)
        self._classification.ask(interface, shape.rules)
        try:
            notes = self.classify()
            limited = self._segments.attach(interface, shape.gso_max_segs, take_over=replace_foreign)
        except BaseException as error:  # it goes on below; but nobody would know of the tree that is there now
            _reported(error, lambda: self.detach(interface))
            raise
        if limited is not None:
            notes = (*notes, f"{interface}: {limited}")
        return replace(attachment, notes=(*attachment.notes, *notes, *self._journal_line(shape)))

    def apply(self, shape: InterfaceShape) -> tuple[Operation, ...]:
        """Bring an attached interface to `shape`, losing no packet; returns what was done, empty when nothing was.

        It compares with what was last read back, and does not ask the kernel again when nothing is to do.

        Raises:
            ConfigurationError: not attached.
            ShapingError: the kernel side failed. What is there then is read again at the next call.
        """
        attached = self._known(shape.interface)
        operations = () if shape == attached.shape else self._change(shape, attached)
        self._segments.apply(shape.interface, shape.gso_max_segs)
        if self._lines.get(shape.interface) != shape.line_bits_per_s:
            self._journal_line(shape)
        if self._classification.ask(shape.interface, shape.rules):
            self.classify()
        return operations

    def _change(self, shape: InterfaceShape, attached: _Attached) -> tuple[Operation, ...]:
        wanted = desired_tree(shape, self.capabilities, attached.tree)
        try:
            operations = diff(attached.tree, wanted)
            self._kernel.apply(shape.interface, operations)
        except ShapingError:
            observed = self._kernel.observe(shape.interface)
            if observed is not None:
                self._attached[shape.interface] = replace(attached, tree=observed, shape=None)
            raise
        self._attached[shape.interface] = replace(attached, tree=wanted, shape=shape)
        return operations

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
        attached = self._known(interface)
        observed = self._kernel.observe(interface)
        if observed is None:
            del self._attached[interface]
            raise ShapingError(f"the root of {interface} is not ours any more; somebody replaced or removed it")
        if observed != attached.tree:
            self._attached[interface] = replace(attached, tree=observed, shape=None)
        limited = self._segments.verify(interface)
        return limited and observed == attached.tree

    def segments(self, interface: str) -> SegmentState:
        """What came of an attached interface's `gso_max_segs`.

        Raises:
            ConfigurationError: not attached.
        """
        self._known(interface)
        return self._segments.state(interface)

    def counters(self, interface: str, *, direct: bool = True) -> InterfaceCounters:
        """Read an attached interface; without `direct` at half the cost, and not what passed HTB unshaped.

        Raises:
            ConfigurationError: not attached, or the interface is gone.
            ShapingError: classes of ours are missing; somebody changed the tree. `verify` says what is left.
        """
        attached = self._known(interface)
        found = self._kernel.counters(interface)
        past = self._kernel.direct_packets(interface) if direct else None
        return counters_of(interface, found, past, tree=attached.tree, direction="egress")

    def attach_ingress(self, shape: IngressShape) -> IngressAttachment:
        """Shape what arrives at an interface, attached or not, on an IFB: make one, or adopt ours that is there.

        Raises:
            ConfigurationError: no such interface; somebody else has something at its ingress.
            ShapingError: the kernel has no IFB, mirred or u32, or refused; everything arrives as before.
            ValueError: a shape that cannot be; nothing was touched.
        """
        return self._ingress.attach(shape, self.capabilities)

    def apply_ingress(self, shape: IngressShape) -> tuple[Operation, ...]:
        """Bring an attached ingress to `shape`, losing no packet, as `apply`.

        Raises:
            ConfigurationError: not attached.
            ShapingError: the kernel side failed.
        """
        return self._ingress.apply(shape, self.capabilities)

    def check_ingress(self, interface: str) -> bool:
        """Whether what arrives still finds its IFB; where not, it arrives unshaped from here on, and nothing is lost.

        Two microseconds: for every tick, and for every event of a link. False means that the ingress is not attached
        any more; attach it again.
        """
        return self._ingress.check(interface)

    def verify_ingress(self, interface: str) -> bool:
        """Whether the kernel still has what was last applied. If not, attach again.

        Raises:
            ConfigurationError: not attached, or the interface is gone.
        """
        return self._ingress.verify(interface)

    def ingress_counters(self, interface: str) -> InterfaceCounters:
        """Read the classes of what arrives; errors as of `counters`."""
        return self._ingress.counters(interface)

    def detach_ingress(self, interface: str) -> tuple[str, ...]:
        """Let everything arrive as before, and delete the IFB; sentences on what could not be done.

        Also for what a former process left. Harmless where nothing of ours is.
        """
        return self._ingress.detach(interface)

    def observe(self, interface: str) -> Tree | None:
        """The tree of ours that is there now, or None."""
        return self._kernel.observe(interface)

    def detach(self, interface: str) -> tuple[str, ...]:
        """Put back what was there before, in both directions; returns sentences on what could not be put back.

        Works for interfaces that this object did not attach, too, when the journal knows them or a tree of ours is
        there. An interface that is gone is only forgotten.
        """
        attached = self._attached.pop(interface, None)
        self._first_priors.pop(interface, None)
        self._lines.pop(interface, None)
        classified = self._classification.forget(interface)
        try:
            notes = self._ingress.detach(interface)
        except (HiveError, OSError) as error:  # an IFB that stays is no reason to leave the root as it is
            _reported(error, lambda: self._give_back(interface, attached, classified=classified))
            raise
        return (*notes, *self._give_back(interface, attached, classified=classified))

    def _give_back(self, interface: str, attached: _Attached | None, *, classified: bool) -> tuple[str, ...]:
        """The way out: segments, root and rules."""
        notes = (*self._segments.put_back(interface), *self._put_back(interface, attached))
        if classified:  # last: whatever the rules of other interfaces meet, this one's root is back by now
            try:
                notes = (*notes, *self.classify())
            except ShapingError as error:
                notes = (*notes, str(error))
        return notes

    def release(self, interface: str) -> None:
        """Know an interface no more, and leave it as it is: it has another name now, by which `attach` adopts it."""
        for known in (self._attached, self._first_priors, self._lines):
            known.pop(interface, None)
        self._classification.forget(interface)
        self._segments.release(interface)
        self._ingress.release(interface)

    def _put_back(self, interface: str, attached: _Attached | None) -> tuple[str, ...]:
        notes: tuple[str, ...] = ()
        try:
            prior = self._journal.read(interface)
        except (ShapingError, OSError) as error:
            if attached is None:
                raise
            prior, notes = None, (f"{interface}: {error}; what was read at the start is put back",)
        if prior is None and attached is not None:
            prior = attached.prior
        if interface not in self._kernel.interfaces():
            if attached is not None:  # otherwise it may be another namespace's, or come back
                self._journal.forget(interface)
            return (*notes, f"{interface} is gone; nothing to put back")
        if self._kernel.observe(interface) is None:
            if prior is not None:
                notes = (*notes, f"{interface}: the tree was not there any more; its root stays as it is")
        elif prior is None:
            self._kernel.delete_root(interface)
            notes = (*notes, f"{interface}: no journal entry; the kernel's default is there now")
        else:
            notes = (*notes, *self._kernel.restore_root(interface, prior))
        self._journal.forget(interface)
        return notes

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
        notes.extend(self._ingress.clear(refused))
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

    def _journal_line(self, shape: InterfaceShape) -> tuple[str, ...]:
        """Remember what the interface's ceilings would be opened to; where that fails, to what its root has."""
        try:
            if shape.line_bits_per_s is None:
                self._journal.forget_line(shape.interface)
            elif self._journal.read_line(shape.interface) != shape.line_bits_per_s:
                self._journal.write_line(shape.interface, shape.line_bits_per_s)
            self._lines[shape.interface] = shape.line_bits_per_s
        except (ShapingError, OSError) as error:
            return (f"{shape.interface}: its line's rate is not journalled: {error}",)
        return ()

    def _known(self, interface: str) -> _Attached:
        attached = self._attached.get(interface)
        if attached is None:
            raise ConfigurationError("interface.name", interface, "not attached; attach it first")
        return attached

    def _build_anew(self, interface: str, wanted: Tree, *, replace_foreign: bool) -> Attachment:
        prior = self._kernel.root(interface)
        if prior.handle_major and not replace_foreign:
            raise ConfigurationError(
                "interface.name",
                interface,
                f"somebody configured {prior.kind} {prior.handle_major:x}: at its root; remove it, or allow us to "
                "replace it (`hive-qos broker --take-over`; it is put back at the end)",
            )
        if not prior.handle_major:  # a tree of ours that somebody deleted left the default; that is not how it was
            prior = self._first_priors.get(interface, prior)
        self._journal.write(interface, prior)
        return self._build(interface, wanted, prior, adopted=False, notes=_prior_notes(interface, prior))

    def _adopt(self, interface: str, observed: Tree, wanted: Tree, *, rebuild: bool) -> Attachment:
        notes: tuple[str, ...] = ()
        prior = self._journal.read(interface)
        if prior is None:
            prior = PriorQdisc(kind="default", handle_major=0)
            notes = (f"{interface}: a tree of ours without a journal entry; detaching will leave the kernel's default",)
            self._journal.write(interface, prior)
        try:
            operations = diff(observed, wanted)
        except StructureError as error:
            if not rebuild:
                raise ConfigurationError(
                    "interface.name",
                    interface,
                    f"it has an older tree of ours ({error}); allow a rebuild (`hive-qos broker --rebuild`; its queues "
                    "are lost), or clear it (`hive-qos clear`)",
                ) from error
            self._kernel.delete_root(interface)
            return self._build(interface, wanted, prior, adopted=False, notes=(*notes, f"rebuilt, because {error}"))
        operations, tree, more = self._apply_tolerantly(interface, operations, wanted)
        self._attached[interface] = _Attached(prior=prior, tree=tree)
        self._first_priors[interface] = prior
        return Attachment(interface, adopted=True, prior=prior, operations=operations, notes=(*notes, *more))

    def _build(
        self, interface: str, wanted: Tree, prior: PriorQdisc, *, adopted: bool, notes: tuple[str, ...]
    ) -> Attachment:
        try:
            operations, tree, more = self._apply_tolerantly(interface, diff(None, wanted), wanted)
        except BaseException as error:
            _reported(error, lambda: self._kernel.restore_root(interface, prior))
            self._journal.forget(interface)
            raise
        self._attached[interface] = _Attached(prior=prior, tree=tree)
        self._first_priors[interface] = prior
        return Attachment(interface, adopted=adopted, prior=prior, operations=operations, notes=(*notes, *more))

    def _apply_tolerantly(
        self, interface: str, operations: tuple[Operation, ...], wanted: Tree
    ) -> tuple[tuple[Operation, ...], Tree, tuple[str, ...]]:
        """Apply; where the kernel has no u32, go on without port and DSCP rules, and say so."""
        rest = tuple(operation for operation in operations if not isinstance(operation, AddFilter))
        filters = tuple(operation for operation in operations if isinstance(operation, AddFilter))
        self._kernel.apply(interface, rest)
        try:
            self._kernel.apply(interface, filters)
        except KernelRejectedError as error:
            if "classifier not found" not in error.detail:
                raise
            self._capabilities = replace(self.capabilities, u32=False)
            note = (
                f"{interface}: this kernel has no u32 classifier; rules on ports, DSCP and addresses do "
                "nothing, and storage cannot be held back towards single destinations"
            )
            return rest, replace(wanted, filters=()), (note,)
        return (*rest, *filters), wanted, ()


def _reported(error: BaseException, undo: Callable[[], Sequence[str]]) -> None:
    """Undo after an error, and let that error carry what could not be undone."""
    try:
        for note in undo():
            error.add_note(note)
    except HiveError as another:
        error.add_note(f"and then: {another}")


def _prior_notes(interface: str, prior: PriorQdisc) -> tuple[str, ...]:
    if not prior.nested:
        return ()
    return (
        f"{interface}: {prior.nested} classes, queues and filters below {prior.kind} {prior.handle_major:x}: "
        "will not be put back",
    )
