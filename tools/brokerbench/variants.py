"""Who controls during a block: what is installed before it and taken away after it.

Where a condition's name ends with `HERE`, storage comes from hosts that do nothing: what is done about it is done on an
IFB of the host where it arrives.
"""

from __future__ import annotations

from tools.brokerbench.programs.flood import PORT
from tools.brokerbench.scenes import Scene
from tools.lab import Lab
from tools.measure import fixed_inbound
from tools.measure.fixed import FixedTree, remove

TREES = {"static": (0.2, False), "priority": (0.02, True)}
"""Storage's share of the shaped rate, and whether it may borrow. A split of 80 to 20 is what an administrator makes who
fears that either takes all; priority is the kernel's own way to let training go first, over the broker's floor."""

OURS = ("quiet", "brokered")
HERE = ", IFB"


def is_ours(condition: str) -> bool:
    """Whether our brokers control."""
    return condition.removesuffix(HERE) in OURS


def brokers_of(scene: Scene, condition: str) -> tuple[str, ...]:
    """The hosts whose brokers run."""
    silent = scene.flooders if condition.endswith(HERE) else ()
    return tuple(host for host in scene.believed_bits_per_s if host not in silent)


def install(scene: Scene, lab: Lab, condition: str) -> None:
    """Put a fixed tree on every host that sends, or on what arrives, where the condition is one."""
    variant = condition.removesuffix(HERE)
    if variant not in TREES:
        return
    share, borrowing = TREES[variant]
    if condition.endswith(HERE):
        for host, rate in scene.inbound_bits_per_s.items():
            tree = fixed_inbound.tree(rate_bits_per_s=rate, storage_share=share, borrowing=borrowing, port=PORT)
            fixed_inbound.install(tree, lab, host, interface=lab[host].interface)
        return
    for host, rate in scene.believed_bits_per_s.items():
        tree = FixedTree(rate_bits_per_s=rate, storage_share=share, borrowing=borrowing, port=PORT)
        tree.install(lab, host, interface=lab[host].interface)


def uninstall(scene: Scene, lab: Lab, condition: str) -> None:
    """Take it away again."""
    if condition.removesuffix(HERE) not in TREES:
        return
    if condition.endswith(HERE):
        for host in scene.inbound_bits_per_s:
            fixed_inbound.remove(lab, host, interface=lab[host].interface)
        return
    for host in scene.believed_bits_per_s:
        remove(lab, host, interface=lab[host].interface)
