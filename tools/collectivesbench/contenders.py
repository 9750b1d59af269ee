"""Who competes: Gloo over TCP with either congestion control; `hive` as it is, forced to an algorithm, compressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CUBIC, BBR = "cubic", "bbr"
ALGORITHM = "HIVE_ALGORITHM"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to carry out a collective, always through `torch.distributed`.

    Args:
        name: in records and tables.
        backend: of `torch.distributed`.
        congestion: of TCP on its hosts; without effect on `hive`.
        environment: names and values of its processes' own variables.
        compression: of `hive`'s all-reduces, as its `pg_options` have it; results are then close, not equal.
    """

    name: str
    backend: str
    congestion: str = CUBIC
    environment: tuple[tuple[str, str], ...] = ()
    compression: str = ""


GLOO = Contender(name="gloo cubic", backend="gloo")
GLOO_BBR = Contender(name="gloo bbr", backend="gloo", congestion=BBR)
HIVE = Contender(name="hive", backend="hive")
GLOOS = (GLOO.name, GLOO_BBR.name)


def forced(algorithm: str) -> Contender:
    """Hive with the algorithm of that name for everything."""
    return Contender(name=f"hive {algorithm}", backend="hive", environment=((ALGORITHM, algorithm),))


def compressed(compression: str) -> Contender:
    """Hive with all-reduces of float32 compressed."""
    return Contender(name=f"hive {compression}", backend="hive", compression=compression)


def competing(
    *, algorithms: Sequence[str] = (), compressions: Sequence[str] = (), bbr: bool = True
) -> tuple[Contender, ...]:
    """All of a run; without `bbr` where TCP's congestion control makes no difference."""
    return (HIVE, *map(forced, algorithms), *map(compressed, compressions), GLOO, *([GLOO_BBR] if bbr else []))
