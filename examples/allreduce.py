"""The mean of a tensor over several ranks, with asyncio. One process a rank:

    for rank in 0 1 2; do
        python examples/allreduce.py --rank $rank --world-size 3 --meet /tmp/allreduce-1 &
    done; wait

`--meet` is a directory that all ranks see; use a new one for every run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import numpy as np

import transport
from hive_qos.errors import ConfigurationError, HiveError, MisuseError


async def run(rank: int, world_size: int, directory: str) -> None:
    rendezvous = transport.FileRendezvous(directory)
    async with await transport.Group.connect_async(rendezvous, rank=rank, world_size=world_size) as group:
        gradients = [np.full(100_000, rank + layer, dtype=np.float32) for layer in range(4)]
        # All four are under way at once; each ends when every rank has called it.
        works = [group.allreduce(gradient, transport.ReduceOp.MEAN, timeout_s=60.0) for gradient in gradients]
        for work in works:
            await work
        print(f"rank {rank}: {[float(gradient[0]) for gradient in gradients]}")
        await group.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--meet", required=True)
    options = parser.parse_args()
    try:
        asyncio.run(run(options.rank, options.world_size, options.meet))
    except (ConfigurationError, MisuseError) as error:  # the directory was used; no such rank
        parser.error(str(error))
    except HiveError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
