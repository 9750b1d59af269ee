"""`hive-qos explain-collective`: which algorithm a collective takes on a network, and why. Nothing is sent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from broker.cli.options import JsonOption
from hive_qos.errors import ConfigurationError, MisuseError
from hive_qos.text import printable
from hive_qos.units import format_size, parse_duration_s, parse_rate_bits_per_s, parse_size_bytes

if TYPE_CHECKING:
    from transport.collectives.planning.cost_model import Network

T = TypeVar("T")
RANKS_MAX = 1024
"""More than one LAN has; predicting takes time and memory with their square."""
SIZE_BYTES_MAX = 2**37
"""The gradients of 30 billion parameters, predicted in seconds: that takes time and memory in proportion, too."""
SNAPSHOT_BYTES_MAX = 2**24
"""Of a file with `explain()`: what a group of RANKS_MAX ranks and all its choices take, and some."""


def explain_collective(
    operation: Annotated[
        str, typer.Argument(help="all_reduce, broadcast, reduce, reduce_scatter, all_gather or barrier.")
    ] = "all_reduce",
    size: Annotated[
        str, typer.Option("--bytes", help="What each rank has (all_gather: gives, reduce_scatter: gets), of float32.")
    ] = "64 MiB",
    ranks: Annotated[int, typer.Option("--ranks", help="How many ranks there are.")] = 4,
    bandwidth: Annotated[
        str, typer.Option("--bandwidth", help="Of each rank's link, both ways: one rate, or one for each rank.")
    ] = "1 Gbit/s",
    latency: Annotated[str, typer.Option("--latency", help="One way, between ranks of one site.")] = "0.1 ms",
    sites: Annotated[
        str | None, typer.Option("--sites", help="How many ranks each site has, such as 2,2; the default is one site.")
    ] = None,
    site_bandwidth: Annotated[
        str, typer.Option("--site-bandwidth", help="Of each site's link to the others: one rate, or one for each.")
    ] = "100 Mbit/s",
    site_latency: Annotated[str, typer.Option("--site-latency", help="One way, between sites.")] = "20 ms",
    compression: Annotated[str, typer.Option("--compression", help="bfloat16, int8 or int4.")] = "",
    algorithm: Annotated[str, typer.Option("--algorithm", help="Force one, as HIVE_ALGORITHM does.")] = "",
    snapshot: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Show what a rank measured and did: a JSON file of Group.explain().", dir_okay=False
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", help="Show what a rank on this host of that running job measured and did.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which algorithms a collective could take, how long each would, and why one is taken.

    Predicted times follow from links and latencies that you give, or that a group's ranks have agreed on.

    \b
    Examples:
      hive-qos explain-collective all_reduce --bandwidth "100,100,100,25 Mbit/s"
      hive-qos explain-collective --bytes "16 MiB" --sites 2,2 --site-bandwidth "100 Mbit/s"
      hive-qos explain-collective reduce_scatter --compression int8
      hive-qos explain-collective --job llm
      hive-qos explain-collective --from rank-0.json
    """
    if job is not None:
        _show_running(job, as_json=as_json)
        return
    if snapshot is not None:
        document = _read(snapshot)
        try:
            _show(document, as_json=as_json)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ConfigurationError("--from", str(snapshot), "not the JSON of Group.explain()") from error
        return
    from transport.collectives.algorithms.registry import check_name
    from transport.collectives.codecs import Codec
    from transport.collectives.planning.cost_model import choose, problem_of

    if not 1 <= ranks <= RANKS_MAX:
        raise ConfigurationError("--ranks", str(ranks), f"1 to {RANKS_MAX}")
    nbytes = 0 if operation == "barrier" else _parsed("--bytes", size, parse_size_bytes)
    if nbytes > SIZE_BYTES_MAX:
        raise ConfigurationError("--bytes", size, f"at most {format_size(SIZE_BYTES_MAX)}")
    try:
        codec = Codec.named(compression)
    except MisuseError as error:
        raise ConfigurationError("--compression", compression, "bfloat16, int8 or int4") from error
    try:
        problem = problem_of(operation, nbytes=nbytes, size=ranks, codec=codec)
    except ValueError as error:
        raise ConfigurationError("operation", operation, str(error)) from error
    try:
        forced = check_name(algorithm)
    except ConfigurationError as error:  # it names the variable
        raise ConfigurationError("--algorithm", algorithm, error.reason) from error
    network = _network(ranks, bandwidth, latency, sites, site_bandwidth, site_latency)
    choice = choose(problem, network, forced=forced)
    _show(
        {
            "size": ranks,
            "network": network.explained(),
            "collectives": [
                {
                    "operation": operation,
                    "bytes": nbytes,
                    "compression": codec.name.lower(),
                    **choice.explained(),
                }
            ],
        },
        as_json=as_json,
    )


