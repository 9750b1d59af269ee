"""Another key for the CA while every node goes on: three steps, between which files are copied to the nodes.

    steady --begin--> begun --switch--> switched --finish--> steady
                        `--cancel--> steady

- `begin` makes the next key. `ca.crt` then holds both CAs; the former one still signs.
- `switch`, once every node has that `ca.crt`: the next key signs, and the former one is gone. Nodes get new pairs.
- `finish`, once every node has its pair: `ca.crt` holds the new CA alone.

The directory itself tells where a rotation stands: the key says who signs, `next.key` who will. Each step becomes true
by one rename. Whoever was interrupted says the same step again.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from hive_qos.errors import ConfigurationError
from hive_qos.files import sync_directory, write_whole
from transport.identity.authority import (
    Authority,
    IssuedFiles,
    issue_all,
    load_ca,
    new_authority,
    private_pem,
    read_key,
    request_of,
)
from transport.identity.register import Issued, locked, read_register
from transport.identity.revocation import add_to_list, list_beside, list_until, revoked_beside

NODES_NAMED_MAX = 10
"""In an error; `ca status` has all."""


class Phase(enum.Enum):
    """Where the rotation of a CA stands."""

    STEADY = "steady"
    BEGUN = "begun"
    SWITCHED = "switched"


class Standing(enum.Enum):
    """What is to be said of a node's newest certificate, worst first."""

    REVOKED = "revoked"
    ENDED = "ended"
    FORMER_CA = "former CA"
    ENDS_SOON = "ends soon"
    GOOD = "good"
    UNKNOWN = "unknown"


STEPS: dict[str, tuple[Phase, ...]] = {
    "begin": (Phase.STEADY,),
    "switch": (Phase.BEGUN, Phase.SWITCHED),
    "finish": (Phase.SWITCHED,),
    "cancel": (Phase.BEGUN,),
}
"""The phases in which each step can be taken."""


@dataclass(frozen=True)
class NodeStanding:
    """A node's newest certificate that was not revoked; where all were, the newest."""

    node: str
    standing: Standing
    certificate: x509.Certificate | None


@dataclass(frozen=True)
class CaStatus:
    """All that a CA's directory tells of itself; `list_until` is None where nothing was revoked."""

    phase: Phase
    signing: x509.Certificate
    trusted: tuple[x509.Certificate, ...]
    list_until: datetime.datetime | None
    nodes: tuple[NodeStanding, ...]


def ca_status(directory: str | Path, *, within: datetime.timedelta, now: datetime.datetime) -> CaStatus:
    """Look at a CA and at what it issued.

    Args:
        within: how long ahead of its end a certificate counts as ending soon.

    Raises:
        ConfigurationError: no CA there, or one of its files is damaged.
    """
    folder = Path(directory)
    authority = load_ca(folder)
    revoked = revoked_beside(folder / "ca.crt", authority.trusted)
    newest: dict[str, Issued] = {}
    for one in read_register(folder):
        if one.serial not in revoked or one.node not in newest or newest[one.node].serial in revoked:
            newest[one.node] = one
    nodes = tuple(
        NodeStanding(node, _standing(one, authority.certificate, revoked, within=within, now=now), one.certificate)
        for node, one in sorted(newest.items())
    )
    return CaStatus(
        _phase(folder, authority), authority.certificate, authority.trusted, list_until(folder / "ca.crt"), nodes
    )


def ca_renew(
    directory: str | Path,
    nodes: Collection[str],
    *,
    within: datetime.timedelta | None,
    days: int,
    out: str | Path,
    now: datetime.datetime,
) -> list[IssuedFiles]:
    """Issue new pairs in the place of those in the register, which say role, addresses and jobs.

    Args:
        nodes: whom; nobody named means everybody who was not revoked.
        within: only those that end so soon, or that the former CA signed.
        out: where the pairs go; older ones there are replaced.

    Raises:
        ConfigurationError: a node is not in the register with its certificate, or was revoked.
    """
    folder = Path(directory)
    with locked(folder):
        status = ca_status(folder, within=within or datetime.timedelta(), now=now)
        known = {one.node: one for one in status.nodes}
        for node in nodes:
            found = known.get(node)
            if found is None or found.certificate is None:
                reason = f"{folder / 'issued'} has no certificate of it to renew; use `hive-qos ca issue {node}`"
                raise ConfigurationError("node", node, reason)
            if found.standing is Standing.REVOKED:
                raise ConfigurationError("node", node, f"was revoked; use `hive-qos ca issue {node}`")
        due = (Standing.ENDED, Standing.FORMER_CA, Standing.ENDS_SOON)
        chosen = [
            one.certificate
            for one in status.nodes
            if one.certificate is not None
            and (one.node in nodes or (not nodes and one.standing is not Standing.REVOKED))
            and (within is None or one.standing in due)
        ]
        return issue_all(folder, [request_of(one) for one in chosen], days=days, folder=Path(out)) if chosen else []


