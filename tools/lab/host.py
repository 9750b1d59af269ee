"""A host or router of a running lab: its addresses, and programs that run in it."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tools.lab.kernel import NAMESPACES, LabError, entered
from tools.lab.plan import Interface

if TYPE_CHECKING:
    from tools.lab.lab import Lab

_LAUNCHER = str(Path(__file__).with_name("launch.py"))
_OUTPUT_CHARACTERS_MAX = 4000
"""Of a failed program's output, in the error: its last words are what matters."""

Stream = int | IO[bytes] | None


class Host:
    """A node of a lab. Names and addresses are there from declaration on, programs run once the lab is up."""

    def __init__(self, lab: Lab, name: str) -> None:
        self._lab = lab
        self.name = name

    @property
    def namespace(self) -> str:
        """The namespace's name, for `ip -n`."""
        return self._lab.namespace_of(self.name)

    @property
    def namespace_path(self) -> Path:
        """The namespace's file, for `nsenter --net=` and pyroute2."""
        return NAMESPACES / self.namespace

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """All ends of links here, in the order of the links."""
        return self._lab.plan.interfaces[self.name]

    @property
    def interface(self) -> str:
        """The device of the first link."""
        return self._first.name

    @property
    def address(self) -> str:
        """The IPv4 address on the first link; what the name resolves to."""
        return self._first.address

    @property
    def address6(self) -> str:
        """The IPv6 address on the first link."""
        return self._first.address6

    def interface_on(self, via: str) -> str:
        """The device on the link, or towards the neighbour, called `via`; KeyError lists what there is."""
        return self._lab.plan.interface_on(self.name, via).name

    def address_on(self, via: str) -> str:
        """The IPv4 address on the link, or towards the neighbour, called `via`."""
        return self._lab.plan.interface_on(self.name, via).address

    def address6_on(self, via: str) -> str:
        """The IPv6 address on the link, or towards the neighbour, called `via`."""
        return self._lab.plan.interface_on(self.name, via).address6

    def enter(self) -> AbstractContextManager[None]:
        """`with host.enter():` this thread's new sockets are the host's. Names do not resolve: use addresses."""
        return entered(self.namespace)

    def command(self, argv: Sequence[str], *, user: str | None = None) -> list[str]:
        """The command line that becomes `argv` in this host (see `launch`), as `user` if given."""
        return [sys.executable, "-ISE", _LAUNCHER, self.namespace, user or "", "--", *argv]

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a program here, in a session of its own; it and its children die with the lab.

        Args:
            argv: program and arguments; no shell is involved. `pid` of the result is the program's own.
            user: become this user, with its groups; HOME, USER and LOGNAME follow.
            env: added to this process's environment.
            cwd, stdin, stdout, stderr, pass_fds: as for `subprocess.Popen`; stdin is empty by default.

        Raises:
            LabError: the lab is not up, or there is no such user.
        """
        self._lab.require_up()
        process = subprocess.Popen(
            self.command(argv, user=user),
            env={**os.environ, **_user_environment(user), **(env or {})},
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self._lab.adopt(process)
        return process

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        timeout_s: float | None = 60.0,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        input_text: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program here to its end and return its exit status and output (standard output and error apart).

        Raises:
            LabError: `check` and it failed, or it ran past `timeout_s` (then its whole session was killed).
        """
        process = self.popen(
            argv,
            user=user,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL if input_text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        what = f"{self.name}: {' '.join(argv)}"
        try:
            raw = process.communicate(None if input_text is None else input_text.encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            kill_session(process)
            output = b"".join(process.communicate()).decode(errors="replace")
            raise LabError(f"{what}: no end after {timeout_s:g} s\n{output[-_OUTPUT_CHARACTERS_MAX:]}") from error
        except BaseException:
            kill_session(process)
            raise
        finally:
            self._lab.forget(process)
        out, err = (part.decode(errors="replace") for part in raw)
        if check and process.returncode != 0:
            words = (err + out)[-_OUTPUT_CHARACTERS_MAX:].strip()
            raise LabError(f"{what}: exit status {process.returncode}\n{words}")
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    @property
    def _first(self) -> Interface:
        if not self.interfaces:
            raise LabError(f"{self.name} has no link")
        return self.interfaces[0]


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and what it started, as far as that stayed in its session; reap it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _user_environment(user: str | None) -> dict[str, str]:
    if user is None:
        return {}
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise LabError(f"no user {user!r} on this machine") from error
    return {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user}