def _show_running(job: str, *, as_json: bool) -> None:
    """Ask a rank of a job on this host, as `hive-qos job` does, and show its groups' plans."""
    from hive_qos.errors import PeerError, TransportError
    from transport.inspection import jobs

    members = jobs.members()
    path = next((path for path, one in members if str(one.get("job")) == job), None)
    if path is None:
        others = ", ".join(sorted({printable(str(one.get("job"))) for _, one in members}))
        advice = f"use one of {others}" if others else "start it, or ask on a host where it runs"
        reason = f"no rank of it answers on this host; {advice}"
        raise ConfigurationError("--job", job, reason)
    try:
        document = jobs.ask(path, jobs.PLANS)
    except OSError as error:  # it answered a moment ago
        raise TransportError(f"the rank of job {printable(job)} that was asked has ended: {error}") from error
    try:
        if not all(isinstance(one["collectives"], list) for one in document["groups"]):
            raise TypeError("no list")
        if as_json:
            sys.stdout.write(json.dumps(document) + "\n")
            return
        for one in document["groups"]:
            typer.echo(f"group {printable(str(one['group']))}, rank {int(document['rank'])} asked")
            _show(one, as_json=False)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PeerError(str(path), "it tells no plans; its hive-qos may be older than this one") from error


def _network(
    ranks: int, bandwidth: str, latency: str, sites: str | None, site_bandwidth: str, site_latency: str
) -> Network:
    from transport.collectives.planning.cost_model import Network

    counts = str(ranks) if sites is None else sites
    sizes = [int(count) if count.strip().isdecimal() else 0 for count in counts.split(",")]
    if min(sizes) < 1 or sum(sizes) != ranks:
        raise ConfigurationError("--sites", counts, f"numbers of ranks as 2,2; {ranks} in all, as --ranks says")
    rates = _rates("--bandwidth", bandwidth, ranks)
    across = _rates("--site-bandwidth", site_bandwidth, len(sizes))
    where = tuple(site for site, count in enumerate(sizes) for _ in range(count))
    near_us = round(1e6 * _parsed("--latency", latency, parse_duration_s))
    far_us = round(1e6 * _parsed("--site-latency", site_latency, parse_duration_s))
    return Network(
        up_bits_per_s=rates,
        down_bits_per_s=rates,
        latency_us=tuple(tuple(near_us if here == there else far_us for there in where) for here in where),
        sites=where,
        site_up_bits_per_s=across,
        site_down_bits_per_s=across,
    )


def _rates(option: str, text: str, count: int) -> tuple[int, ...]:
    """ "1 Gbit/s" for all, or "100,100,25 Mbit/s", where the last one's unit is that of those without."""
    parts = [part.strip() for part in text.split(",")]
    unit = parts[-1].lstrip("0123456789. ")
    rates = tuple(
        _parsed(option, part if part[-1:].isalpha() else f"{part} {unit}", parse_rate_bits_per_s) for part in parts
    )
    if len(rates) not in (1, count):
        raise ConfigurationError(option, text, f"one rate, or {count}")
    return rates * (count if len(rates) == 1 else 1)


def _parsed(option: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigurationError(option, text, str(error)) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(SNAPSHOT_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError("--from", str(path), f"cannot be read: {error.strerror}") from error
    try:
        document = json.loads(content) if len(content) <= SNAPSHOT_BYTES_MAX else None
    except (ValueError, RecursionError):  # no JSON, or lists in lists in lists
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("collectives"), list):
        raise ConfigurationError("--from", str(path), "not the JSON of Group.explain()")
    return document


def _show(document: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
        return
    from rich.console import Console

    console = Console(highlight=False)
    by_shape: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for one in document["collectives"]:
        shape = (one["operation"], one["bytes"], one.get("compression", "none"))
        by_shape.setdefault(shape, []).append(one)
    for choices in by_shape.values():
        console.print(_table(sorted(choices, key=lambda one: one["network_number"])))


def _table(choices: Sequence[Mapping[str, Any]]) -> Any:
    """The latest choice for a shape; measured times are of whichever choice took the algorithm last."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    collective = choices[-1]
    measured_s = {one["algorithm"]: one["measured_s"] for one in choices if one.get("measured_s") is not None}
    table = Table(box=None, pad_edge=False)
    for title, justify in (("algorithm", "left"), ("predicted", "right"), ("measured", "right"), ("bound by", "left")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for one in collective.get("candidates", []):
        taken = one["algorithm"] == collective["algorithm"]
        table.add_row(
            Text(("> " if taken else "  ") + printable(str(one["algorithm"]))),
            _seconds(one["predicted_s"]),
            _seconds(measured_s[one["algorithm"]]) if one["algorithm"] in measured_s else "-",
            Text(printable(str(one["bound"]) + _parameters(one))),
            style="bold" if taken else "",
        )
    if (plain_s := collective.get("uncompressed_s")) is not None:
        table.add_row("  uncompressed", _seconds(plain_s), "-", "")
    times = f", {sum(one['count'] for one in choices)} times" if "count" in collective else ""
    codec = collective.get("compression", "none")
    what = format_size(collective["bytes"]) + ("" if codec == "none" else f" as {codec}")
    title = f"{collective['operation']} of {what}{times}: {collective['reason']}"
    waits = [Text("  measured with the wait for late ranks, see `hive-qos job`")] if measured_s else []
    return Group(Text(printable(title)), table, *waits, Text())


def _parameters(candidate: Mapping[str, Any]) -> str:
    named = [f"{name} {','.join(map(str, candidate[name]))}" for name in ("weights", "sites") if candidate[name]]
    return f" ({'; '.join(named)})" if named else ""


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"
