"""`hive-qos ca init`, `issue`, `revoke` and `show`: one CA, one certificate at a time."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli.exits import EPILOG, guarded
from broker.cli.options import JsonOption
from hive_qos.errors import ConfigurationError
from hive_qos.text import printable

app = typer.Typer(
    help="Make the cluster's CA and its nodes' certificates.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
)

Directory = Annotated[Path, typer.Option("--directory", "-d", help="Where the CA lives; keep it off the nodes.")]
DEFAULT_DIRECTORY = Path("hive-ca")
CERTIFICATE_BYTES_MAX = 2**20
"""A chain is a few kilobytes; whatever else is named by mistake is not read to its end."""


@app.command("init", epilog=EPILOG)
@guarded
def init(
    directory: Directory = DEFAULT_DIRECTORY,
    name: Annotated[str, typer.Option("--name", help="The CA's name, for people.")] = "hive-qos",
    days: Annotated[int, typer.Option("--days", help="Days until it ends.")] = 3650,
    as_json: JsonOption = False,
) -> None:
    """Make a CA. No existing file is overwritten.

    \b
    Example:
      hive-qos ca init --directory ~/hive-ca
    """
    from transport.identity import ca_init

    files = ca_init(directory, name=name, days=days)
    _print(files, as_json=as_json)


@app.command("issue", epilog=EPILOG)
@guarded
def issue(
    node: Annotated[str, typer.Argument(help="The node's name, as its peers will see it.")],
    directory: Directory = DEFAULT_DIRECTORY,
    role: Annotated[
        str | None, typer.Option("--role", help="job for trainers (the default), broker for the daemon.")
    ] = None,
    address: Annotated[
        list[str] | None, typer.Option("--address", help="An address to certify; again for more. A broker needs one.")
    ] = None,
    job: Annotated[
        list[str] | None, typer.Option("--job", help="A job (HIVE_JOB) that it is for; again for more.")
    ] = None,
    days: Annotated[int, typer.Option("--days", help="Days until it ends.")] = 365,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where NODE.crt and NODE.key go (default: here).")
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the pair that is there; what is not given stays.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Issue a node's certificate and key.

    \b
    Examples:
      hive-qos ca issue trainer-1 --address 10.0.0.1 --job resnet
      hive-qos ca issue trainer-1-broker --role broker --address 10.0.0.1
      hive-qos ca issue trainer-1-broker --renew
    """
    from transport.identity import ca_issue

    files = ca_issue(
        directory, node, role=role, addresses=address or (), jobs=job or (), days=days, out=out, renew=renew
    )  # fmt: skip
    _print(files, as_json=as_json)


@app.command("revoke", epilog=EPILOG)
@guarded
def revoke(
    node: Annotated[str, typer.Argument(help="The node whose certificates are revoked.")],
    directory: Directory = DEFAULT_DIRECTORY,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Revoke this certificate alone: a PEM file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a node's certificates.

    Copy the list, ca.crl, beside ca.crt on every node: it takes effect there.

    \b
    Example:
      hive-qos ca revoke trainer-1
    """
    from transport.identity import ca_revoke

    revoked = ca_revoke(directory, node, certificate=certificate)
    if as_json:
        typer.echo(json.dumps({"list": str(revoked)}))
    else:
        typer.echo(f"list {revoked} (copy it beside ca.crt on every node)")


@app.command("show", epilog=EPILOG)
@guarded
def show(
    certificate: Annotated[Path, typer.Argument(readable=False, help="A PEM file.")],
    as_json: JsonOption = False,
) -> None:
    """Show who a certificate is for, and until when.

    \b
    Example:
      hive-qos ca show trainer-1.crt
    """
    shown = [_describe(one) for one in _read(certificate)]
    if as_json:
        typer.echo(json.dumps(shown))
        return
    for number, one in enumerate(shown):
        if number:
            typer.echo("")
        for key, value in one.items():
            text = ", ".join(value) if isinstance(value, list) else str(value)
            typer.echo(f"{key:>12}  {printable(text, length_max=1000)}")


def _read(path: Path) -> list[Any]:
    from cryptography import x509

    try:
        with open(path, "rb") as file:
            return x509.load_pem_x509_certificates(file.read(CERTIFICATE_BYTES_MAX))
    except OSError as problem:
        raise ConfigurationError("CERTIFICATE", str(path), f"cannot be read: {problem.strerror}") from problem
    except ValueError as problem:
        raise ConfigurationError("CERTIFICATE", str(path), "not a PEM certificate") from problem


def _describe(certificate: Any) -> dict[str, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    names: list[str] = []
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = [str(name.value) for name in extension.value]
    except x509.ExtensionNotFound:
        names = []
    now = datetime.datetime.now(datetime.UTC)
    until = certificate.not_valid_after_utc
    return {
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "names": names,
        "not_before": certificate.not_valid_before_utc.isoformat(),
        "not_after": until.isoformat(),
        "valid_now": certificate.not_valid_before_utc <= now <= until,
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def _print(files: Any, *, as_json: bool) -> None:
    if as_json:
        typer.echo(
            json.dumps(
                {"certificate": str(files.certificate), "key": str(files.key), "not_after": files.until.isoformat()}
            )
        )
    else:
        typer.echo(f"certificate {files.certificate}")
        typer.echo(f"key         {files.key} (readable by you alone)")
        typer.echo(f"good until  {files.until:%Y-%m-%d}")
