"""`hive-qos ca status`, `renew` and `rotate`: what a CA issued, what has to be done, and another key for it."""

from __future__ import annotations

import datetime
import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.ca.certificates import DEFAULT_DIRECTORY, Directory
from broker.cli.exits import EPILOG, guarded
from broker.cli.options import JsonOption
from hive_qos.text import printable

if TYPE_CHECKING:
    from cryptography import x509

    from transport.identity import CaStatus

DAYS_MAX = 36500
CA_WARN_DAYS = 90
"""As the brokers' alarm ca-expires has it."""
NODES_SHOWN_MAX = 200
"""More than anybody reads; `--json` has all."""
NAME_MAX = 28
"""Columns of a node's name: with role, day and state a line is 80."""


class Step(enum.StrEnum):
    """The steps of a rotation."""

    BEGIN = "begin"
    SWITCH = "switch"
    FINISH = "finish"
    CANCEL = "cancel"


def _days(text: str | int) -> int:
    number = str(text).removesuffix("d")  # a default comes as it is
    if not number.isascii() or not number.isdigit() or not 0 <= int(number[:9]) <= DAYS_MAX:
        raise typer.BadParameter(f"write days, 0 to {DAYS_MAX}: 30 or 30d")
    return int(number)


Within = Annotated[
    int | None,
    typer.Option("--within", metavar="DAYS", parser=_days, help="Only those that end so soon, or of a former CA: 30d."),
]


@guarded
def status(
    directory: Directory = DEFAULT_DIRECTORY,
    within: Annotated[
        int, typer.Option("--within", metavar="DAYS", parser=_days, help="What counts as ending soon.")
    ] = 30,
    as_json: JsonOption = False,
) -> None:
    """Show the CA, its rotation, and each node's newest certificate.

    \b
    Example:
      hive-qos ca status --directory ~/hive-ca
    """
    from transport.identity import ca_status

    found = ca_status(directory, within=datetime.timedelta(days=within), now=_now())
    if as_json:
        typer.echo(json.dumps(_document(found)))
        return
    for line in _lines(found, directory, within=within):
        typer.echo(line)


