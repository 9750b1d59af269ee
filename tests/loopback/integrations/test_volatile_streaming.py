"""Streaming DiLoCo is that of its paper, and its 4 bits end where 32 do."""

from __future__ import annotations

import pytest
import torch
from volatile_members import SETTINGS, flat, in_threads, learn, model, register, sgd, train

from integrations.volatile import StreamingDiLoCo
from transport.volatile.group import VolatileGroup

SIZE = 2


def streaming_reference(*, every: int, overlap: int, alpha: float, steps: int) -> list[torch.Tensor]:
    """Streaming DiLoCo of two fragments as its paper has it, in one thread: what the members end with."""
    networks = [model() for _ in range(SIZE)]
    inners = [sgd(one) for one in networks]
    tensors = [list(one.parameters()) for one in networks]
    fragments = [[0], [1, 2, 3]]  # of 512, 32, 32 and 1 values
    held = [torch.nn.Parameter(one.detach().clone()) for one in tensors[0]]
    outers = [torch.optim.SGD([held[place] for place in one], lr=0.4, momentum=0.9, nesterov=True) for one in fragments]
    arriving: dict[int, int] = {}
    for step in range(1, steps + 1):
        for rank in range(SIZE):
            learn(networks[rank], inners[rank], (step - 1) * SIZE + rank)
            inners[rank].step()
        with torch.no_grad():
            if step in arriving:
                turn = arriving.pop(step)
                outers[turn].step()
                for place in fragments[turn]:
                    for own in tensors:
                        own[place].mul_(alpha).add_(held[place], alpha=1.0 - alpha)
            if step % (every // 2) == 0:
                turn = step // (every // 2) % 2 ^ 1
                for place in fragments[turn]:
                    held[place].grad = torch.stack([held[place] - own[place] for own in tensors]).mean(0)
                arriving[step + overlap] = turn
    return [flat(one) for one in networks]


@pytest.mark.parametrize(("overlap", "alpha"), [(1, 0.5), (2, 0.0)])
def test_streaming_members_train_as_the_paper_has_it(overlap: int, alpha: float) -> None:
    networks, where = [model() for _ in range(SIZE)], register()
    trained: dict[int, torch.Tensor] = {}

    def run(rank: int) -> None:
        network = networks[rank]

        def end(_: VolatileGroup) -> None:
            trained[rank] = flat(network).clone()  # a member that leaves may still receive what is under way

        algorithm = StreamingDiLoCo(
            network.parameters(), every=4, fragments=2, overlap=overlap, alpha=alpha, compression=""
        )
        train(algorithm, network, sgd(network), where, rank=rank, size=SIZE, steps=9, after=end)

    in_threads(SIZE, run)
    expected = streaming_reference(every=4, overlap=overlap, alpha=alpha, steps=9)
    for rank, values in enumerate(expected):
        torch.testing.assert_close(trained[rank], values, rtol=1e-4, atol=1e-6)


def streamed(compression: str) -> torch.Tensor:
    """What two members end with, whose fragments are large enough to be compressed: all of them with the same bits."""
    networks, where = [model(width=1024) for _ in range(SIZE)], register()
    states: list[dict[str, torch.Tensor]] = [{} for _ in range(SIZE)]

    def run(rank: int) -> None:
        network = networks[rank]
        algorithm = StreamingDiLoCo(network.parameters(), every=4, fragments=2, overlap=1, compression=compression)

        def end(_: VolatileGroup) -> None:
            algorithm.finish()
            states[rank] = algorithm.state_dict()

        inner = torch.optim.SGD(network.parameters(), lr=0.01)
        train(algorithm, network, inner, where, rank=rank, size=SIZE, steps=8, after=end)

    in_threads(SIZE, run)
    assert all(torch.equal(states[0][name], states[1][name]) for name in ("global", "buffer"))
    assert torch.equal(flat(networks[0]), flat(networks[1]))
    return flat(networks[0])


def test_streaming_in_4_bits_ends_near_to_streaming_in_32() -> None:
    exact, compressed = streamed(""), streamed("int4")
    way = (exact - flat(model(width=1024))).norm()
    assert 0 < (compressed - exact).norm() < 0.2 * way


def test_what_4_bits_leave_out_of_a_fragment_comes_with_a_later_one() -> None:
    rounds, where = 40, register()
    steps = torch.full((9000,), 0.01)  # above 32 KiB, below which fragments are sent as they are
    steps[::256] = 1.0  # so 4 bits have steps of 1 / 7, to which 0.01 is nothing
    parameters = [torch.nn.Parameter(torch.zeros(9000)) for _ in range(SIZE)]

    def run(rank: int) -> None:
        algorithm = StreamingDiLoCo(
            [parameters[rank]], every=1, fragments=1, overlap=0, alpha=0.0, outer_rate=1.0, outer_momentum=0.0
        )
        with algorithm.join(where, name=f"member-{rank}", members_min=SIZE, settings=SETTINGS):
            for _ in range(rounds):
                with algorithm.step(), torch.no_grad():
                    parameters[rank].add_(steps)

    in_threads(SIZE, run)
    assert torch.equal(*parameters)
    left_out = (parameters[0].detach() - rounds * steps).abs().max()
    assert 0 < left_out < 0.2  # of a round or two, where all of them add up to 0.4
