"""The trees of what leaves, one for each attached interface; a part of `Shaper`.

What is at the root decides what `attach` does:

    the kernel's default (handle 0:)       journal it, build
    a foreign qdisc                        refuse, or with `replace_foreign` journal it, build
    ours, as we would build it, or less    adopt: change what differs, keep the queues and the old journal entry
    ours, but another structure            delete it and build; the old journal entry stays
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hive_qos.errors import ConfigurationError, HiveError, KernelRejectedError, ShapingError
from shaping.failsafe import opened
from shaping.journal import Journal
from shaping.kernel_api import Kernel
from shaping.model.observations import (
    NOT_TAKEN_BACK,
    SIZE_TABLE,
    Attachment,
    Capabilities,
    InterfaceCounters,
    PriorQdisc,
)
from shaping.model.shapes import InterfaceShape
from shaping.model.tree import AddFilter, Operation, Tree
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


class Egress:
    """The trees of all interfaces that have been attached here. For one thread."""

    def __init__(self, kernel: Kernel, journal: Journal) -> None:
        self._kernel, self._journal = kernel, journal
        self._attached: dict[str, _Attached] = {}
        self._first_priors: dict[str, PriorQdisc] = {}  # of what is attached, and stays while somebody deletes a tree
        self._lines: dict[str, int | None] = {}
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

    def attach(self, shape: InterfaceShape, *, replace_foreign: bool) -> Attachment:
        """Build the tree or adopt ours; arguments and errors as of `Shaper.attach`."""
        if not self.capabilities.htb:
            raise ShapingError("this kernel has no HTB (CONFIG_NET_SCH_HTB); nothing can be shaped here")
        interface = shape.interface
        desired_tree(shape, self.capabilities)  # what cannot be is refused before anything is looked at
        observed = self._kernel.observe(interface)
        wanted = desired_tree(shape, self.capabilities, observed)
        if observed is None:
            return self._build_anew(interface, wanted, replace_foreign=replace_foreign)
        return self._adopt(interface, observed, wanted)

    def apply(self, shape: InterfaceShape) -> tuple[Operation, ...]:
        """Bring an attached interface's tree to `shape`; errors as of `Shaper.apply`."""
        attached = self.known(shape.interface)
        if shape == attached.shape:
            return ()
        wanted = desired_tree(shape, self.capabilities, attached.tree)
        try:
            operations = diff(attached.tree, wanted)
            self._kernel.apply(shape.interface, operations)
        except ShapingError:
            observed = self._kernel.observe(shape.interface)
            if observed is not None:
                tree = _without_others(observed, attached.tree, wanted)
                self._attached[shape.interface] = replace(attached, tree=tree, shape=None)
            raise
        self._attached[shape.interface] = replace(attached, tree=wanted, shape=shape)
        return operations

    def open(self, interface: str, line_bits_per_s: int | None) -> tuple[Operation, ...]:
        """Open every ceiling to the line's rate; errors as of `Shaper.open`."""
        attached = self.known(interface)
        wanted = opened(attached.tree, line_bits_per_s)
        operations = diff(attached.tree, wanted)
        self._attached[interface] = replace(attached, shape=None)
        self._kernel.apply(interface, operations)
        self._attached[interface] = replace(attached, tree=wanted, shape=None)
        return operations

    def verify(self, interface: str) -> bool:
        """Whether the kernel still has what was last applied. If not, what it has is what `apply` starts from next.

        Raises:
            ConfigurationError: not attached, or the interface is gone.
            ShapingError: the root is not ours any more: somebody replaced it. Attach again to take it back.
        """
        attached = self.known(interface)
        observed = self._kernel.observe(interface)
        if observed is None:
            del self._attached[interface]
            raise ShapingError(f"the root of {interface} is not ours any more; somebody replaced or removed it")
        tree = _without_others(observed, attached.tree)
        if tree != attached.tree:
            self._attached[interface] = replace(attached, tree=tree, shape=None)
        return tree == attached.tree

    def counters(self, interface: str) -> InterfaceCounters:
        """Read an attached interface.

        Raises:
            ConfigurationError: not attached, or the interface is gone.
            ShapingError: classes of ours are missing; somebody changed the tree. `verify` says what is left.
        """
        attached = self.known(interface)
        found = self._kernel.counters(interface)
        return counters_of(interface, found, tree=attached.tree, direction="egress")

    def journal_line(self, interface: str, line_bits_per_s: int | None) -> tuple[str, ...]:
        """Remember what ceilings are opened to when nobody decides; where that fails, it is what their root has."""
        if interface in self._lines and self._lines[interface] == line_bits_per_s:
            return ()
        try:
            if line_bits_per_s is None:
                self._journal.forget_line(interface)
            elif self._journal.read_line(interface) != line_bits_per_s:
                self._journal.write_line(interface, line_bits_per_s)
            self._lines[interface] = line_bits_per_s
        except (ShapingError, OSError) as error:
            return (f"{interface}: its line's rate is not journalled: {error}",)
        return ()

    def release(self, interface: str) -> None:
        """Know an interface no more, and leave it as it is."""
        for known in (self._attached, self._first_priors, self._lines):
            known.pop(interface, None)

    def put_back(self, interface: str) -> tuple[str, ...]:
        """Make the root again what it was, also after a crash; sentences on what could not be put back.

        Raises:
            ShapingError, OSError: the journal cannot be read, or the kernel refused.
        """
        attached = self._attached.get(interface)
        self.release(interface)
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

    def known(self, interface: str) -> _Attached:
        """What is known of an attached interface.

        Raises:
            ConfigurationError: it is not attached.
        """
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
            prior = self._first_priors.get(interface) or self._journalled(interface) or prior
        self._journal.write(interface, prior)
        return self._build(interface, wanted, prior, notes=_prior_notes(interface, prior))

    def _journalled(self, interface: str) -> PriorQdisc | None:
        """What was there before a tree of ours that went while no broker ran; a start of the machine ends that, too."""
        try:
            return self._journal.read_of_this_boot(interface)
        except (ShapingError, OSError):
            return None

    def _adopt(self, interface: str, observed: Tree, wanted: Tree) -> Attachment:
        notes: tuple[str, ...] = ()
        prior = self._journal.read(interface)
        if prior is None:
            prior = PriorQdisc(kind="default", handle_major=0)
            notes = (f"{interface}: a tree of ours without a journal entry; detaching will leave the kernel's default",)
            self._journal.write(interface, prior)
        try:
            operations = diff(observed, wanted)
        except StructureError as error:
            self._kernel.delete_root(interface)
            return self._build(interface, wanted, prior, notes=(*notes, f"rebuilt, because {error}"))
        operations, tree, more = self._apply_tolerantly(interface, operations, wanted)
        self._attached[interface] = _Attached(prior=prior, tree=tree)
        self._first_priors[interface] = prior
        return Attachment(interface, adopted=True, prior=prior, operations=operations, notes=(*notes, *more))

    def _build(self, interface: str, wanted: Tree, prior: PriorQdisc, *, notes: tuple[str, ...]) -> Attachment:
        try:
            operations, tree, more = self._apply_tolerantly(interface, diff(None, wanted), wanted)
        except BaseException as error:
            undo_after(error, lambda: self._kernel.restore_root(interface, prior))
            self._journal.forget(interface)
            raise
        self._attached[interface] = _Attached(prior=prior, tree=tree)
        self._first_priors[interface] = prior
        return Attachment(interface, adopted=False, prior=prior, operations=operations, notes=(*notes, *more))

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


