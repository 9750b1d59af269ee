"""The fake kernel keeps the contract of the real one, so that tests on it mean something."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_kernel import FakeKernel
from shaping_contract import CLAIMS, make_tree

from hive_qos.errors import PrivilegeError
from shaping.kernel_api import Kernel
from shaping.model.names import LEAF_MINOR
from shaping.model.tree import AddClass
from shaping.plan.diff import diff


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_the_fake_kernel_keeps_the_contract(claim: Callable[[Kernel, str], None]) -> None:
    claim(FakeKernel(("eth0",)), "eth0")


def test_the_fake_kernel_refuses_changes_without_privilege() -> None:
    kernel = FakeKernel(privileged=False)
    with pytest.raises(PrivilegeError, match="not permitted"):
        kernel.apply("eth0", diff(None, make_tree(kernel, "eth0")))


def test_a_first_child_purges_its_parents_queue_as_htb_does() -> None:
    kernel = FakeKernel()
    tree = make_tree(kernel, "eth0")
    kernel.apply("eth0", diff(None, tree))
    leaf = next(spec for spec in tree.classes if spec.minor == LEAF_MINOR["storage"])
    kernel.enqueue("eth0", leaf.minor, 7)
    kernel.apply("eth0", [AddClass(type(leaf)(**{**leaf.__dict__, "minor": 0x99, "parent_minor": leaf.minor}))])
    assert kernel.purged_packets == 7
