"""Kinds that pyroute2 writes otherwise than we read them back. `register` puts ours in their place."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from pyroute2.netlink.rtnl.tcmsg import cls_u32, plugins
from pyroute2.netlink.rtnl.tcmsg.common_act import get_tca_action

_SELECTOR = struct.Struct("=BBBxHHhhI")  # struct tc_u32_sel: flags, offshift, nkeys, offmask, off, offoff, hoff, hmask
_TERMINAL = 1  # TC_U32_TERMINAL: a packet that matches needs no look at what follows

Matches = Sequence[tuple[int, int, int]]
"""Offset in bytes from the network header, mask, value."""


def register() -> None:
    """Have pyroute2 write u32 filters as below, everywhere in this process."""
    plugins["u32"] = U32


class U32:
    """pyroute2's own moves a key whose mask begins with zeros, and joins keys that follow each other."""

    fix_request = cls_u32.fix_request

    class options(cls_u32.options):  # type: ignore[misc]  # the name that pyroute2 looks for
        nla_map = tuple((name, "cdata" if name == "TCA_U32_SEL" else how) for name, how in cls_u32.options.nla_map)

    @staticmethod
    def get_parameters(wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        if "matches" not in wanted:  # a filter that is deleted
            return None
        attributes = [("TCA_U32_SEL", _selector(wanted["matches"]))]
        if "target" in wanted:
            attributes.append(("TCA_U32_CLASSID", wanted["target"]))
        if "action" in wanted:
            attributes.append(("TCA_U32_ACT", get_tca_action(wanted)))
        return {"attrs": attributes}


def _selector(matches: Matches) -> bytes:
    keys = (struct.pack(">II", mask, value) + struct.pack("=ii", offset, 0) for offset, mask, value in matches)
    return _SELECTOR.pack(_TERMINAL, 0, len(matches), 0, 0, 0, 0, 0) + b"".join(keys)


def matches_of(selector: bytes) -> tuple[tuple[int, int, int], ...]:
    """Back from a filter's TCA_U32_SEL."""
    found = []
    for start in range(_SELECTOR.size, _SELECTOR.size + 16 * selector[2], 16):
        mask, value = struct.unpack_from(">II", selector, start)
        (offset,) = struct.unpack_from("=i", selector, start + 8)
        found.append((offset, mask, value))
    return tuple(found)