def _without_others(observed: Tree, *ours: Tree) -> Tree:
    """The tree but for classes that somebody else added: they are not ours to delete, and no reason to stop."""
    minors = {spec.minor for tree in ours for spec in tree.classes}
    classes = tuple(spec for spec in observed.classes if spec.minor in minors)
    return replace(
        observed, classes=classes, leaves=tuple(one for one in observed.leaves if one.parent_minor in minors)
    )


def undo_after(error: BaseException, undo: Callable[[], Sequence[str]]) -> None:
    """Undo after an error, and let that error carry what could not be undone."""
    try:
        for note in undo():
            error.add_note(note)
    except HiveError as another:
        error.add_note(f"and then: {another}")


def _prior_notes(interface: str, prior: PriorQdisc) -> tuple[str, ...]:
    name, notes = f"{prior.kind} {prior.handle_major:x}:", []
    if prior.nested:
        notes.append(f"{interface}: {prior.nested} classes, queues and filters below {name} will not be put back")
    if prior.kind in NOT_TAKEN_BACK:
        notes.append(
            f"{interface}: {name} will not be put back, for the kernel refuses the options that it reports of this "
            "kind; set it again after the broker"
        )
    if prior.options.get(SIZE_TABLE):
        notes.append(
            f"{interface}: the size table (stab) of {name} will not be put back; set it again after the broker"
        )
    return tuple(notes)
