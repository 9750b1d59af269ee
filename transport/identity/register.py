"""What a CA has issued: the file `issued` in its directory, and the lock of that directory.

A line for each certificate: its serial number in hexadecimal, its node, and the certificate itself (DER, base64).
Lines of version 0.1.0 lack the certificate; they serve revocation alone.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from hive_qos.errors import ConfigurationError
from hive_qos.files import write_whole
from transport.identity.names import der_of

ISSUED = "issued"
KEPT = datetime.timedelta(days=366)
"""How long a certificate that has ended stays in the register, which would grow for ever."""
LOCK_S = 10.0
"""A thousand certificates are signed in less."""


@dataclass(frozen=True)
class Issued:
    """A line of the register; `certificate` is None where an older version wrote it."""

    serial: int
    node: str
    certificate: x509.Certificate | None


@contextmanager
def locked(folder: Path, *, wait_s: float = LOCK_S) -> Iterator[None]:
    """Hold the directory of a CA, so that two commands at once do not lose each other's lines.

    Raises:
        ConfigurationError: there is no such directory, or another holds it for longer than `wait_s`.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        reason = f"no CA there ({error.strerror}); run hive-qos ca init"
        raise ConfigurationError("directory", str(folder), reason) from error
    try:
        until_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    reason = "another hive-qos ca works there; try again when it is done"
                    raise ConfigurationError("directory", str(folder), reason) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def read_register(folder: Path) -> list[Issued]:
    """All that was issued, oldest first.

    Raises:
        ConfigurationError: a line is none of ours.
    """
    path = folder / ISSUED
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError("directory", str(path), f"cannot be read: {error.strerror}") from error
    try:
        return [_parsed(line) for line in lines if line]
    except (ValueError, binascii.Error) as error:
        reason = f"is damaged ({error}); restore it from a copy"
        raise ConfigurationError("directory", str(path), reason) from error


def note_issued(folder: Path, made: Sequence[tuple[str, x509.Certificate]]) -> None:
    """Remember what was issued to whom, and forget what has ended long ago. Under the lock."""
    long_ago = datetime.datetime.now(datetime.UTC) - KEPT
    lines = [_line(one) for one in read_register(folder) if not _ended_before(one, long_ago)]
    lines += [_line(Issued(certificate.serial_number, node, certificate)) for node, certificate in made]
    write_whole(folder / ISSUED, "".join(lines), mode=0o600)


def _ended_before(one: Issued, when: datetime.datetime) -> bool:
    return one.certificate is not None and one.certificate.not_valid_after_utc < when


def _line(one: Issued) -> str:
    certificate = "" if one.certificate is None else " " + base64.b64encode(der_of(one.certificate)).decode()
    return f"{one.serial:x} {one.node}{certificate}\n"


def _parsed(line: str) -> Issued:
    serial, node, *rest = line.split(" ")
    certificate = x509.load_der_x509_certificate(base64.b64decode(rest[0], validate=True)) if rest else None
    return Issued(int(serial, 16), node, certificate)
