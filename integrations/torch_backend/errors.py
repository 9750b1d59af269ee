"""Errors as torch users expect them: what leaves the backend is a `RuntimeError` and still our own class.

Scripts written for Gloo catch `RuntimeError` (or `torch.distributed.DistError`), and torch's own code does. Scripts
written for us catch `ConnectionLostError` and read its `rank`. So each error is raised as a class that is both. The
text begins with the code in brackets (`[connection-lost]`), which survives even where torch keeps only the text, as
DistributedDataParallel does.
"""

from __future__ import annotations

import torch.distributed as dist

from hive_qos.errors import (
    CancelledError,
    ConfigurationError,
    ConnectionLostError,
    HiveError,
    MisuseError,
    PeerError,
    TimedOutError,
    TransportError,
)


class TorchConnectionLostError(ConnectionLostError, dist.DistNetworkError):
    """`ConnectionLostError`, raised through torch: a rank (`rank`, in the group) died, hangs or was cut off."""


class TorchTimedOutError(TimedOutError, dist.DistBackendError):
    """`TimedOutError`, raised through torch: the operation's deadline passed while its peers were alive."""


class TorchPeerError(PeerError, dist.DistNetworkError):
    """`PeerError`, raised through torch: the peer broke the protocol or its certificate is not good."""


class TorchCancelledError(CancelledError, dist.DistBackendError):
    """`CancelledError`, raised through torch: the group was aborted or destroyed while this operation was under way."""


class TorchMisuseError(MisuseError, dist.DistBackendError, ValueError, TypeError):
    """`MisuseError`, raised through torch: a wrong argument or a group used after its end.

    Of arguments torch's own backends raise, by the kind of mistake, all of these.
    """


class TorchConfigurationError(ConfigurationError, dist.DistBackendError):
    """`ConfigurationError`, raised through torch: an environment variable or a file that cannot work."""


class TorchTransportError(TransportError, dist.DistBackendError):
    """`TransportError`, raised through torch, of a kind that has no class of its own here."""


_CLASSES: tuple[tuple[type[HiveError], type[HiveError]], ...] = (
    (ConnectionLostError, TorchConnectionLostError),
    (TimedOutError, TorchTimedOutError),
    (PeerError, TorchPeerError),
    (CancelledError, TorchCancelledError),
    (MisuseError, TorchMisuseError),
    (ConfigurationError, TorchConfigurationError),
)


def as_torch_error(error: BaseException) -> BaseException:
    """The same error as a class that is also a `RuntimeError`; the original is its cause.

    Errors that are not ours pass unchanged, and so does what has been through here before.
    """
    if not isinstance(error, HiveError) or isinstance(error, RuntimeError):
        return error
    both = next((both for ours, both in _CLASSES if isinstance(error, ours)), TorchTransportError)
    # The constructors differ and hold no more than their attributes, so that copying those is exact.
    converted = both.__new__(both, *error.args)
    converted.__dict__.update(error.__dict__)
    converted.__cause__ = error
    return converted
