"""The shaper takes over, adopts, refuses and puts back as its table says; on the fake kernel."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from fake_kernel import DEFAULT_ROOT, FakeClassifier, FakeKernel
from shaping_contract import MBIT, make_shape

from hive_qos.errors import ConfigurationError, KernelRejectedError, PrivilegeError, ShapingError
from shaping.journal import Journal
from shaping.model.names import BULK_NAME, CLASS_NAMES, LEAF_MINOR, MARK_MINOR
from shaping.model.observations import Capabilities, PriorQdisc
from shaping.model.shapes import Rule
from shaping.model.tree import AddFilter, AddLeaf, ChangeClass
from shaping.shaper import Shaper

TBF = PriorQdisc("tbf", 7, {"raw": "2800"})
PORT = (Rule("storage", port=873),)


def test_a_default_root_is_journalled_and_replaced(kernel: FakeKernel, journal: Journal) -> None:
    attachment = Shaper(kernel, journal).attach(make_shape("eth0"))
    assert not attachment.adopted
    assert journal.read("eth0") == attachment.prior == DEFAULT_ROOT
    assert kernel.observe("eth0") is not None


def test_the_journal_is_written_before_the_root_is_touched(kernel: FakeKernel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Shaper(kernel, Journal(tmp_path / "file")).attach(make_shape("eth0"))
    assert kernel.root("eth0") == DEFAULT_ROOT


def test_the_lines_rate_is_journalled_for_as_long_as_the_interface_is_held(
    kernel: FakeKernel, journal: Journal
) -> None:
    shaper, shape = Shaper(kernel, journal), make_shape("eth0")
    shaper.attach(replace(shape, line_bits_per_s=50 * MBIT))
    assert Journal(journal.directory).read_line("eth0") == 50 * MBIT
    shaper.apply(replace(shape, line_bits_per_s=60 * MBIT))
    assert journal.read_line("eth0") == 60 * MBIT
    changes = journal.changes
    shaper.apply(replace(shape, line_bits_per_s=60 * MBIT))
    assert journal.changes == changes
    shaper.detach("eth0")
    assert list(journal.directory.iterdir()) == []


def test_a_foreign_root_stays_unless_told(kernel: FakeKernel, journal: Journal) -> None:
    kernel.set_root("eth0", TBF)
    shaper = Shaper(kernel, journal)
    with pytest.raises(ConfigurationError, match=r"tbf 7:.*--take-over"):
        shaper.attach(make_shape("eth0"))
    assert kernel.root("eth0") == TBF
    assert journal.interfaces() == ()
    shaper.attach(make_shape("eth0"), replace_foreign=True)
    shaper.detach("eth0")
    assert kernel.root("eth0") == TBF


def test_a_root_that_the_kernel_will_not_take_back_is_named_at_the_start(kernel: FakeKernel, journal: Journal) -> None:
    kernel.set_root("eth0", PriorQdisc("red", 7, {"raw": "2800"}))
    (note,) = Shaper(kernel, journal).attach(make_shape("eth0"), replace_foreign=True).notes
    assert note.startswith("eth0: red 7: will not be put back")


def test_a_restart_adopts_without_touching_queues_and_keeps_the_first_journal_entry(
    kernel: FakeKernel, journal: Journal
) -> None:
    kernel.set_root("eth0", TBF)
    Shaper(kernel, journal).attach(make_shape("eth0"), replace_foreign=True)
    kernel.enqueue("eth0", LEAF_MINOR["storage"], 40)
    again = Shaper(kernel, journal)
    assert again.attach(make_shape("eth0")).operations == ()
    attachment = again.attach(make_shape("eth0", storage=6 * MBIT))
    assert attachment.adopted
    assert {type(operation) for operation in attachment.operations} == {ChangeClass}
    assert attachment.prior == TBF
    assert kernel.backlog("eth0", LEAF_MINOR["storage"]) == 40
    assert kernel.purged_packets == 0


def test_a_tree_that_somebody_deleted_is_built_again_and_the_first_prior_comes_back(
    kernel: FakeKernel, journal: Journal
) -> None:
    kernel.set_root("eth0", TBF)
    shaper = Shaper(kernel, journal)
    shaper.attach(make_shape("eth0"), replace_foreign=True)
    kernel.delete_root("eth0")
    with pytest.raises(ShapingError, match="not ours any more"):
        shaper.verify("eth0")
    assert shaper.attach(make_shape("eth0")).prior == TBF
    assert journal.read("eth0") == TBF
    kernel.delete_root("eth0")  # and while no broker runs
    shaper = Shaper(kernel, journal)
    assert shaper.attach(make_shape("eth0")).prior == TBF
    shaper.detach("eth0")
    assert kernel.root("eth0") == TBF


def test_what_somebody_put_in_the_place_of_our_tree_is_the_prior_from_then_on(
    kernel: FakeKernel, journal: Journal
) -> None:
    shaper = Shaper(kernel, journal)
    shaper.attach(make_shape("eth0"))
    kernel.delete_root("eth0")
    kernel.set_root("eth0", TBF)
    shaper.attach(make_shape("eth0"), replace_foreign=True)
    shaper.detach("eth0")
    assert kernel.root("eth0") == TBF
    shaper.attach(make_shape("eth0"), replace_foreign=True)
    kernel.delete_root("eth0")
    shaper.detach("eth0")
    assert shaper.attach(make_shape("eth0")).prior == DEFAULT_ROOT


def test_a_lost_journal_is_told_and_detaching_leaves_the_default(kernel: FakeKernel, tmp_path: Path) -> None:
    Shaper(kernel, Journal(tmp_path / "old")).attach(make_shape("eth0"))
    shaper = Shaper(kernel, Journal(tmp_path / "new"))
    assert any("without a journal entry" in note for note in shaper.attach(make_shape("eth0")).notes)
    shaper.detach("eth0")
    assert kernel.root("eth0") == DEFAULT_ROOT


def test_a_failed_build_leaves_the_interface_as_it_was(kernel: FakeKernel, journal: Journal) -> None:
    kernel.set_root("eth0", TBF)
    kernel.reject_next = (AddLeaf, KernelRejectedError("add leaf", errno_value=errno.ENOMEM, detail="no memory"))
    with pytest.raises(KernelRejectedError, match="no memory"):
        Shaper(kernel, journal).attach(make_shape("eth0"), replace_foreign=True)
    assert kernel.root("eth0") == TBF
    assert journal.interfaces() == ()


def test_after_a_refused_change_the_next_one_starts_from_what_is_there(kernel: FakeKernel, journal: Journal) -> None:
    shaper = Shaper(kernel, journal)
    shaper.attach(make_shape("eth0"))
    kernel.reject_next = (ChangeClass, KernelRejectedError("change", errno_value=errno.EBUSY, detail="busy"))
    wanted = make_shape("eth0", storage=6 * MBIT)
    with pytest.raises(KernelRejectedError, match="busy"):
        shaper.apply(wanted)
    assert len(shaper.apply(wanted)) == 1, "of two changes, one was refused and one done"
    assert shaper.verify("eth0")


def test_without_u32_the_rest_is_shaped_and_the_lack_is_told(kernel: FakeKernel, journal: Journal) -> None:
    words = KernelRejectedError("add filter", errno_value=errno.ENOENT, detail="TC classifier not found")
    kernel.reject_next = (AddFilter, words)
    shaper = Shaper(kernel, journal)
    attachment = shaper.attach(make_shape("eth0", rules=(Rule("storage", dscp=1),)))
    assert any("no u32 classifier" in note for note in attachment.notes)
    assert shaper.apply(make_shape("eth0", rules=(Rule("storage", dscp=1),))) == ()


def test_without_htb_nothing_is_begun(journal: Journal) -> None:
    kernel = FakeKernel(capabilities=Capabilities(htb=False))
    with pytest.raises(ShapingError, match="no HTB"):
        Shaper(kernel, journal).attach(make_shape("eth0"))
    assert journal.interfaces() == ()


def test_missing_privilege_is_not_swallowed(journal: Journal) -> None:
    kernel = FakeKernel(privileged=False)
    with pytest.raises(PrivilegeError):
        Shaper(kernel, journal).attach(make_shape("eth0"))


def test_what_is_not_attached_cannot_be_changed_or_read(kernel: FakeKernel, journal: Journal) -> None:
    shaper = Shaper(kernel, journal)
    with pytest.raises(ConfigurationError, match="not attached"):
        shaper.apply(make_shape("eth0"))
    with pytest.raises(ConfigurationError, match="not attached"):
        shaper.counters("eth0")


def test_a_tree_that_somebody_replaced_is_noticed_and_left_to_him(kernel: FakeKernel, journal: Journal) -> None:
    shaper = Shaper(kernel, journal)
    shaper.attach(make_shape("eth0"))
    kernel.set_root("eth0", TBF)
    with pytest.raises(ShapingError, match="lost classes of ours"):
        shaper.counters("eth0")
    with pytest.raises(ShapingError, match="not ours any more"):
        shaper.verify("eth0")
    assert any("its root stays" in note for note in shaper.detach("eth0"))
    assert kernel.root("eth0") == TBF


def test_counters_are_by_class_and_bulk_is_part_of_compute(kernel: FakeKernel, journal: Journal) -> None:
    shaper = Shaper(kernel, journal)
    shaper.attach(make_shape("eth0"))
    kernel.enqueue("eth0", LEAF_MINOR["compute"], 3)
    kernel.enqueue("eth0", LEAF_MINOR[BULK_NAME], 4)
    counters = shaper.counters("eth0")
    assert set(counters.classes) == {*CLASS_NAMES, BULK_NAME}
    assert counters.classes["compute"].backlog_packets == 7
    assert counters.classes[BULK_NAME].backlog_packets == 4


def test_socket_rules_of_all_interfaces_are_enforced_together_and_go_with_their_interface(
    kernel: FakeKernel, journal: Journal
) -> None:
    classifier = FakeClassifier()
    shaper = Shaper(kernel, journal, classifier=classifier)
    one, two = Rule("storage", uid=7), Rule("control", cgroup="x.slice")
    shaper.attach(make_shape("eth0", rules=(one, *PORT)))
    shaper.attach(make_shape("eth1", rules=(one, two)))
    assert classifier.rules == (one, two)
    shaper.detach("eth1")
    assert classifier.rules == (one,)
    shaper.apply(make_shape("eth0"))
    assert classifier.rules == ()


def test_socket_rules_without_a_classifier_are_told(kernel: FakeKernel, journal: Journal) -> None:
    attachment = Shaper(kernel, journal).attach(make_shape("eth0", rules=(Rule("storage", uid=7),)))
    assert any("not in force" in note for note in attachment.notes)


BY_USER = (Rule("storage", uid=7), *PORT)
NO_BPF = (
    PrivilegeError("load BTF: Operation not permitted; it needs CAP_BPF and CAP_NET_ADMIN"),
    KernelRejectedError("list the BPF programs of a cgroup", errno_value=errno.ENOSYS, detail="not implemented"),
)


@pytest.mark.parametrize("failure", NO_BPF, ids=lambda failure: type(failure).__name__)
def test_without_bpf_ports_and_passed_sockets_go_on_and_the_lack_is_told_until_it_ends(
    kernel: FakeKernel, journal: Journal, failure: ShapingError
) -> None:
    classifier = FakeClassifier(failure=failure)
    shaper = Shaper(kernel, journal, classifier=classifier)
    attachment = shaper.attach(make_shape("eth0", rules=BY_USER))
    assert attachment.notes == shaper.classify() == (f"rules on cgroups and users are not in force: {failure}",)
    tree = kernel.observe("eth0")
    assert tree is not None
    assert tree.filters
    classifier.failure = None
    assert shaper.classify() == ()
    assert classifier.rules == BY_USER[:1]


ADDRESS = Rule("storage", address="172.17.0.0/16")


def test_what_is_forwarded_is_told_by_all_rules_in_their_order_as_soon_as_one_names_an_address(
    kernel: FakeKernel, journal: Journal
) -> None:
    rules = (Rule("other", port=8080), ADDRESS, Rule("storage", uid=1001))
    shaper = Shaper(kernel, journal, classifier=FakeClassifier())
    for interface in ("eth0", "eth1"):
        assert shaper.attach(make_shape(interface, rules=rules)).notes == ()
    assert kernel.forwarded == ((rules[0], MARK_MINOR["other"]), (ADDRESS, MARK_MINOR["storage"]))
    shaper.detach("eth0")
    assert kernel.forwarded
    shaper.apply(make_shape("eth1", rules=rules[:1]))
    assert kernel.forwarded == ()
    shaper.apply(make_shape("eth1", rules=rules))
    assert kernel.forwarded
    shaper.detach("eth1")
    assert kernel.forwarded == ()


def test_too_many_rules_of_two_interfaces_together_are_said_and_stop_no_change_of_one(
    kernel: FakeKernel, journal: Journal
) -> None:
    old = (ADDRESS, *(Rule("storage", port=port) for port in range(2000, 2040)))
    new = (ADDRESS, *(Rule("storage", port=port) for port in range(3000, 3040)))
    shaper = Shaper(kernel, journal, classifier=FakeClassifier())
    for interface in ("eth0", "eth1"):
        shaper.attach(make_shape(interface, rules=old))
    shaper.apply(make_shape("eth0", rules=new))
    (note,) = shaper.classify()
    assert "80" in note or "81" in note or "64" in note
    shaper.apply(make_shape("eth1", rules=new))
    assert shaper.classify() == ()
    assert kernel.forwarded


def test_without_u32_what_is_forwarded_goes_to_the_default_leaf_to_which_marks_go_then(journal: Journal) -> None:
    kernel = FakeKernel(capabilities=Capabilities(u32=False))
    Shaper(kernel, journal).attach(make_shape("eth0", rules=(ADDRESS,)))
    assert kernel.forwarded == ((ADDRESS, LEAF_MINOR["storage"]),)


def test_where_what_is_forwarded_cannot_be_told_that_is_said_and_the_rest_goes_on(
    kernel: FakeKernel, journal: Journal
) -> None:
    kernel.reject_forwarded = KernelRejectedError("make the table", errno_value=errno.EOPNOTSUPP)
    shaper = Shaper(kernel, journal)
    attachment = shaper.attach(make_shape("eth0", rules=(ADDRESS,)))
    (note,) = shaper.classify()
    assert attachment.notes == (note,)
    assert "NAT" in note
    tree = kernel.observe("eth0")
    assert tree is not None
    assert any(rule.parent_minor == 0 for rule in tree.filters)
    kernel.reject_forwarded = None
    shaper.apply(make_shape("eth0", rules=(*PORT, ADDRESS)))
    assert shaper.classify() == ()
    assert kernel.forwarded


@pytest.mark.parametrize("failure", [ValueError("embedded null byte"), OSError(errno.ELOOP, "too many links")])
def test_rules_that_cannot_even_be_tried_leave_no_tree_behind(
    kernel: FakeKernel, journal: Journal, failure: Exception
) -> None:
    kernel.set_root("eth0", TBF)
    shaper = Shaper(kernel, journal, classifier=FakeClassifier(failure=failure))
    with pytest.raises(ShapingError, match=r"null byte|many links"):
        shaper.attach(make_shape("eth0", rules=BY_USER), replace_foreign=True)
    assert kernel.root("eth0") == TBF
    assert (shaper.interfaces, journal.interfaces()) == ((), ())


@pytest.mark.parametrize("failure", [*NO_BPF, ValueError("embedded null byte"), OSError(errno.EIO, "broken")])
def test_the_root_comes_back_whatever_the_rules_meet(kernel: FakeKernel, journal: Journal, failure: Exception) -> None:
    classifier = FakeClassifier()
    shaper = Shaper(kernel, journal, classifier=classifier)
    for interface in ("eth0", "eth1"):
        shaper.attach(make_shape(interface, rules=BY_USER))
    classifier.failure = failure
    assert any(str(failure) in note for note in shaper.detach("eth0"))
    assert kernel.root("eth0") == DEFAULT_ROOT


def test_an_unreadable_journal_does_not_keep_the_root_from_coming_back(kernel: FakeKernel, tmp_path: Path) -> None:
    kernel.set_root("eth0", TBF)
    shaper = Shaper(kernel, Journal(tmp_path))
    shaper.attach(make_shape("eth0"), replace_foreign=True)
    (tmp_path / "qdisc-eth0.json").write_text("{")
    assert any("read at the start" in note for note in shaper.detach("eth0"))
    assert kernel.root("eth0") == TBF


def test_clearing_goes_on_after_a_refusal_and_then_says_it(
    kernel: FakeKernel, journal: Journal, tmp_path: Path
) -> None:
    shaper = Shaper(kernel, journal, classifier=FakeClassifier(failure=NO_BPF[0]))
    for interface in ("eth0", "eth1"):
        shaper.attach(make_shape(interface))
    (tmp_path / "qdisc-eth0.json").write_text("{")
    other = Shaper(kernel, journal, classifier=FakeClassifier(failure=NO_BPF[0]))
    with pytest.raises(ShapingError, match="eth0") as caught:
        other.clear()
    assert kernel.root("eth1") == DEFAULT_ROOT
    assert any("load BTF" in note for note in caught.value.__notes__)


def test_clearing_finds_trees_that_somebody_else_attached(kernel: FakeKernel, journal: Journal) -> None:
    kernel.set_root("eth1", TBF)
    first = Shaper(kernel, journal, classifier=FakeClassifier())
    first.attach(make_shape("eth0", rules=PORT))
    first.attach(make_shape("eth1"), replace_foreign=True)
    notes = Shaper(kernel, journal, classifier=FakeClassifier()).clear()
    assert len(notes) == 2
    assert (kernel.root("eth0"), kernel.root("eth1")) == (DEFAULT_ROOT, TBF)
    assert Shaper(kernel, journal).clear() == ()


def test_the_journal_of_an_interface_that_is_not_here_is_kept(kernel: FakeKernel, journal: Journal) -> None:
    shaper = Shaper(kernel, journal)
    shaper.attach(make_shape("eth1"))
    gone = FakeKernel(("eth0",))
    assert any("gone" in note for note in Shaper(gone, journal).detach("eth1"))
    assert journal.interfaces() == ("eth1",), "it may be another namespace's"


def test_a_renamed_interface_is_adopted_by_its_new_name_with_its_queues_and_its_journal(
    kernel: FakeKernel, journal: Journal
) -> None:
    kernel.set_root("eth0", TBF)
    shaper = Shaper(kernel, journal)
    shaper.attach(make_shape("eth0"), replace_foreign=True)
    kernel.enqueue("eth0", LEAF_MINOR["storage"], 30)
    kernel.rename("eth0", "lan0")
    shaper.release("eth0")
    journal.rename({"eth0": "lan0"})
    assert shaper.attach(make_shape("lan0")).adopted
    assert shaper.interfaces == ("lan0",)
    assert (kernel.backlog("lan0", LEAF_MINOR["storage"]), kernel.purged_packets) == (30, 0)
    shaper.detach("lan0")
    assert kernel.root("lan0") == TBF
