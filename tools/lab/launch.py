"""Becomes a program inside a lab host: `launch.py NAMESPACE USER -- PROGRAM ARGUMENT...`. Standard library only.

Runs as a process of its own (Python isolated, without site, about 20 ms), because entering a namespace between fork
and exec is not safe in a threaded parent. The process keeps its number: it becomes the program by exec.

What the program sees: the host's network, the host's /etc/hosts, the host's /sys/class/net, and the machine's
cgroups (`ip netns exec` would hide those: it mounts a new /sys over them).
"""

import ctypes
import os
import pwd
import sys

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19


def main() -> None:
    """Enter, drop to the user, exec. Exit status 127 and one line where that fails."""
    separator = sys.argv.index("--")
    namespace, user = sys.argv[1:separator]
    arguments = sys.argv[separator + 1 :]
    try:
        _enter(namespace)
        if user:
            _become(user)
        os.execvp(arguments[0], arguments)
    except (OSError, KeyError) as error:
        print(f"lab: {arguments[0]} in {namespace}: {error}", file=sys.stderr)
        os._exit(127)


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(status: int, what: str) -> None:
        if status != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")

    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    check(libc.setns(fd, CLONE_NEWNET), "setns")
    os.close(fd)
    check(libc.unshare(CLONE_NEWNS), "unshare")
    check(libc.mount(b"", b"/", b"none", MS_SLAVE | MS_REC, None), "mount / as slave")
    cgroups = os.open("/sys/fs/cgroup", os.O_PATH) if os.path.isdir("/sys/fs/cgroup") else None
    if libc.mount(b"hive-lab", b"/sys", b"sysfs", 0, None) == 0 and cgroups is not None:
        libc.mount(f"/proc/self/fd/{cgroups}".encode(), b"/sys/fs/cgroup", None, MS_BIND | MS_REC, None)
    if cgroups is not None:
        os.close(cgroups)
    hosts = f"/etc/netns/{namespace}/hosts"
    if os.path.exists(hosts):
        check(libc.mount(hosts.encode(), b"/etc/hosts", None, MS_BIND, None), "mount /etc/hosts")


def _become(user: str) -> None:
    """Drop to `user`. In a user namespace with a single user there is nobody else to become: stay."""
    entry = pwd.getpwnam(user)
    with open("/proc/self/uid_map") as lines:
        mapped = any(int(line.split()[0]) <= entry.pw_uid < sum(map(int, line.split()[::2])) for line in lines)
    if not mapped:
        return
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    main()
