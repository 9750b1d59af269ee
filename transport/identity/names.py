"""What a certificate says of a node: its name, its role and its jobs, as URIs in the subject alternative name.

`urn:hive-qos:node:NAME`, `urn:hive-qos:role:ROLE` and, once for each job that it is for, `urn:hive-qos:job:JOB`, the
job's name percent-encoded (RFC 5280 4.2.1.6, RFC 3986 2.1). The subject's common name repeats the node's name for
people who read certificates; nothing is decided by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

NODE_PREFIX = "urn:hive-qos:node:"
ROLE_PREFIX = "urn:hive-qos:role:"
JOB_PREFIX = "urn:hive-qos:job:"
ROLES = ("job", "broker")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Claims:
    """What a certificate claims; worth nothing until its chain or pin has been verified."""

    node: str
    roles: frozenset[str]
    addresses: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()


def job_uri(job: str) -> str:
    """How a certificate names a job."""
    return JOB_PREFIX + quote(job, safe="")


def check_node_name(node: str) -> str:
    """Give the name back if it can stand in a certificate.

    Raises:
        ValueError: not 1 to 63 letters, digits, dots, dashes or underscores that begin with a letter or digit.
    """
    if not _NAME.fullmatch(node):
        raise ValueError(f"{node!r} is not a node name: 1 to 63 letters, digits, '.', '-' or '_', the first no sign")
    return node


def claims_of(certificate: x509.Certificate) -> Claims:
    """Read node, roles and jobs from the URIs, and the addresses.

    Raises:
        ValueError: no name, two names, or one that is not well-formed.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise ValueError("a certificate without a subject alternative name") from error
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    nodes = [uri.removeprefix(NODE_PREFIX) for uri in uris if uri.startswith(NODE_PREFIX)]
    if len(nodes) != 1:
        raise ValueError(f"a certificate with {len(nodes)} node names")
    roles = frozenset(uri.removeprefix(ROLE_PREFIX) for uri in uris if uri.startswith(ROLE_PREFIX))
    jobs = frozenset(unquote(uri.removeprefix(JOB_PREFIX)) for uri in uris if uri.startswith(JOB_PREFIX))
    addresses = frozenset(str(address) for address in names.get_values_for_type(x509.IPAddress))
    return Claims(node=check_node_name(nodes[0]), roles=roles, addresses=addresses, jobs=jobs)


def der_of(certificate: x509.Certificate) -> bytes:
    """The bytes that are pinned and verified."""
    return certificate.public_bytes(Encoding.DER)
