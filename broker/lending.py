"""A promise over a window on an `Account`: the rules of `broker.guarantee`, for what is not one of the four classes."""

from __future__ import annotations

from broker import guarantee
from broker.ingress_state import Account
from broker.state import ClassState


def book(
    account: Account, *, given_bits: float, promise_bits_per_s: int, window_s: float, elapsed_s: float, waiting: bool,
    now_s: float,
) -> Account:  # fmt: skip
    """Book what was given in a tick against what was promised; only while somebody waited does the promise count."""
    after = guarantee.account(
        _class(account), received_bits=given_bits, guarantee_bits_per_s=promise_bits_per_s, window_s=window_s,
        elapsed_s=elapsed_s, waiting=waiting, now_s=now_s,
    )  # fmt: skip
    return Account(after.owed_bits, after.owed_end_s, after.repaying)


def due_bits_per_s(account: Account, *, promise_bits_per_s: int, window_s: float) -> int:
    """The rate that keeps the promise: zero while nothing is at risk."""
    return guarantee.repay_rate_bits_per_s(
        _class(account), guarantee_bits_per_s=promise_bits_per_s, window_s=window_s
    )  # fmt: skip


def _class(account: Account) -> ClassState:
    return ClassState(
        "", owed_bits=account.owed_bits, owed_end_s=account.owed_end_s, repaying=account.repaying
    )  # fmt: skip
