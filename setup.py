"""Builds the native engine into the package where cargo can, and leaves it out in one line where it cannot.

Everything else about the package stands in pyproject.toml. The engine is built before setuptools decides what kind of
wheel this is: with it the wheel is for CPython's stable ABI from 3.11 and this platform, without it for any Python.

HIVE_NATIVE_BUILD says how much the native engine matters: `auto` (the default), `required` (fail where it cannot be
built) or `off`. HIVE_NATIVE_TARGET, such as `x86_64-unknown-linux-gnu.2.17`, builds for that platform with
cargo-zigbuild, against that glibc (tools/wheel.sh).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

MODULE = "hive_qos_native"
CRATE = Path(__file__).parent / "native"
COMMANDS = {"bdist_wheel", "editable_wheel", "build", "build_ext", "develop", "install"}
"""What needs the engine; all others only ask for the package's metadata."""


def main() -> None:
    """Build, or say why not, and hand over to setuptools."""
    library = None
    if COMMANDS.intersection(sys.argv):
        try:
            library = build_library(os.environ.get("HIVE_NATIVE_BUILD", "auto"))
        except RuntimeError as reason:
            if os.environ.get("HIVE_NATIVE_BUILD") == "required":
                raise SystemExit(f"hive-qos: the native engine cannot be built: {reason}") from None
            say(f"hive-qos: without the native engine ({reason}); the pure-Python engine is used")
    if library is None:
        setup()
        return
    setup(
        ext_modules=[Extension(MODULE, sources=[], py_limited_api=True)],
        cmdclass={"build_ext": command_that_copies(library)},
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )


def say(line: str) -> None:
    """Tell whoever installs: also past pip, which without -v keeps to itself what a build that went well says."""
    print(line, file=sys.stderr)
    if not sys.stderr.isatty():
        with (
            contextlib.suppress(OSError),
            open("/dev/tty", "w", errors="backslashreplace") as terminal,
        ):  # there may be none
            terminal.write(f"\r{line}\n")


def build_library(wish: str) -> Path:
    """Build in release mode what changed since the last time; gives the shared library.

    Raises:
        RuntimeError: it is not wanted, or cannot be built here; the text is the reason, in one line.
    """
    if wish == "off":
        raise RuntimeError("HIVE_NATIVE_BUILD=off")
    if not (CRATE / "Cargo.toml").is_file():
        raise RuntimeError("its sources are not here")
    if shutil.which("cargo") is None:
        raise RuntimeError("cargo is not installed")
    refuse_an_old_compiler()
    target = os.environ.get("HIVE_NATIVE_TARGET", "")
    argv = ["cargo", "zigbuild", "--target", target] if target else ["cargo", "build"]
    argv += ["--release", "--locked", "--lib", "--message-format=short", "--manifest-path", str(CRATE / "Cargo.toml")]
    # The stable ABI needs no interpreter, and a frontend's changes with every build: all would be built again.
    environment = {**os.environ, "PYO3_NO_PYTHON": "1", "CARGO_TARGET_DIR": str(CRATE / "target")}
    done = subprocess.run(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        words = (line.strip() for line in done.stdout.splitlines() if re.search(r"\berror\b", line, re.IGNORECASE))
        raise RuntimeError(f"cargo failed: {next(words, 'it gives no reason')}")
    library = CRATE / "target" / target.partition(".")[0] / "release" / f"lib{MODULE}.so"
    if not library.is_file():
        raise RuntimeError(f"cargo left no {library.name}: this platform is not known here")
    return library


def refuse_an_old_compiler() -> None:
    """One line instead of what an old cargo makes of a manifest that it cannot read.

    Raises:
        RuntimeError: rustc is older than the crate says, or not there.
    """
    wanted = re.search(r'^rust-version = "([0-9.]+)"', (CRATE / "Cargo.toml").read_text(encoding="utf-8"), re.MULTILINE)
    try:
        said = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        raise RuntimeError("rustc is not installed") from None
    found = re.search(r"rustc ([0-9.]+)", said)
    if wanted is None or found is None:
        raise RuntimeError("rustc does not say its version")
    if [int(part) for part in found[1].split(".")] < [int(part) for part in wanted[1].split(".")]:
        raise RuntimeError(f"rustc {found[1]} is older than {wanted[1]}")


def command_that_copies(library: Path) -> type[build_ext]:
    """The command that puts the finished library where setuptools wants the extension."""

    class CopyLibrary(build_ext):
        def build_extension(self, ext: Extension) -> None:
            target = Path(self.get_ext_fullpath(ext.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            # Beside and renamed: a process that has the old one mapped keeps it.
            fresh = target.with_name(f".{target.name}.new")
            shutil.copyfile(library, fresh)
            fresh.replace(target)

    return CopyLibrary


main()
