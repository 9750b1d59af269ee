"""Who controls the hosts' ways out during a block: what is installed before it and taken away after it."""

from __future__ import annotations

from tools.brokerbench.programs.flood import PORT
from tools.brokerbench.scenes import Scene
from tools.lab import Lab
from tools.measure.fixed import FixedTree, remove

TREES = {"static": (0.2, False), "priority": (0.02, True)}
"""Storage's share of the shaped rate, and whether it may borrow. A split of 80 to 20 is what an administrator makes who
fears that either takes all; priority is the kernel's own way to let training go first, over the broker's floor."""

OURS = ("quiet", "brokered")


def install(scene: Scene, lab: Lab, variant: str) -> None:
    """Put a fixed tree on every host that sends, where the variant is one."""
    if variant in TREES:
        share, borrowing = TREES[variant]
        for host, rate in scene.believed_bits_per_s.items():
            tree = FixedTree(rate_bits_per_s=rate, storage_share=share, borrowing=borrowing, port=PORT)
            tree.install(lab, host, interface=lab[host].interface)


def uninstall(scene: Scene, lab: Lab, variant: str) -> None:
    """Take it away again."""
    if variant in TREES:
        for host in scene.believed_bits_per_s:
            remove(lab, host, interface=lab[host].interface)
