"""Gives a capability of this thread up, and of all threads that it starts from now on (capabilities(7))."""

from __future__ import annotations

import ctypes
import os
import struct

SYS_PTRACE = 19  # linux/capability.h
_HEADER = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
_SETS = struct.Struct("=6I")  # effective, permitted, inheritable of the first 32, and of the next
_libc = ctypes.CDLL(None, use_errno=True)


def drop(number: int) -> None:
    """Take it out of all sets. Harmless where it is in none.

    Raises:
        OSError: the kernel refuses.
    """
    sets = ctypes.create_string_buffer(_SETS.size)
    _call("capget", sets)
    kept = list(_SETS.unpack(sets.raw))
    for place in range(3 * (number // 32), 3 * (number // 32) + 3):
        kept[place] &= ~(1 << number % 32)
    _call("capset", ctypes.create_string_buffer(_SETS.pack(*kept), _SETS.size))


def _call(name: str, sets: ctypes.Array[ctypes.c_char]) -> None:
    if getattr(_libc, name)(ctypes.create_string_buffer(_HEADER, len(_HEADER)), sets) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
