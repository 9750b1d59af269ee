"""The two BPF programs that classify sockets, as bytes. Pure; `cgroup.py` says when they run and why there are two.

Registers: r1 holds the context at entry, r6 keeps it over calls, r10 is the frame. Every exit returns 1: allow.
"""

from __future__ import annotations

import struct

from shaping.classify.bpf import instruction, load_64, load_map
from shaping.model.names import MAJOR

# BPF_FUNC_*, their order in linux/bpf.h.
_HELPER_GET_CURRENT_UID_GID = 15
_HELPER_SETSOCKOPT = 49
_HELPER_SK_STORAGE_GET = 107
_HELPER_GET_NETNS_COOKIE = 122

_SOCK_PRIORITY = 20  # offset in struct bpf_sock
_SOCK_OPS_OP, _SOCK_OPS_SK = 0, 184  # offsets in struct bpf_sock_ops
_PASSIVE_ESTABLISHED = 5  # linux/bpf.h, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB
_SOL_SOCKET, _SO_PRIORITY = 1, 12  # as the kernel's helper takes them, the same on every architecture


def create_program(*, cookie: int, priority: int, uid: int | None, storage: int | None) -> bytes:
    """At socket creation: `if netns == cookie and uid == uid and not ours yet: priority = storage = priority`.

    Args:
        cookie: SO_NETNS_COOKIE of the namespace; sockets of containers with their own are left alone.
        storage: descriptor of the map, or None for kernels without.
    """
    body = [
        instruction(0xBF, dst=6, src=1),  # r6 = ctx
        instruction(0x85, immediate=_HELPER_GET_NETNS_COOKIE),
        load_64(1, cookie),
        _jump_out(0x5D, dst=0, src=1),  # if r0 != r1
    ]
    if uid is not None:
        body += [
            instruction(0x85, immediate=_HELPER_GET_CURRENT_UID_GID),
            instruction(0xBC, dst=0, src=0),  # w0 = w0: the user is the lower half
            instruction(0xB4, dst=1, immediate=uid),
            _jump_out(0x5D, dst=0, src=1),
        ]
    body += [
        instruction(0x61, dst=1, src=6, offset=_SOCK_PRIORITY),
        instruction(0x77, dst=1, immediate=16),
        _jump_out(0x15, dst=1, immediate=MAJOR),  # if the major is ours
        instruction(0xB4, dst=7, immediate=priority),
        instruction(0x63, dst=6, src=7, offset=_SOCK_PRIORITY),
    ]
    if storage is not None:
        body += [
            instruction(0x63, dst=10, src=7, offset=-4),
            load_map(1, storage),
            instruction(0xBF, dst=2, src=6),
            instruction(0xBF, dst=3, src=10),
            instruction(0x07, dst=3, immediate=-4),
            instruction(0xB7, dst=4, immediate=1),  # create it
            instruction(0x85, immediate=_HELPER_SK_STORAGE_GET),
        ]
    return _link(body)


def accept_program(*, storage: int) -> bytes:
    """At an accepted connection: `if the listener left a note: setsockopt(SO_PRIORITY, note)`."""
    body = [
        instruction(0xBF, dst=6, src=1),
        instruction(0x61, dst=1, src=6, offset=_SOCK_OPS_OP),
        _jump_out(0x55, dst=1, immediate=_PASSIVE_ESTABLISHED),
        instruction(0x79, dst=2, src=6, offset=_SOCK_OPS_SK),
        _jump_out(0x15, dst=2, immediate=0),
        load_map(1, storage),
        instruction(0xB7, dst=3, immediate=0),
        instruction(0xB7, dst=4, immediate=0),
        instruction(0x85, immediate=_HELPER_SK_STORAGE_GET),
        _jump_out(0x15, dst=0, immediate=0),
        instruction(0x61, dst=1, src=0),
        instruction(0x63, dst=10, src=1, offset=-4),
        instruction(0xBF, dst=1, src=6),
        instruction(0xB7, dst=2, immediate=_SOL_SOCKET),
        instruction(0xB7, dst=3, immediate=_SO_PRIORITY),
        instruction(0xBF, dst=4, src=10),
        instruction(0x07, dst=4, immediate=-4),
        instruction(0xB7, dst=5, immediate=4),
        instruction(0x85, immediate=_HELPER_SETSOCKOPT),
    ]
    return _link(body)


_OUT = 0x7FFF  # stands in a jump's offset for "to the end" until the length is known


def _jump_out(opcode: int, *, dst: int, src: int = 0, immediate: int = 0) -> bytes:
    return instruction(opcode, dst=dst, src=src, offset=_OUT, immediate=immediate)


def _link(body: list[bytes]) -> bytes:
    """Point every jump at the common end, `return 1` (allow), and join."""
    code = bytearray(b"".join(body))
    end = len(code) // 8
    for position in range(end):
        (offset,) = struct.unpack_from("=h", code, position * 8 + 2)
        if offset == _OUT:
            struct.pack_into("=h", code, position * 8 + 2, end - position - 1)
    return bytes(code) + instruction(0xB7, dst=0, immediate=1) + instruction(0x95)
