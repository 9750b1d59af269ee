"""Every error that hive-qos raises, in one hierarchy, told apart by whose doing it was.

    HiveError
      ConfigurationError      the operator's: a key, a value, a reason
      TransportError
        MisuseError           the caller's: a wrong argument, a closed object
        PeerError             the peer's: it broke the protocol or its certificate is not good
        ConnectionLostError   nobody's: the peer died, hung or was cut off
        TimedOutError         nobody's: the operation's own deadline passed
        CancelledError        the caller's or the peer's wish
      BrokerError
        BrokerUnavailableError, BrokerRejectedError
      ShapingError
        PrivilegeError, KernelRejectedError, ReadBackError

Each docstring says whose fault it is and what to do next. Exit codes belong to the command line alone.
The `code` of a class is stable and stands in the text in brackets, so that a log or a wrapped exception (DDP keeps
only the text) can be told apart by program.
"""

from __future__ import annotations

from hive_qos.text import printable


class HiveError(Exception):
    """Anything that hive-qos raises on purpose. Catch this to catch them all."""

    code = "hive"

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as text and attributes: workers and launchers hand errors to other processes."""
        return _restore, (type(self), self.args), self.__dict__


def _restore(kind: type[HiveError], arguments: tuple[object, ...]) -> HiveError:
    error = kind.__new__(kind)
    error.args = arguments
    return error


class ConfigurationError(HiveError):
    """The operator wrote something that cannot work. Mend the named key.

    Args:
        key: where it stands, e.g. `class.storage.guarantee`.
        value: what stands there; None where nothing does, and then it is not shown.
        reason: what is wrong with it and what to write instead.
    """

    code = "configuration"

    def __init__(self, key: str, value: object, reason: str) -> None:
        where = printable(key, length_max=KEY_LENGTH_MAX)
        if value is not None:
            where = f"{where} = {printable(_shown(value), length_max=KEY_LENGTH_MAX)}"
        super().__init__(f"{where}: {printable(reason, length_max=REASON_LENGTH_MAX, lines=True)}")
        self.key = key
        self.value = value
        self.reason = reason


KEY_LENGTH_MAX, REASON_LENGTH_MAX = 200, 1000
"""As shown: a file of a mebibyte may be one name, and reasons quote."""


def _shown(value: object) -> str:
    """A value as its owner wrote it, or that this cannot be: numbers too long (0x...) and lists too deep for repr."""
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return "(too large to show)"


class TransportError(HiveError):
    """Something about moving tensors failed. One of the subclasses says what."""

    code = "transport"


class MisuseError(TransportError):
    """The caller's fault: a wrong argument or an object used after its end. Mend the call."""

    code = "misuse"


class PeerError(TransportError):
    """The peer's fault: it broke the protocol, or it is not who it should be. Look at that host.

    Args:
        peer: the peer's name as authenticated, or its address where it has none yet.
        reason: what it did; names counts and limits.
        wire_code: the application error code of `docs/reference/wire.md` with which the connection was closed.
    """

    code = "peer"

    def __init__(self, peer: str, reason: str, *, wire_code: int = 0) -> None:
        super().__init__(f"peer {peer}: {reason}")
        self.peer = peer
        self.reason = reason
        self.wire_code = wire_code


class ConnectionLostError(TransportError):
    """The peer died, hangs, or cannot be reached any more. Restart it, or go on without it.

    Args:
        peer: the peer's name.
        reason: what was seen.
        rank: its rank in the group in which it was missed, where there is one.
    """

    code = "connection-lost"

    def __init__(self, peer: str, reason: str, *, rank: int | None = None) -> None:
        name = f"rank {rank} ({peer})" if rank is not None else peer
        super().__init__(f"lost {name}: {reason}")
        self.peer = peer
        self.reason = reason
        self.rank = rank


class TimedOutError(TransportError):
    """The operation's own deadline passed while its peers were alive. Raise the timeout or look for the late one.

    Args:
        what: the operation and whom it waited for.
        timeout_s: the deadline that passed.
        bytes_done: how much of it had been done by then.
        bytes_total: how much there was to do.
    """

    code = "timed-out"

    def __init__(self, what: str, *, timeout_s: float, bytes_done: int = 0, bytes_total: int = 0) -> None:
        done = f" ({bytes_done} of {bytes_total} bytes done)" if bytes_total else ""
        super().__init__(f"{what}: not done within the timeout of {timeout_s:g} s{done}")
        self.what = what
        self.timeout_s = timeout_s
        self.bytes_done = bytes_done
        self.bytes_total = bytes_total


class CancelledError(TransportError):
    """The operation was cancelled, here or by the peer's reset of its stream. The buffer is yours again."""

    code = "cancelled"


class EvictedError(TransportError):
    """The group goes on without this process, which was out of reach or left. Join again, as a new member."""

    code = "evicted"


class RegisterLostError(TransportError):
    """The register of a volatile group cannot be reached, so that nobody may decide. Look at the host that serves it.

    Args:
        what: what was asked of it.
        reason: what was seen.
    """

    code = "register-lost"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


class BrokerError(HiveError):
    """Something between this program and the broker failed. Training and storage go on without it."""

    code = "broker"


class BrokerUnavailableError(BrokerError):
    """No broker listens at the socket. Start it (`systemctl start hive-qos`), or go on unshaped."""

    code = "broker-unavailable"


class BrokerRejectedError(BrokerError):
    """The broker refused a request. The text says why; policy or the request has to change.

    Args:
        status: HTTP's of the answer, 0 where there is none; 422 for a configuration with a mistake.
        refusal: the session protocol's code of the answer, as `too-many`; "" where there is none.
    """

    code = "broker-rejected"

    def __init__(self, *args: object, status: int = 0, refusal: str = "") -> None:
        super().__init__(*args)
        self.status, self.refusal = status, refusal


class ShapingError(HiveError):
    """The kernel side failed. One of the subclasses says what."""

    code = "shaping"


class PrivilegeError(ShapingError):
    """The process lacks a right, as CAP_NET_ADMIN or writing a directory. Run it as root or as the service does."""

    code = "privilege"


class KernelRejectedError(ShapingError):
    """The kernel refused an operation.

    Args:
        operation: what was asked, readable.
        errno_value: the kernel's errno.
        detail: the kernel's own words (extended acknowledgement) where it gave some.
    """

    code = "kernel-rejected"

    def __init__(self, operation: str, *, errno_value: int, detail: str = "") -> None:
        super().__init__(f"{operation}: errno {errno_value}{': ' + detail if detail else ''}")
        self.operation = operation
        self.errno_value = errno_value
        self.detail = detail


class ReadBackError(ShapingError):
    """The kernel took an operation, but what it reports afterwards is something else. A bug or a second writer.

    Args:
        what: the object, e.g. `class ffe0:20 on eth0`.
        wanted: the field values that were applied.
        found: the field values that were read back.
    """

    code = "read-back"

    def __init__(self, what: str, *, wanted: object, found: object) -> None:
        super().__init__(f"{what}: wanted {wanted}, the kernel has {found}")
        self.what = what
        self.wanted = wanted
        self.found = found
