"""Segmentation offload on a lab's links, for what is measured of processors.

The lab's links take single frames, and the kernel does the work for each in the name of the process that sends it. A
network card takes lumps of up to 64 KiB, cuts them itself, and joins what it receives: with this, so do the links.
"""

from __future__ import annotations

from tools.lab import Lab
from tools.lab.kernel import segmentation_on


def offload(lab: Lab) -> None:
    """Let every link without a relay carry lumps from now on.

    A TCP connection asks what its device can do when it is made, and never again: make connections after this.
    """
    for link in lab.plan.links:
        if lab.links[link.spec.name].medium == "veth":
            for end in (link.first, link.second):
                segmentation_on([end.name], namespace=lab.namespace_of(end.node))
                segmentation_on([end.wire], namespace=lab.wires)
