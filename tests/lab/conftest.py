"""What every lab test needs: labs that are gone afterwards, whatever the test does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from engine_cases import asks_for, need
from shaping_bench import Bench, make_bench

from shaping.classify.cgroup import SocketClassifier
from shaping.journal import Journal
from shaping.kernel import RealKernel
from shaping.shaper import Shaper
from tools.lab import Lab, privilege, state
from tools.lab.kernel import entered

sys.path.insert(
    0, str(Path(__file__).parents[1] / "unit" / "shaping")
)  # `shaping_contract`: shared with the fake's tests
NOT_RUN = "lab tests were left out"


@pytest.fixture(scope="session", autouse=True)
def lab_privilege() -> None:
    """These tests need root. Under CI, or as root on a machine that cannot, that is a failure and not a skip."""
    end_without_privilege(privilege.missing(), must_run=bool(os.environ.get("CI")) or os.geteuid() == 0)


def end_without_privilege(lack: str | None, *, must_run: bool) -> None:
    """Go on when nothing is lacking; else fail where these tests must run, or skip them in words that nobody misses."""
    if lack is None:
        return
    if must_run:
        pytest.fail(f"lab tests cannot run: {lack}", pytrace=False)
    pytest.skip(f"{NOT_RUN}: {lack}; with CI=1 in the environment this is a failure")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where the native engine has to be built and is not, say so rather than what a rank without it says."""
    if asks_for("native", item):
        need("native")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """A skipped lab is most of what is claimed about the kernel: say it in a line of its own, after all others."""
    yield
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NOT_RUN in str(report.longrepr)]
    if skipped:
        terminalreporter.write_sep(
            "!",
            f"{len(skipped)} {NOT_RUN}: no root, or no lab here; nothing was checked in a real network",
            yellow=True,
        )


@pytest.fixture
def lab_factory() -> Iterator[Callable[..., Lab]]:
    """Makes labs (`lab_factory(name)`, `Lab`'s arguments) that end with the test; declare, then call `up()`."""
    made: list[Lab] = []

    def make(name: str = "test") -> Lab:
        made.append(Lab(name))
        return made[-1]

    yield make
    for lab in made:
        lab.close()


def pytest_sessionfinish() -> None:
    """Take down what a test that died in the middle has left, and what earlier runs left."""
    for known in state.all_labs():
        if known.owner.pid == os.getpid() or known.stale:
            state.tear_down(known.id)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """Two namespaces for one module's tests of shaping."""
    with make_bench() as made:
        yield made


@pytest.fixture
def shaper(bench: Bench, tmp_path: Path) -> Iterator[Shaper]:
    """A shaper in the sender's namespace; whatever the test attached is gone afterwards."""
    with entered(bench.sender):
        made = Shaper(RealKernel(), Journal(tmp_path), classifier=SocketClassifier())
        yield made
        made.clear()
        made.close()
