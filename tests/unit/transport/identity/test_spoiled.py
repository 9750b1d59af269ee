"""Certificates of which bytes were changed: nobody becomes somebody else by them, and nothing unexpected is raised."""

from __future__ import annotations

import datetime
import random
import warnings
from pathlib import Path
from typing import cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from transport.engine.admission import admit_chain
from transport.identity import ca_init, ca_issue, ephemeral_identity
from transport.identity.credentials import Trust
from transport.identity.verify import verify_peer
from transport.wire.error_codes import WireError

ROUNDS = 2000
TAGS = (0x02, 0x04, 0x05, 0x0C, 0x13, 0x17, 0x30, 0x31, 0x80, 0x81, 0x82, 0xA0, 0xA3, 0xFF)
"""What DER is made of, and lengths of lengths: these break more than bytes of any kind do."""


def spoiled(der: bytes, rng: random.Random) -> bytes:
    data = bytearray(der)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice(TAGS)
            case 2:
                del data[at : at + rng.randint(1, 8)]
            case _:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
        if not data:
            return b"\0"
    return bytes(data)


def certificate(der: bytes) -> x509.Certificate | None:
    """As its reader takes it, which warns of some and lets them pass."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return x509.load_der_x509_certificate(der)
    except (ValueError, x509.InvalidVersion):
        return None


def judged(chain: list[bytes], trust: Trust) -> str | None:
    """The name that a chain is believed, as both engines come to it; None where it is refused."""
    read = [certificate(one) for one in chain]
    if None in read:
        return None
    try:
        return admit_chain(cast(list[x509.Certificate], read), trust, expected_peer=None).name
    except WireError:
        return None


@pytest.mark.parametrize("by", ["CA", "pin"])
def test_no_spoiled_certificate_is_believed(tmp_path: Path, by: str) -> None:
    rng = random.Random(8)
    ca_init(tmp_path / "ca")
    ca_issue(tmp_path / "ca", "node", out=tmp_path)
    ephemeral = ephemeral_identity("node")
    if by == "CA":
        pem, trust = (tmp_path / "node.crt").read_bytes(), Trust(ca_pem=(tmp_path / "ca" / "ca.crt").read_bytes())
    else:
        pem, trust = ephemeral.credentials.certificate_chain_pem, Trust(pins={ephemeral.pin: "node"})
    whole = [one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(pem)]
    assert judged(whole, trust) == "node"
    readable = 0
    for _ in range(ROUNDS):
        leaf = spoiled(whole[0], rng)
        if leaf == whole[0]:
            continue
        assert judged([leaf, *whole[1:]], trust) is None, leaf.hex()
        readable += certificate(leaf) is not None
    assert readable > ROUNDS / 20, "most of what is tried has to get past the reader, too"


def test_what_is_spoiled_behind_the_leaf_changes_no_name(tmp_path: Path) -> None:
    rng = random.Random(9)
    ca_init(tmp_path / "ca")
    ca_issue(tmp_path / "ca", "node", out=tmp_path)
    ca_pem = (tmp_path / "ca" / "ca.crt").read_bytes()
    leaf = x509.load_pem_x509_certificates((tmp_path / "node.crt").read_bytes())[0].public_bytes(Encoding.DER)
    ca = x509.load_pem_x509_certificate(ca_pem).public_bytes(Encoding.DER)
    names = {judged([leaf, spoiled(ca, rng)], Trust(ca_pem=ca_pem)) for _ in range(300)}
    assert names <= {"node", None}
    assert "node" in names


def test_no_certificate_is_good_before_or_after_its_time(tmp_path: Path) -> None:
    ca_init(tmp_path / "ca")
    ca_issue(tmp_path / "ca", "node", out=tmp_path)
    chain = x509.load_pem_x509_certificates((tmp_path / "node.crt").read_bytes())
    trust = Trust(ca_pem=(tmp_path / "ca" / "ca.crt").read_bytes())
    for moment in (chain[0].not_valid_before_utc, chain[0].not_valid_after_utc):
        step = datetime.timedelta(seconds=-1 if moment == chain[0].not_valid_before_utc else 1)
        with pytest.raises(WireError, match="valid from"):
            verify_peer(chain, trust, now=moment + step)
