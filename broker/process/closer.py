"""Closes what clients passed to the daemon, in a process of its own: `python -P -m broker.process.closer SOCKET PIPE`.

The last close of a socket lasts as long as its owner chose (SO_LINGER, socket(7)). So does the close of a Unix socket
in whose queue such a socket waits. A process that exits does not linger: the kernel's `inet_release` asks for
PF_EXITING. So the daemon sends its descriptors here, closes its own, and then writes a byte into the pipe. That byte
permits a child to receive them, and the child exits. This process ends when the daemon has closed the pipe.

Standard library only, to stay small.
"""

from __future__ import annotations

import os
import resource
import socket
import sys

DESCRIPTORS_PER_MESSAGE_MAX = 253
"""SCM_MAX_FD of the kernel (unix(7)): no message carries more."""
SPACE = socket.CMSG_SPACE(DESCRIPTORS_PER_MESSAGE_MAX * 4)
"""Room for all of them: the kernel closes what finds none in the process that receives."""
_MESSAGES_AT_ONCE = 16
_OWN_DESCRIPTORS = 16
_CHILDREN_MAX = 8
"""Children at once. One exits in a millisecond, unless a file system or a protocol makes it wait."""


def main() -> None:
    """Take descriptors until the daemon is gone."""
    permits, children = int(sys.argv[2]), 0
    most = max(1, min(_MESSAGES_AT_ONCE, (_descriptors_max() - _OWN_DESCRIPTORS) // DESCRIPTORS_PER_MESSAGE_MAX))
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        while _child_took_some(sock, permits, most):
            children += 1
            while children and os.waitpid(-1, 0 if children == _CHILDREN_MAX else os.WNOHANG)[0]:
                children -= 1


def _descriptors_max() -> int:
    """Raise the limit of descriptors as far as allowed, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _child_took_some(sock: socket.socket, permits: int, most: int) -> bool:
    """Have a child receive the next messages and exit; False when nothing comes any more."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        count = len(os.read(permits, most))
        for _ in range(count):
            sock.recvmsg(1, SPACE)
        os.write(writer, b"+" * count)
        os._exit(0)
    os.close(writer)
    try:
        return bool(os.read(reader, most))
    finally:
        os.close(reader)


if __name__ == "__main__":
    main()
