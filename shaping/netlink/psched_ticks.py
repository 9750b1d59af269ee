"""The kernel's unit of a burst: the time that it takes at the class' rate, in ticks of 64 ns. Pure.

`struct tc_htb_opt` carries `buffer` and `cbuffer` in "psched ticks" (PSCHED_SHIFT 6 in include/net/pkt_sched.h;
/proc/net/psched says the same), and the kernel reports the same number back. Rounding to a whole tick here makes what
is wanted and what is read back comparable for equality.
"""

from __future__ import annotations

TICK_NS = 64  # PSCHED_SHIFT of the kernel's net/pkt_sched.h is 6
_NS = 1_000_000_000  # in a second


def burst_ticks(burst_bytes: int, *, rate_bytes_per_s: int) -> int:
    """Ticks that `burst_bytes` take at the rate, rounded up so that a burst never comes out smaller than asked."""
    ticks = -(-burst_bytes * _NS // (rate_bytes_per_s * TICK_NS))
    return min(ticks, 2**32 - 1)


def burst_bytes_of(ticks: int, *, rate_bytes_per_s: int) -> int:
    """Bytes that fit into `ticks` at the rate, rounded down. Undoes `burst_ticks` for every value it can return."""
    return ticks * TICK_NS * rate_bytes_per_s // _NS


def round_burst_bytes(burst_bytes: int, *, rate_bytes_per_s: int) -> int:
    """What the kernel will report for a burst of `burst_bytes`: at least as much, by less than a tick.

    Below 15.6 Mbyte/s a tick is less than a byte and the value is unchanged; above, it is rounded up by at most
    `rate * 64 ns`. Rounding a rounded value changes nothing.
    """
    return burst_bytes_of(
        burst_ticks(burst_bytes, rate_bytes_per_s=rate_bytes_per_s), rate_bytes_per_s=rate_bytes_per_s
    )
