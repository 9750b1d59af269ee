"""How tests wait and measure on a machine that stands still for a second now and then.

Noise only ever makes things late or slow. So what must come is waited for by looking again, with a limit that no stall
reaches; and a figure that noise can spoil is measured in windows until so many of so many are good.
What noise cannot do (a link faster than its rate, a lost packet, another order) is asserted at once and every time.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import time
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT_S = 30.0 * float(os.environ.get("HIVE_TEST_PATIENCE", "1"))
"""For what must come: longer than any stall, shorter than what pytest gives a test (120 s). An emulated machine, on
which Python is 15 times slower, has more of both (`tools/kernels.sh`)."""
PAUSE_S_MAX = 0.1
"""Ten looks a second, as many as the broker has ticks."""
SHOWN_MAX = 2000


def wait_until(
    condition: Callable[[], T],
    *,
    what: Callable[[], object] | None = None,
    limit_s: float = LIMIT_S,
    pause_s: float | None = None,
) -> T:
    """Look again and again until `condition` gives something true, and give that.

    Args:
        what: more to say at the limit than the condition itself and its parts' values.
        pause_s: between two looks. By default 10 ms at first, later a twentieth of the time waited, at most
            `PAUSE_S_MAX`: a look may start a program, and what is waited for needs the processor.
    """
    began_s = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - began_s
        if waited_s >= limit_s:
            more = "" if what is None else f"\n{what()}"
            raise AssertionError(f"not within {limit_s:g} s: {explained(condition, found)}{more}")
        time.sleep(max(0.01, min(waited_s / 20, PAUSE_S_MAX)) if pause_s is None else pause_s)
    return found


def explained(condition: Callable[[], object], found: object) -> str:
    """The source of a condition, what it gave, and of a lambda the value of each part that its truth is made of."""
    tree = _lambda(condition)
    if tree is None:
        return f"{getattr(condition, '__qualname__', condition)}() gives {_shown(found)}"
    # A lambda's own names, then those of the function around it: what it can see.
    outside = inspect.getclosurevars(condition)
    defaults = inspect.signature(condition).parameters.values()
    names = {**outside.globals, **outside.nonlocals, **{one.name: one.default for one in defaults}}
    lines = [f"{ast.unparse(tree.body)} gives {_shown(found)}"]
    for part in _parts(tree.body):
        code = compile(ast.Expression(part), "<part>", "eval")
        try:
            value = _shown(eval(code, getattr(condition, "__globals__", {}), names))
        except Exception as problem:  # noqa: BLE001 - it is for a message that there is to be in any case
            value = f"raises {_shown(problem)}"
        lines.append(f"  {ast.unparse(part)} = {value}")
    return "\n".join(lines)


def _lambda(condition: Callable[[], object]) -> ast.Lambda | None:
    """The syntax tree of a lambda: the one that begins where its code does. None for a function with a name."""
    code = getattr(condition, "__code__", None)
    if not isinstance(code, CodeType) or code.co_name != "<lambda>":
        return None
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    spans = [(line, column) for line, _, column, _ in code.co_positions() if line is not None and column is not None]
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            body = node.body
            end = (body.end_lineno or 0, body.end_col_offset or 0)
            if all((body.lineno, body.col_offset) <= span <= end for span in spans if span[1] > 0):
                return node
    return None


def _parts(node: ast.expr) -> list[ast.expr]:
    """What the truth of an expression is made of: sides of comparisons, terms of and, or, not."""
    match node:
        case ast.BoolOp():
            return [part for value in node.values for part in (_parts(value) or [value])]
        case ast.UnaryOp(op=ast.Not()):
            return _parts(node.operand) or [node.operand]
        case ast.Compare():
            return [side for side in (node.left, *node.comparators) if not isinstance(side, ast.Constant)]
    return []


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def most_of(
    measure: Callable[[], T],
    good: Callable[[T], bool],
    *,
    needed: int = 2,
    windows: int = 6,
    limit_s: float = 2 * LIMIT_S,
) -> T:
    """Measure until `needed` windows of at most `windows` are good, and give the last of them; fail with all seen.

    Args:
        limit_s: none begins after it.
    """
    seen: list[T] = []
    kept = 0
    until_s = time.monotonic() + limit_s
    while len(seen) < windows and time.monotonic() < until_s:
        seen.append(measure())
        kept += good(seen[-1])
        if kept == needed:
            return seen[-1]
        if kept + windows - len(seen) < needed:
            break
    raise AssertionError(f"{kept} of {len(seen)} windows are good, {needed} of {windows} have to be: {seen}")
