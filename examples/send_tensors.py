"""Two scripts that send each other tensors. Run it twice, in two terminals or on two hosts:

    python examples/send_tensors.py --rank 0 --meet 127.0.0.1:29400
    python examples/send_tensors.py --rank 1 --meet 127.0.0.1:29400

On two hosts, `--meet` is rank 0's address on both. Set HIVE_JOB_SECRET to the same secret on both sides, or configure
certificates (docs/reference/transport.md), so that nobody else can pretend to be one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

import numpy as np

import transport
from hive_qos.errors import ConfigurationError, HiveError

MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, required=True, choices=[0, 1])
    parser.add_argument("--meet", default="127.0.0.1:29400", help="where rank 0 waits for rank 1 (host:port)")
    parser.add_argument("--mib", type=float, default=4.0, help="size of the tensor that is sent, in MiB")
    options = parser.parse_args()

    if options.mib <= 0:
        parser.error(f"--mib is {options.mib:g}: send more than nothing")
    try:
        rendezvous = transport.TcpRendezvous(options.meet, serve=options.rank == 0)
        with contextlib.closing(rendezvous):
            exchange(rendezvous, options.rank, elems=max(1, int(options.mib * MIB / 4)))
    except ConfigurationError as error:  # no address, or rank 0 cannot have it, or what the environment says
        parser.error(str(error))
    except HiveError as error:  # such as that the other did not come
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def exchange(rendezvous: transport.TcpRendezvous, rank: int, *, elems: int) -> None:
    other = 1 - rank
    with transport.Group.connect(rendezvous, rank=rank, world_size=2) as group:
        tensor = np.full(elems, rank + 1, dtype=np.float32)
        received = np.empty_like(tensor)

        began_s = time.perf_counter()
        sending = group.send(tensor, other)  # returns at once; both directions are under way together
        group.recv(received, other).wait()
        sending.wait()
        took_s = time.perf_counter() - began_s
        print(f"rank {rank}: {received.nbytes / MIB:g} MiB of {received[0]:g} each way in {took_s:.3f} s")

        # A receiver that does not know what will come takes whatever it is.
        group.send(np.arange(6).reshape(2, 3) * (rank + 1), other, tag=7)
        surprise = group.recv(None, other, tag=7).wait()
        assert isinstance(surprise, np.ndarray)
        print(f"rank {rank}: {surprise.dtype} {surprise.shape}, sum {surprise.sum()}")
        group.barrier().wait()  # nobody leaves while the other still sends


if __name__ == "__main__":
    main()
