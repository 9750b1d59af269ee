"""Compressed gradients, as DDP hook and as option of a group: what is learned, what is sent, what is refused."""

from __future__ import annotations

import pytest
from torch_ranks import RankResult, RunRanks

from transport.collectives.codecs import Codec, encoded_bytes

pytestmark = pytest.mark.timeout(300)
Results = dict[str, list[RankResult]]
STEPS = 59
CODECS = ("bfloat16", "int8", "int4")
LOSS_TIMES_MAX = {"bfloat16": 1.02, "int8": 1.02, "int4": 1.1}
"""The loss after training, in times that without compression."""


@pytest.fixture(scope="module")
def results(run_ranks: RunRanks) -> Results:
    return run_ranks("compression.py", {"by_hook": 2, "by_group": 4, "refused": 2, "sharded": 3})


@pytest.mark.parametrize(("codec", "how"), [*((codec, "by_hook") for codec in CODECS), ("int8", "by_group")])
def test_a_training_learns_as_much_sends_what_was_reckoned_and_all_ranks_hold_the_same(
    results: Results, codec: str, how: str
) -> None:
    for result in results[how]:
        assert result.exit_code == 0, result.output
    found = [result.reports[0]["found"] for result in results[how]]
    assert len({one[codec]["digest"] for one in found}) == 1
    plain, compressed = found[0][""], found[0][codec]
    assert compressed["digest"] != plain["digest"]
    assert compressed["loss"] <= LOSS_TIMES_MAX[codec] * plain["loss"], (compressed, plain)
    # 2 (n-1)/n of the gradients leave a rank, and as many come; a message ends a block.
    sent = [one[codec]["bytes"] for one in found]
    whole = encoded_bytes(compressed["elems"], Codec.named(codec))
    assert sum(sent) == pytest.approx(4 * (len(found) - 1) * STEPS * whole, rel=0.01)


def test_what_is_no_compression_is_refused_and_ranks_that_differ_are_told(results: Results) -> None:
    for result in results["refused"]:
        assert result.exit_code == 0, result.output
        no_codec, no_name, differ = result.reports[0]["texts"]
        assert "[misuse]" in no_codec
        assert "[misuse]" in no_name
        assert "bfloat16, int8, int4, not 'int7'" in no_codec
        assert "as int8" in differ
        assert "as int4" in differ


def test_fsdp_learns_as_much_with_compressed_gradients_and_parameters_and_sends_less(results: Results) -> None:
    for result in results["sharded"]:
        assert result.exit_code == 0, result.output
    found = [result.reports[0]["found"] for result in results["sharded"]]
    plain = found[0]["float32"]
    # Two gathers of parameters and one reduction of gradients a step, all of them about as large.
    for name, of_plain in (("gradients", (2 + 1 / 4) / 3), ("both", (1 + 1 / 4) / 3)):
        assert len({one[name]["digest"] for one in found}) == 1
        assert found[0][name]["digest"] != plain["digest"]
        assert found[0][name]["loss"] <= 1.02 * plain["loss"], found[0]
        assert sum(one[name]["bytes"] for one in found) <= (of_plain + 0.1) * sum(
            one["float32"]["bytes"] for one in found
        )
