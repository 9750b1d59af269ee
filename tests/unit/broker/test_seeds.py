"""The helper for random behaviour: a share of the seeds has to keep a bound, and a failure names each seed."""

from __future__ import annotations

import pytest
from seeds import assert_most, over_seeds


def test_a_share_of_the_seeds_from_0_on_has_to_keep_the_bound() -> None:
    found = over_seeds(10, lambda seed: 2.0 if seed == 7 else 1.0)
    assert_most(found, 0.9, at_most=1.5)
    with pytest.raises(AssertionError, match=r"9 of 10 .*100%.* seed 7: 2,"):
        assert_most(found, 1, at_most=1.5)
    with pytest.raises(AssertionError, match="0 of 0"):
        assert_most([], 0.5, at_most=1.5)
