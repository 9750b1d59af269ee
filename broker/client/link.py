"""The thread behind a session: connect, send hello and what the mailbox holds, read answers, and start again.

Nothing leaves this thread: whatever goes wrong ends the connection, and the next attempt follows after 0.2 s, then
twice that and so on up to 5 s (a broker that restarts is found within its first second; one that is not installed
costs a failed connect every 5 s).
"""

from __future__ import annotations

import array
import contextlib
import logging
import os
import select
import socket
import time
from typing import Any

from broker.client import protocol
from broker.client.exchange import ask
from broker.client.mailbox import Allowance, Mailbox, SessionState
from broker.client.trust import check_server

BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 5.0
RATE_MAX = 10**13
"""In bits per second; what the configuration allows."""
ALLOWANCE_VALID_S = 10.0
"""No allowance counts for longer unless it is sent again: the broker may have died."""
ANSWER_TIMEOUT_S = 5.0
"""How long the welcome may take; a broker that is being restarted accepts before it serves."""

_log = logging.getLogger("hive_qos.broker.client")


def end(box: Mailbox) -> None:
    """Ask the thread to send `bye` and to end. Idempotent."""
    if box.state is SessionState.OFF:  # a forked child's: its lock may be held for ever
        return
    with box.lock:
        box.state = SessionState.CLOSED
    box.wake.set()


