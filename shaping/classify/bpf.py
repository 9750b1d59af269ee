"""The bpf(2) system call through ctypes: load small programs, attach them to cgroups, list and detach them.

No compiler, no library: a program here is a list of instructions of 8 bytes (struct bpf_insn: opcode, registers,
16-bit offset, 32-bit immediate), and every call is one `union bpf_attr`, zero-padded, with the fields of its command
first (include/uapi/linux/bpf.h). Needs CAP_BPF and CAP_NET_ADMIN, or root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hive_qos.errors import KernelRejectedError, PrivilegeError, ShapingError

# bpf(2) by machine: asm/unistd.h of each.
_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}

# enum bpf_cmd of linux/bpf.h.
_MAP_CREATE, _MAP_UPDATE_ELEM, _PROG_LOAD, _PROG_ATTACH, _PROG_DETACH = 0, 2, 5, 8, 9
_PROG_GET_FD_BY_ID, _MAP_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD, _PROG_QUERY, _BTF_LOAD = 13, 14, 15, 16, 18

# enum bpf_prog_type, bpf_attach_type and bpf_map_type of linux/bpf.h, and flags there.
PROG_TYPE_CGROUP_SOCK, PROG_TYPE_SOCK_OPS = 9, 13
ATTACH_SOCK_CREATE, ATTACH_SOCK_OPS = 2, 3
CGROUP_ATTACH_TYPES = {
    **{0: "ingress", 1: "egress", ATTACH_SOCK_CREATE: "sock_create", ATTACH_SOCK_OPS: "sock_ops", 6: "device"},
    **{8: "bind4", 9: "bind6", 10: "connect4", 11: "connect6", 12: "post_bind4", 13: "post_bind6"},
    **{14: "sendmsg4", 15: "sendmsg6", 18: "sysctl", 19: "recvmsg4", 20: "recvmsg6"},
    **{21: "getsockopt", 22: "setsockopt", 29: "getpeername4", 30: "getpeername6"},
    **{31: "getsockname4", 32: "getsockname6", 34: "sock_release", 43: "lsm_cgroup"},
    **{49: "connect_unix", 50: "sendmsg_unix", 51: "recvmsg_unix", 52: "getpeername_unix", 53: "getsockname_unix"},
}
"""What may hang at a cgroup, as bpftool(8) calls it. Numbers between take a descriptor for something else: 46 for an
interface."""
_F_ALLOW_MULTI = 2
_MAP_TYPE_SK_STORAGE = 24
_F_NO_PREALLOC, _F_CLONE = 1, 1 << 9

_ATTR_BYTES = 160  # larger than any command's part of union bpf_attr used here; the kernel wants the rest to be zero
_LOG_BYTES = (
    64 * 1024
)  # of the verifier: the last lines say what it refuses, and our programs have a few dozen instructions
_PROGRAMS_MAX = 64  # BPF_CGROUP_MAX_PROGS: no cgroup can hold more of one type
_MAPS_MAX = 8  # ours have at most one; of others we need no more than a few
_INFO_BYTES = 128  # struct bpf_prog_info up to and past its name
NAME_BYTES_MAX = 15  # BPF_OBJ_NAME_LEN less the terminating zero

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Attached:
    """One program: `tag` is the kernel's digest of its instructions, whatever maps they name; `maps` are those."""

    program_id: int
    name: str
    tag: bytes
    maps: tuple[int, ...]


def instruction(opcode: int, *, dst: int = 0, src: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    """One struct bpf_insn."""
    registers = (src << 4 | dst) if struct.pack("=H", 1) == b"\x01\x00" else (dst << 4 | src)
    return struct.pack("=BBhI", opcode, registers, offset, immediate & 0xFFFFFFFF)


def load_64(dst: int, value: int) -> bytes:
    """The one instruction of 16 bytes: a 64-bit constant."""
    return instruction(0x18, dst=dst, immediate=value) + instruction(0, immediate=value >> 32)


def load_map(dst: int, descriptor: int) -> bytes:
    """The same, with BPF_PSEUDO_MAP_FD: the kernel puts the map's address there."""
    return instruction(0x18, dst=dst, src=1, immediate=descriptor) + instruction(0)


def load_program(*, program_type: int, attach_type: int, instructions: bytes, name: str) -> int:
    """Verify and load; returns a descriptor, which is the caller's to close.

    Raises:
        PrivilegeError, KernelRejectedError: the latter with the last lines of the verifier's log.
    """
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    log = ctypes.create_string_buffer(_LOG_BYTES)
    attributes = struct.pack(
        "=IIQQIIQII16sII",
        program_type,
        len(instructions) // 8,
        ctypes.addressof(code),
        ctypes.addressof(licence),
        1,
        _LOG_BYTES,
        ctypes.addressof(log),
        0,
        0,
        name.encode("ascii"),
        0,
        attach_type,
    )
    return _bpf(_PROG_LOAD, attributes, what=f"load BPF program {name}", log=log)[0]


def make_socket_storage() -> int:
    """A map that keeps 4 bytes with a socket and gives them to the sockets that it accepts (BPF_F_CLONE).

    The kernel wants the types of key and value described (BTF); both are `int`.
    """
    integer = struct.pack("=IIII", 1, 1 << 24, 4, 1 << 24 | 32)  # name at 1, BTF_KIND_INT, 4 bytes, signed 32 bits
    names = b"\0int\0"
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(integer), len(integer), len(names))
    blob = ctypes.create_string_buffer(header + integer + names, len(header) + len(integer) + len(names))
    btf, _ = _bpf(_BTF_LOAD, struct.pack("=QQII", ctypes.addressof(blob), 0, len(blob), 0), what="load BTF")
    try:
        attributes = struct.pack(
            "=IIIIIII16sIIII",
            _MAP_TYPE_SK_STORAGE,
            4,
            4,
            0,
            _F_NO_PREALLOC | _F_CLONE,
            0,
            0,
            b"hive_qos",
            0,
            btf,
            1,
            1,
        )
        return _bpf(_MAP_CREATE, attributes, what="make socket storage")[0]
    finally:
        os.close(btf)


