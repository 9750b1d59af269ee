"""What HTB counted for each class, out of the kernel's list of classes: 23 messages of each interface in every tick.

The kernel writes them with the same attributes of the same sizes. So the places of those that matter are found in one
message, and a message of the same length is taken apart by one `struct` that goes over these places, their headers
included; where the headers are others, it is looked at anew.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from operator import itemgetter

from hive_qos.netlink import attribute_places
from shaping.model import ClassCounters

_TCA_STATS2 = 7
_BASIC, _QUEUE, _APP, _PKT64 = 1, 3, 4, 8
_HEADER = struct.Struct("=HH")
_KIND = 0x3FFF  # without its flags
_TCMSG_BYTES, _HANDLE_AT = 20, 8
_FIELDS = {
    _BASIC: ("QI", ("bytes", "packets")),
    _QUEUE: ("IIIII", ("qlen", "backlog", "drops", "requeues", "overlimits")),
    _APP: ("IIIii", ("lends", "borrows", "giants", "tokens", "ctokens")),
    _PKT64: ("Q", ("wide packets",)),
}
"""Of TCA_STATS2 (linux/gen_stats.h, struct tc_htb_xstats): how they are packed, and what they are."""
_COUNTED = (
    "bytes", "packets", "drops", "overlimits", "backlog", "qlen", "lends", "borrows", "tokens", "ctokens"
)  # fmt: skip
"""As `ClassCounters` has them."""

_make = tuple.__new__


def decode_class_counters(_: int, body: bytes) -> tuple[int, ClassCounters]:
    """A class' handle and what it counted. Statistics grew over kernel versions: what is missing counts as 0."""
    layout = _layouts.get(len(body))
    if layout is not None:
        values = layout.unpack(body)
        if layout.headers(values) == layout.expected:
            return values[0], _make(ClassCounters, layout.counted((*values, 0)))
    return _looked_at(body)


class _Layout:
    """Where everything is in messages of one length.

    Args:
        places: by kind where the value begins, of those in `_FIELDS`; one at least.

    Raises:
        ValueError: no attribute of that kind is there.
    """

    def __init__(self, body: bytes, places: Mapping[int, int]) -> None:
        names, headers, form, end = ["handle"], [], f"={_HANDLE_AT}xI", _HANDLE_AT + 4
        for kind, place in sorted(places.items(), key=lambda entry: entry[1]):
            packed, fields = _FIELDS[kind]
            form += f"{place - _HEADER.size - end}xHH{packed}"
            end = place + struct.calcsize(f"={packed}")
            headers += [len(names), len(names) + 1]
            names += [f"length of {kind}", f"kind {kind}", *fields]
        self.unpack = struct.Struct(form).unpack_from
        self.headers = itemgetter(*headers)
        self.expected = self.headers(self.unpack(body))
        if [kind & _KIND for kind in self.expected[1::2]] != sorted(places, key=places.__getitem__):
            raise ValueError(f"a class' statistics are not where they were looked for: {self.expected}")
        where = {name: number for number, name in enumerate(names)}
        if "wide packets" in where:  # the 32-bit one wraps after an hour at 1 M/s
            where["packets"] = where["wide packets"]
        self.counted = itemgetter(*(where.get(name, len(names)) for name in _COUNTED))


_layouts: dict[int, _Layout] = {}
_LAYOUTS_MAX = 32
"""A class with a rate above 34 Gbit/s has longer messages, one without statistics of its queue shorter ones."""


def _looked_at(body: bytes) -> tuple[int, ClassCounters]:
    """Find the places, remember them, and decode."""
    places = _places(body)
    if not places:
        return struct.unpack_from("=I", body, _HANDLE_AT)[0], _make(ClassCounters, (0,) * len(_COUNTED))
    layout = _Layout(body, places)
    if len(_layouts) >= _LAYOUTS_MAX:
        _layouts.clear()
    _layouts[len(body)] = layout
    values = layout.unpack(body)
    return values[0], _make(ClassCounters, layout.counted((*values, 0)))


def _places(body: bytes) -> dict[int, int]:
    """Where the values begin of what is counted, by kind; without those that are shorter than they should be.

    Kinds that nobody asks for may come more than once: where a kernel wants 64-bit values at multiples of 8, it puts an
    empty attribute of one and the same kind in front of each (nla_put_64bit, TCA_STATS_PAD).
    """
    for outer, begin, end in attribute_places(body, _TCMSG_BYTES):
        if outer == _TCA_STATS2:
            return {
                kind: place
                for kind, place, value_end in attribute_places(body, begin, end)
                if kind in _FIELDS and value_end - place >= struct.calcsize(f"={_FIELDS[kind][0]}")
            }
    return {}