@guarded
def renew(
    nodes: Annotated[list[str] | None, typer.Argument(metavar="[NODE]", help="Whose pairs to replace.")] = None,
    directory: Directory = DEFAULT_DIRECTORY,
    everybody: Annotated[bool, typer.Option("--all", help="Everybody who was not revoked.")] = False,
    within: Within = None,
    days: Annotated[int, typer.Option("--days", help="Days until they end.")] = 365,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the pairs go; former ones are replaced (default: here).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Issue new pairs; role, addresses and jobs stay.

    \b
    Examples:
      hive-qos ca renew trainer-1-broker
      hive-qos ca renew --all --within 30d --out pairs
    """
    from transport.identity import ca_renew

    if bool(nodes) == everybody:
        raise typer.BadParameter("name the nodes, or say --all")
    span = datetime.timedelta(days=within) if within is not None else None
    made = ca_renew(directory, frozenset(nodes or ()), within=span, days=days, out=out or Path(), now=_now())
    if as_json:
        typer.echo(json.dumps([
            {"certificate": str(one.certificate), "key": str(one.key), "not_after": one.until.isoformat()}
            for one in made
        ]))  # fmt: skip
        return
    for one in made:
        typer.echo(f"{one.certificate}, {one.key.name}: good until {one.until:%Y-%m-%d}")
    typer.echo("install each pair on its node" if made else "nothing is due")


@guarded
def rotate(
    step: Annotated[Step | None, typer.Argument(help="The next step; none shows where the rotation stands.")] = None,
    directory: Directory = DEFAULT_DIRECTORY,
    days: Annotated[int, typer.Option("--days", help="How long the new CA is good, for begin.")] = 3650,
    force: Annotated[bool, typer.Option("--force", help="Finish although nodes have no new pair.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give the CA a new key while all nodes go on.

    Each step says what to copy to the nodes before the next.

    \b
    Examples:
      hive-qos ca rotate begin
      hive-qos ca rotate switch
      hive-qos ca rotate finish
    """
    from transport.identity import ca_rotate, ca_status

    if step is None:
        found = ca_status(directory, within=datetime.timedelta(), now=_now())
    else:
        found = ca_rotate(directory, step.value, days=days, force=force, now=_now())
    if as_json:
        typer.echo(json.dumps(_document(found)))
        return
    for line in [_phase_line(found), *_next_steps(found, directory)]:
        typer.echo(line)
    if step is Step.FINISH:
        typer.echo(
            f"Copy {directory / 'ca.crt'}{_and_list(found)} to every node: the former CA is not trusted any more."
        )


def register(app: typer.Typer) -> None:
    """Add these commands to `hive-qos ca`."""
    for name, command in (("status", status), ("renew", renew), ("rotate", rotate)):
        app.command(name, epilog=EPILOG)(command)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _document(found: CaStatus) -> dict[str, Any]:
    from transport.identity.names import claims_of

    return {
        "rotation": found.phase.value,
        "authorities": [
            {
                "subject": one.subject.rfc4514_string(),
                "not_after": one.not_valid_after_utc.isoformat(),
                "sha256": _fingerprint(one),
                "signs": one == found.signing,
            }
            for one in found.trusted
        ],
        "revocation_list_until": found.list_until.isoformat() if found.list_until else None,
        "nodes": [
            {
                "node": one.node,
                "state": one.standing.value,
                "roles": sorted(claims_of(one.certificate).roles) if one.certificate else None,
                "not_after": one.certificate.not_valid_after_utc.isoformat() if one.certificate else None,
                "serial": f"{one.certificate.serial_number:x}" if one.certificate else None,
            }
            for one in found.nodes
        ],
    }


def _lines(found: CaStatus, directory: Path, *, within: int) -> list[str]:
    from transport.identity import Phase, Standing
    from transport.identity.names import claims_of

    lines = [
        f"{'CA':<10} {printable(one.subject.rfc4514_string(), length_max=30)}, "
        f"until {one.not_valid_after_utc:%Y-%m-%d}, {_fingerprint(one)[:16]}{', signs' if one == found.signing else ''}"
        for one in found.trusted
    ]
    if found.list_until is not None:
        lines.append(f"{'revoked':<10} list until {found.list_until:%Y-%m-%d}")
    lines += [_phase_line(found), *_next_steps(found, directory)]
    left = found.signing.not_valid_after_utc - _now()
    if left < datetime.timedelta(days=CA_WARN_DAYS) and found.phase is Phase.STEADY:
        lines.append(f"the CA ends in {max(0, left.days)} days: hive-qos ca rotate begin -d {directory}")
    lines.append("")
    if not found.nodes:
        return [*lines, "nothing was issued yet: hive-qos ca issue NODE"]
    width = min(NAME_MAX, max(len("node"), *(len(one.node) for one in found.nodes)))
    lines.append(f"{'node':<{width}}  {'role':<8}{'until':<12}state")
    for one in found.nodes[:NODES_SHOWN_MAX]:
        roles = ",".join(sorted(claims_of(one.certificate).roles)) if one.certificate else "-"
        until = f"{one.certificate.not_valid_after_utc:%Y-%m-%d}" if one.certificate else "-"
        name = printable(one.node, length_max=width)
        lines.append(f"{name:<{width}}  {printable(roles):<8}{until:<12}{one.standing.value}")
    if len(found.nodes) > NODES_SHOWN_MAX:
        lines.append(f"and {len(found.nodes) - NODES_SHOWN_MAX} more; --json has them")
    due = sum(one.standing in (Standing.ENDED, Standing.ENDS_SOON, Standing.FORMER_CA) for one in found.nodes)
    if due:
        lines += ["", f"{due} to renew: hive-qos ca renew --all --within {within}d -d {directory} --out DIRECTORY"]
    return lines


def _phase_line(found: CaStatus) -> str:
    from transport.identity import Phase

    words = {
        Phase.STEADY: "none under way",
        Phase.BEGUN: "begun: nodes are to trust both CAs; the former one still signs",
        Phase.SWITCHED: "switched: the new CA signs; nodes are to get new pairs",
    }
    return f"{'rotation':<10} {words[found.phase]}"


def _next_steps(found: CaStatus, directory: Path) -> list[str]:
    """What the operator does next, in order."""
    from transport.identity import Phase

    ca = directory / "ca.crt"
    if found.phase is Phase.BEGUN:
        return [
            f"  1. copy {ca} to every node; brokers take it by themselves within 20 s",
            "  2. restart training jobs that are to go on beyond the rotation",
            f"  3. hive-qos ca rotate switch -d {directory}",
        ]
    if found.phase is Phase.SWITCHED:
        steps = [
            f"hive-qos ca renew --all --within 0 -d {directory} --out DIRECTORY",
            f"install each pair{_and_list(found)} on its node",
            f"hive-qos ca rotate finish -d {directory}",
        ]
        return [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
    return []


def _and_list(found: CaStatus) -> str:
    return " and ca.crl" if found.list_until is not None else ""


def _fingerprint(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import hashes

    return certificate.fingerprint(hashes.SHA256()).hex()