def send_now(box: Mailbox, message: dict[str, Any]) -> bool:
    """Send a message about a burst from the caller's thread, who holds the mailbox's lock.

    Returns:
        False where it has to wait in the mailbox: nobody is there, the broker does not take more now, or something that
        comes before it waits already.
    """
    sock = box.connection
    if sock is None or box.state is not SessionState.CONNECTED or box.unsent or box.bursts:
        return False
    try:
        sock.send(protocol.encode(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except (OSError, protocol.MessageError):  # the thread meets it, and logs it
        return False
    return True


def run(box: Mailbox, path: str) -> None:
    """Serve one mailbox until it is closed. The body of the session's thread."""
    backoff_s = BACKOFF_S_MIN
    reported = False
    try:
        while box.state is not SessionState.CLOSED:
            started_s = time.monotonic()
            try:
                _serve_once(box, path)
            except (OSError, protocol.MessageError) as error:
                if not reported:
                    _log.info("no broker at %s (%s); going on without", path, error)
                    reported = True
            except Exception:  # noqa: BLE001 - the last line before a training program: log, never raise
                _log.exception("the session with the broker failed; going on without")
            served = time.monotonic() - started_s > 1.0
            backoff_s = BACKOFF_S_MIN if served else backoff_s
            _lose(box)
            _sleep(box, backoff_s)
            backoff_s = min(BACKOFF_S_MAX, 2 * backoff_s)
    finally:
        box.wake.close()


def _serve_once(box: Mailbox, path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        box.connection = sock
        try:
            sock.settimeout(ANSWER_TIMEOUT_S)
            sock.connect(path)
            check_server(sock)
            _greet(sock, box)
            _exchange(sock, box)
        finally:
            with box.lock:  # nobody is sending then
                box.connection = None


def _greet(sock: socket.socket, box: Mailbox) -> None:
    hello = {"v": protocol.VERSION, "op": "hello", "client": box.client, "job": box.job, "pid": os.getpid()}
    answer = ask(sock, hello)
    if answer.get("op") != "welcome":
        _note(box, answer)
        raise protocol.MessageError(str(answer.get("code", "error")), str(answer.get("text", "not welcome")))
    sock.setblocking(False)  # before anybody else sends: nobody is to wait
    with box.lock:
        box.unsent.clear()
        box.unsent.extend(box.registrations)
        box.need_unsent, box.program_unsent = box.need is not None, box.program is not None
        if box.state is SessionState.CONNECTING:
            box.state = SessionState.CONNECTED


def _exchange(sock: socket.socket, box: Mailbox) -> None:
    poll = select.poll()
    poll.register(box.wake.reader, select.POLLIN)
    while True:
        blocked = not _flush(sock, box)
        if box.state is SessionState.CLOSED:
            with contextlib.suppress(OSError):
                sock.send(protocol.encode({"op": "bye"}))
            return
        poll.register(sock, select.POLLIN | (select.POLLOUT if blocked else 0))
        ready = dict(poll.poll())
        if box.wake.reader in ready:
            box.wake.clear()
        if ready.get(sock.fileno(), 0) & (select.POLLIN | select.POLLHUP | select.POLLERR):
            packet = sock.recv(protocol.PACKET_BYTES_MAX + 1)
            if not packet:
                raise ConnectionResetError("the broker ended the session")
            _note(box, protocol.decode(packet))


def _flush(sock: socket.socket, box: Mailbox) -> bool:
    """Send what waits: sockets first, then bursts, then what storage needs and its program, then reports. False when
    the broker does not take more now."""
    while True:
        with box.lock:
            number = box.unsent[0] if box.unsent else None
            burst = box.bursts[0] if box.bursts else None
            need = box.need if box.need_unsent else None
            program = box.program if box.program_unsent else None
            report = box.reports[0] if box.reports else None
        try:
            if number is not None:
                _tell_registration(sock, box, number)
                _done(box, box.unsent, number)
            elif burst is not None:
                message = _on_time(burst)
                if message is not None:
                    sock.send(protocol.encode(message))
                _done(box, box.bursts, burst)
            elif need is not None:
                sock.send(protocol.encode(_as_of_now(need)))
                with box.lock:
                    box.need_unsent = box.need is not need
            elif program is not None:
                sock.send(protocol.encode(program))
                with box.lock:
                    box.program_unsent = box.program is not program
            elif report is not None:
                sock.send(protocol.encode(report))
                _done(box, box.reports, report)
            else:
                return True
        except BlockingIOError:
            return False
        except protocol.MessageError as error:
            _log.warning("not sent to the broker: %s", error)
            with box.lock:
                if burst is None and need is not None:
                    box.need_unsent = False
                elif burst is None and program is not None:
                    box.program_unsent = False
                else:
                    (box.bursts if burst is not None else box.reports).popleft()


def _done(box: Mailbox, queue: Any, item: object) -> None:
    with box.lock:  # a bounded queue may have dropped its oldest meanwhile
        if queue and queue[0] == item:
            queue.popleft()


def _tell_registration(sock: socket.socket, box: Mailbox, number: int) -> None:
    """That it is there, with its socket; or that it is not any more."""
    with box.lock:
        registration = box.registrations.get(number)
        target = None if registration is None else registration.sock()  # it lives until it is sent
        if target is None or target.fileno() < 0:
            registration = None
            box.registrations.pop(number, None)
    if registration is None or target is None:
        sock.send(protocol.encode({"op": "unregister", "id": number}))
        return
    message = {
        "op": "register",
        "id": registration.number,
        "class": registration.traffic_class,
        "role": registration.role,
    }
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [target.fileno()]))
    sock.sendmsg([protocol.encode(message)], [rights])


def _on_time(burst: tuple[float, dict[str, Any]]) -> dict[str, Any] | None:
    """The announcement with its durations counted from now; None when its deadline has passed while it waited."""
    queued_s, message = burst
    if message["op"] != "burst":
        return message
    waited_s = time.monotonic() - queued_s
    if waited_s < 0.001:
        return message
    left_s = message["deadline_s"] - waited_s
    if left_s <= 0:
        return None
    aged = {**message, "deadline_s": left_s}
    if "next_s" in message:
        aged["next_s"] = max(0.0, message["next_s"] - waited_s)
    return aged


def _as_of_now(need: tuple[float, dict[str, Any]]) -> dict[str, Any]:
    """The need with its time counted from now; one whose deadline has passed is due at once."""
    declared_s, message = need
    if "deadline_s" not in message:
        return message
    return {**message, "deadline_s": max(0.0, message["deadline_s"] - (time.monotonic() - declared_s))}


def _note(box: Mailbox, answer: dict[str, Any]) -> None:
    operation, number = answer.get("op"), answer.get("id")
    with box.lock:
        if operation == "registered" and isinstance(number, int):
            if number in box.registrations:
                box.flows[number] = tuple(str(name) for name in answer.get("flows", ()))
            note = answer.get("note")
            if isinstance(note, str) and note != box.noted:
                box.noted = note
                _log.warning("note of the broker: %s", note)
        elif operation == "allowance":
            _note_allowance(box, answer)
        elif operation == "error":
            text = f"{answer.get('code', 'error')}: {answer.get('text', '')}"
            if text not in box.rejections:
                _log.warning("the broker refused: %s", text)
            box.rejections.append(text)


def _note_allowance(box: Mailbox, answer: dict[str, Any]) -> None:
    """Take what the class may use; what cannot be that is as if there were none."""
    guarantee, ceiling = answer.get("guarantee_bits_per_s"), answer.get("ceiling_bits_per_s")
    box.allowance = None, 0.0
    if isinstance(guarantee, int) and isinstance(ceiling, int) and 0 <= guarantee <= ceiling <= RATE_MAX and ceiling:
        box.allowance = Allowance(guarantee, ceiling), time.monotonic() + ALLOWANCE_VALID_S


def _lose(box: Mailbox) -> None:
    with box.lock:
        if box.state is SessionState.CONNECTED:
            box.state = SessionState.CONNECTING
            box.reconnects += 1
        box.flows.clear()
        box.reports.clear()
        box.allowance = None, 0.0


def _sleep(box: Mailbox, duration_s: float) -> None:
    """Wait, but not for a session that is closed; other wake-ups may wait with us."""
    until_s = time.monotonic() + duration_s
    while box.state is not SessionState.CLOSED:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return
        if select.select([box.wake.reader], [], [], left_s)[0]:
            box.wake.clear()