def store(storage: int, *, sock: int, value: int) -> None:
    """Keep 4 bytes with the socket of a descriptor.

    Args:
        storage: a map of `make_socket_storage`.
    """
    key, kept = ctypes.c_int32(sock), ctypes.c_uint32(value)
    attributes = struct.pack("=IIQQQ", storage, 0, ctypes.addressof(key), ctypes.addressof(kept), 0)
    _bpf(_MAP_UPDATE_ELEM, attributes, what="keep a note with a socket")


def attach(*, cgroup: int, program: int, attach_type: int) -> None:
    """Attach beside whatever is there. It stays when this process ends.

    Raises:
        KernelRejectedError: EPERM where somebody attached a program that allows no other beside it.
    """
    attributes = struct.pack("=IIII", cgroup, program, attach_type, _F_ALLOW_MULTI)
    _bpf(_PROG_ATTACH, attributes, what="attach a BPF program to a cgroup")


def detach(*, cgroup: int, program: int, attach_type: int) -> None:
    """Detach one program; those beside it stay."""
    _bpf(_PROG_DETACH, struct.pack("=III", cgroup, program, attach_type), what="detach a BPF program from a cgroup")


def attached(*, cgroup: int, attach_type: int) -> tuple[Attached, ...]:
    """All programs of one type that are attached to this cgroup itself."""
    ids = (ctypes.c_uint32 * _PROGRAMS_MAX)()
    attributes = struct.pack("=IIIIQI", cgroup, attach_type, 0, 0, ctypes.addressof(ids), _PROGRAMS_MAX)
    _, answer = _bpf(_PROG_QUERY, attributes, what="list the BPF programs of a cgroup")
    (count,) = struct.unpack_from("=I", answer, 24)
    found = []
    for program_id in list(ids)[:count]:
        try:
            descriptor = open_program(program_id)
        except KernelRejectedError as error:
            if error.errno_value == errno.ENOENT:  # it went while we looked
                continue
            raise
        try:
            found.append(information(descriptor))
        finally:
            os.close(descriptor)
    return tuple(found)


def open_program(program_id: int) -> int:
    """A descriptor of a loaded program."""
    return _bpf(_PROG_GET_FD_BY_ID, struct.pack("=III", program_id, 0, 0), what=f"open BPF program {program_id}")[0]


def open_map(map_id: int) -> int:
    """A descriptor of a map."""
    return _bpf(_MAP_GET_FD_BY_ID, struct.pack("=III", map_id, 0, 0), what=f"open BPF map {map_id}")[0]


def information(program: int) -> Attached:
    """Identity of a program: the first fields of struct bpf_prog_info."""
    maps = (ctypes.c_uint32 * _MAPS_MAX)()
    info = ctypes.create_string_buffer(_INFO_BYTES)
    struct.pack_into("=IQ", info, 52, _MAPS_MAX, ctypes.addressof(maps))
    attributes = struct.pack("=IIQ", program, len(info), ctypes.addressof(info))
    _bpf(_OBJ_GET_INFO_BY_FD, attributes, what="read a BPF program's identity")
    (program_id,) = struct.unpack_from("=I", info, 4)
    (map_count,) = struct.unpack_from("=I", info, 52)
    return Attached(
        program_id=program_id,
        name=info.raw[64:80].rstrip(b"\0").decode("ascii", "replace"),
        tag=info.raw[8:16],
        maps=tuple(maps)[: min(map_count, _MAPS_MAX)],
    )


def _bpf(command: int, attributes: bytes, *, what: str, log: ctypes.Array[ctypes.c_char] | None = None) -> _Answer:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise ShapingError(f"{what}: the number of bpf(2) on {platform.machine()} is not known here")
    buffer = ctypes.create_string_buffer(attributes, _ATTR_BYTES)
    result: int = _libc.syscall(number, command, buffer, _ATTR_BYTES)
    if result >= 0:
        return result, buffer.raw
    code = ctypes.get_errno()
    if code in (errno.EPERM, errno.EACCES) and os.geteuid() != 0:
        raise PrivilegeError(f"{what}: {os.strerror(code)}; it needs CAP_BPF and CAP_NET_ADMIN")
    words = os.strerror(code)
    if log is not None and log.value:
        words += "; " + " | ".join(_last_lines(log.value.decode("utf-8", "replace").splitlines()))
    raise KernelRejectedError(what, errno_value=code, detail=words)


_Answer = tuple[int, bytes]


def _last_lines(lines: Sequence[str]) -> Sequence[str]:
    return lines[-4:]
