"""`hive-qos doctor` says whether containers behind NAT can be told apart, and changes nothing to find out."""

from __future__ import annotations

import errno

import pytest

from broker.cli.doctor import doctor_command
from hive_qos.errors import KernelRejectedError
from hive_qos.netlink import Request
from shaping.netlink import nftables


class _Socket:
    """A kernel that answers, or refuses, whatever it is asked."""

    refusal: KernelRejectedError | None = None
    asked: list[Request]

    def __init__(self, family: int) -> None:
        assert family == nftables.NETLINK_NETFILTER

    def ask(self, what: str, request: Request, decode: object) -> int:
        self.asked.append(request)
        if self.refusal is not None:
            raise self.refusal
        return 0

    def close(self) -> None:
        pass


def finding(monkeypatch: pytest.MonkeyPatch, *, release: str, refusal: KernelRejectedError | None = None) -> str:
    _Socket.refusal, _Socket.asked = refusal, []
    monkeypatch.setattr("hive_qos.netlink.NetlinkSocket", _Socket)
    monkeypatch.setattr("platform.release", lambda: release)
    found = doctor_command._forwarded()
    assert (found.verdict == "good") == (not found.advice)
    return f"{found.verdict}: {found.text}"


def test_a_kernel_that_answers_is_good_and_was_asked_for_nothing_but_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding(monkeypatch, release="6.1.0-18-amd64").startswith("good: nftables")
    assert _Socket.asked == [nftables.generation()]


@pytest.mark.parametrize("release", ["5.11.22", "4.19.0-26-amd64"])
def test_an_older_kernel_is_told(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    assert finding(monkeypatch, release=release).startswith(f"note: Linux {release}")


def test_a_kernel_without_nftables_is_told_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = KernelRejectedError("open one", errno_value=errno.EPROTONOSUPPORT, detail="Protocol not supported")
    assert "Protocol not supported" in finding(monkeypatch, release="5.12.0", refusal=refused)
