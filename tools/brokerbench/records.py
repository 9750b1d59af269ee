"""The runs that a file of records holds in a row, pooled by the version of the sources that they measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tools.checkout import Checkout
from tools.measure.records import FILE, HEAD, Record


@dataclass(frozen=True)
class Pool:
    """The runs of one version of the sources: their figures may be computed together."""

    checkout: Checkout
    heads: list[Record]
    records: list[Record]


def read(directory: Path) -> list[Pool]:
    """All runs of a file, a pool for each version of the sources. A last line that was cut off is left out.

    A run with uncommitted changes, or of an unknown commit, has a pool of its own: nobody can say what it measured.

    Raises:
        OSError: there is no such file.
        ValueError: it is not one of ours.
    """
    lines = (directory / FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    if not records or records[0].get("kind") != HEAD:
        raise ValueError(f"{directory / FILE} does not begin with a record of the run")
    pools: list[Pool] = []
    for record in records:
        if record["kind"] == HEAD:
            checkout = Checkout.from_record(record["versions"])
            alike = [each for each in pools if checkout.reproducible and each.checkout == checkout]
            current = alike[0] if alike else Pool(checkout, [], [])
            current.heads.append(record)
            if not alike:
                pools.append(current)
        else:
            current.records.append(record)
    return pools


def read_one(directory: Path) -> Pool:
    """The one pool of a file.

    Raises:
        OSError, ValueError: as of `read`, or runs of several versions are in it; the text says which.
    """
    pools = read(directory)
    if len(pools) == 1:
        return pools[0]
    versions = ", ".join(str(pool.checkout) for pool in pools)
    raise ValueError(f"runs of different sources are not pooled ({versions}); --by-commit shows them side by side")
