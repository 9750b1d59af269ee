"""Messages as pyroute2 lays them out, for our own socket (`hive_qos.netlink`): filters, links, and what is as seldom.

One takes 0.03 to 0.25 ms of CPU; through pyroute2's sockets it is twice that and more (docs/log/kernel.md).
"""

from __future__ import annotations

from typing import Any

from pyroute2.netlink import nlmsg

from hive_qos.netlink import Request, frame

_HEADER_BYTES = 16  # struct nlmsghdr


def request(layout: type[nlmsg], message_type: int, *attributes: Any, how: int = 0, **fields: int) -> Request:
    """One message for the kernel.

    Args:
        attributes: names and values, as pyroute2 has them.
        how: flags of the message beside REQUEST and ACK.
        fields: of the fixed part.
    """
    message = layout()
    for name, value in fields.items():
        message[name] = value
    message["attrs"] = list(attributes)
    message.encode()
    return Request(message_type, how, bytes(message.data[_HEADER_BYTES:]))


def decode(layout: type[nlmsg], message_type: int, body: bytes) -> Any:
    """The kernel's message, without its header, as pyroute2 reads it."""
    message = layout(frame(Request(message_type, 0, body), 0, 0))
    message.decode()
    return message