def ca_rotate(directory: str | Path, step: str, *, days: int, force: bool, now: datetime.datetime) -> CaStatus:
    """Take a step of the rotation; how the CA stands then.

    Args:
        step: of `STEPS`.
        days: how long the next CA is good, for `begin`.
        force: finish although nodes have no pair of the new CA yet.

    Raises:
        ConfigurationError: not the time for this step, or nodes would be refused after it.
    """
    folder = Path(directory)
    with locked(folder):
        authority = load_ca(folder)
        phase = _phase(folder, authority)
        allowed = STEPS[step]
        if phase not in allowed:
            possible = " or ".join(name for name, phases in STEPS.items() if phase in phases)
            raise ConfigurationError("step", step, f"the rotation is {phase.value}; now use {possible}")
        if step == "finish" and not force:
            _refuse_to_leave_behind(folder, now=now)
        take: dict[str, Callable[[], None]] = {
            "begin": lambda: _begin(folder, authority, days=days),
            "switch": lambda: _switch(folder, phase),
            "finish": lambda: _finish(folder, authority),
            "cancel": lambda: _cancel(folder, authority),
        }
        take[step]()
        return ca_status(folder, within=datetime.timedelta(), now=now)


def _begin(folder: Path, authority: Authority, *, days: int) -> None:
    names = authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    certificate, key = new_authority(str(names[0].value), days=days)
    write_whole(folder / "next.key", private_pem(key).decode(), mode=0o600)
    _write_trusted(folder, authority.certificate, certificate)


def _switch(folder: Path, phase: Phase) -> None:
    if phase is Phase.BEGUN:
        (folder / "next.key").replace(folder / "ca.key")
        sync_directory(folder)
    _sign_list_again(folder, load_ca(folder))


def _finish(folder: Path, authority: Authority) -> None:
    _sign_list_again(folder, authority)
    _write_trusted(folder, authority.certificate)


def _cancel(folder: Path, authority: Authority) -> None:
    _write_trusted(folder, authority.certificate)
    (folder / "next.key").unlink(missing_ok=True)


def _sign_list_again(folder: Path, authority: Authority) -> None:
    """The list of revoked certificates in the name of the CA that stays."""
    if list_beside(folder / "ca.crt").exists():
        add_to_list(folder, (), authorities=authority.trusted, issuer=authority.certificate, key=authority.key)


def _write_trusted(folder: Path, *certificates: x509.Certificate) -> None:
    pem = b"".join(one.public_bytes(Encoding.PEM) for one in certificates)
    write_whole(folder / "ca.crt", pem.decode(), mode=0o644)


def _refuse_to_leave_behind(folder: Path, *, now: datetime.datetime) -> None:
    nodes = ca_status(folder, within=datetime.timedelta(), now=now).nodes
    behind = [one.node for one in nodes if one.standing in (Standing.FORMER_CA, Standing.UNKNOWN)]
    if behind:
        named = ", ".join(behind[:NODES_NAMED_MAX]) + (", ..." if len(behind) > NODES_NAMED_MAX else "")
        raise ConfigurationError(
            "step",
            "finish",
            f"{len(behind)} nodes have certificates of the former CA: {named}; "
            f"renew them (hive-qos ca renew --all -d {folder}; "
            "those of version 0.1.0 by hive-qos ca issue NODE --renew), revoke them, or say --force",
        )


def _phase(folder: Path, authority: Authority) -> Phase:
    if len(authority.trusted) == 1:
        return Phase.STEADY
    if not (folder / "next.key").exists():
        return Phase.SWITCHED
    following = read_key(folder / "next.key").public_key()
    return Phase.BEGUN if any(_has_key(one, following) for one in authority.trusted) else Phase.SWITCHED


def _has_key(certificate: x509.Certificate, key: ec.EllipticCurvePublicKey) -> bool:
    return certificate.public_key() == key


def _standing(
    one: Issued,
    signing: x509.Certificate,
    revoked: Collection[int],
    *,
    within: datetime.timedelta,
    now: datetime.datetime,
) -> Standing:
    if one.serial in revoked:
        return Standing.REVOKED
    if one.certificate is None:
        return Standing.UNKNOWN
    if one.certificate.not_valid_after_utc < now:
        return Standing.ENDED
    signer = one.certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    if signer != signing.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest:
        return Standing.FORMER_CA
    return Standing.ENDS_SOON if one.certificate.not_valid_after_utc < now + within else Standing.GOOD
