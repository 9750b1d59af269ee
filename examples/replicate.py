"""Copies a file to another host as storage, and tells the broker of this host what it has to do. In two terminals or on
two hosts:

    python examples/replicate.py receive --listen 127.0.0.1:7100 --file /tmp/copy
    python examples/replicate.py send --to 127.0.0.1:7100 --file /etc/services --deadline 60 --at-risk 1

The broker marks the connection as storage, so that training and people go before it, and knows how much is left, by
when, and whether data has too few copies meanwhile: `hive-qos status --json` shows it under `needs`. Without a broker
the file is copied all the same.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time

from broker.client import Session

PIECE_BYTES = 256 * 1024
TELL_S = 1.0
"""How often the broker is told what is left; it takes a program for hung that has not said so for a minute."""


def send(*, to: tuple[str, int], file: str, deadline_s: float | None, at_risk: int) -> int:
    """Copy one file.

    Returns:
        Bytes sent.
    """
    size = os.path.getsize(file)
    due_s = None if deadline_s is None else time.monotonic() + deadline_s
    told_s, sent = float("-inf"), 0
    with (
        Session(job="", client="replicate") as session,
        socket.create_connection(to) as sock,
        open(file, "rb") as source,
    ):
        session.register(sock, traffic_class="storage", role="storage")
        address = sock.getpeername()[0]
        while piece := source.read(PIECE_BYTES):
            now_s = time.monotonic()
            if now_s >= told_s + TELL_S:
                told_s, left = now_s, max(0, size - sent)
                session.need(
                    backlog_bytes=left,
                    deadline_s=None if due_s is None else max(0.0, due_s - now_s),
                    replicas_at_risk=at_risk,
                    bytes_by_destination={address: left},
                )
            sock.sendall(piece)
            sent += len(piece)
        session.need(backlog_bytes=0)
        for refusal in session.rejections:
            print(f"the broker refused: {refusal}")
    return sent


def receive(*, listen: tuple[str, int], file: str) -> int:
    """Take one file.

    Returns:
        Bytes received.
    """
    with socket.create_server(listen) as server:
        connection, _ = server.accept()
        with connection, open(file, "wb") as target:
            received = 0
            while piece := connection.recv(PIECE_BYTES):
                target.write(piece)
                received += len(piece)
    return received


def endpoint(text: str) -> tuple[str, int]:
    """Read `host:port`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: write host:port")
    return host.strip("[]"), int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sender = commands.add_parser("send", help="copy a file to a host that receives")
    sender.add_argument("--to", type=endpoint, required=True, help="host:port")
    sender.add_argument("--file", required=True)
    sender.add_argument("--deadline", type=float, help="seconds in which it has to be there; else as soon as possible")
    sender.add_argument("--at-risk", type=int, default=0, help="objects that have too few copies until it is there")
    receiver = commands.add_parser("receive", help="take one file")
    receiver.add_argument("--listen", type=endpoint, required=True, help="host:port")
    receiver.add_argument("--file", required=True)
    options = parser.parse_args()
    try:
        if options.command == "send":
            count = send(to=options.to, file=options.file, deadline_s=options.deadline, at_risk=options.at_risk)
        else:
            count = receive(listen=options.listen, file=options.file)
    except OSError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"{count} bytes")


if __name__ == "__main__":
    main()
