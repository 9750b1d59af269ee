"""What the Debian package has beside Python packages: units, completion, the manual page, maintainer scripts."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli.changing import init_command
from tools.docs_tables import ROOT

EXECUTABLE = "usr/lib/hive-qos/bin/"


def ran(*argv: str | Path) -> str:
    """What a program says that ends well, with what it says on standard error."""
    done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deb")
    ran("bash", "tools/deb/tree.sh", sys.executable, folder)
    return folder


def test_the_tree_has_every_file_of_systemd_and_no_configuration_that_an_upgrade_could_replace(tree: Path) -> None:
    of_systemd = {path.name for path in (ROOT / "systemd").iterdir()}
    units = {path.name for path in (tree / "usr/lib/systemd/system").iterdir()}
    assert units == {name for name in of_systemd if name.endswith((".service", ".slice"))}
    assert [path.name for path in (tree / "etc").rglob("*")] == ["hive-qos"]
    assert (tree / "usr/share/doc/hive-qos/examples/broker.toml").is_file()
    assert of_systemd - units == {"hive-qos-sysusers.conf", "hive-qos-sysctl.conf", "broker.toml"}


def test_the_tree_has_the_examples_and_every_document_that_a_unit_or_the_configuration_names(tree: Path) -> None:
    about = tree / "usr/share/doc/hive-qos"
    examples = {path.name for path in (ROOT / "examples/config").iterdir()}
    assert examples
    assert examples < {path.name for path in (about / "examples").iterdir()}
    for path in (about / "examples").iterdir():
        assert "../" not in path.read_text().splitlines()[0]
    texts = [path.read_text() for path in (tree / "usr/lib/systemd/system").iterdir()]
    texts += [(about / "examples/broker.toml").read_text(), init_command._HEAD]
    named = {name for text in texts for name in re.findall(r"docs/[a-z/-]+\.md", text)}
    assert named
    assert [name for name in named if not (about / name).is_file()] == []


def test_systemd_accepts_the_units_of_the_package(tree: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    assert program is not None, "systemd-analyze is missing: apt-get install systemd"
    for unit in (tree / "usr/lib/systemd/system").iterdir():
        text = unit.read_text()
        assert "/opt/" not in text
        for name in ("hive-qos", "python"):
            text = text.replace(f"/{EXECUTABLE}{name} ", "/bin/true ")
        (tmp_path / unit.name).write_text(text)
    assert ran(program, "verify", "--man=no", *sorted(tmp_path.iterdir())) == ""


def test_the_package_depends_on_a_python_whose_compiled_modules_it_has_and_on_no_other(tree: Path) -> None:
    control, build = (tree / "DEBIAN/control").read_text(), (ROOT / "tools/deb/build.sh").read_text()
    (depends,), (has,) = (
        re.findall(r"^Depends: (.*)$", control, re.MULTILINE),
        re.findall(r"^pythons=\((.*?)\)", build, re.M),
    )
    needs = [re.findall(r"python3 \((\S+) (\S+)\)", one) for one in depends.split(",") if "python3 " in one]

    def holds(version: str, relation: str, than: str) -> bool:
        return subprocess.run(["dpkg", "--compare-versions", version, relation, than], check=False).returncode == 0

    versions = {f"3.{minor}": f"3.{minor}.2-1" for minor in range(9, 20)}
    taken = [
        name for name, version in versions.items() if all(any(holds(version, *one) for one in any_) for any_ in needs)
    ]
    assert taken == has.split()


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_a_shell_takes_the_maintainer_scripts(tree: Path, script: str) -> None:
    file = tree / "DEBIAN" / script
    assert file.stat().st_mode & 0o111
    ran("sh", "-n", file)


def test_the_manual_page_has_every_command_and_groff_has_no_warning(tree: Path) -> None:
    from broker.cli.app import app

    page = gzip.decompress((tree / "usr/share/man/man1/hive-qos.1.gz").read_bytes()).decode()
    names = [f".SS hive\\-qos {(one.name or '').replace('-', chr(92) + '-')}\n" for one in app.registered_commands]
    assert [name for name in names if name not in page] == []
    groff = shutil.which("groff")
    assert groff is not None, "groff is missing: apt-get install groff-base"
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", "-Kutf8"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "put back what was there" in " ".join(done.stdout.replace("‐\n", "").split())


def test_bash_completes_commands_and_options_with_what_the_package_installs(tree: Path) -> None:
    script = (
        f'PATH={Path(sys.executable).parent}:$PATH; . "$0"; COMP_WORDS=(hive-qos run --cl); COMP_CWORD=2;'
        ' _hive_qos_completion hive-qos; echo "${COMPREPLY[*]}"'
    )
    assert ran("bash", "-c", script, tree / "usr/share/bash-completion/completions/hive-qos") == "--class\n"


def test_zsh_and_fish_get_a_completion_of_the_form_that_each_loads(tree: Path) -> None:
    first, *rest = (tree / "usr/share/zsh/vendor-completions/_hive-qos").read_text().splitlines()
    assert first == "#compdef hive-qos"
    assert rest[0].startswith("eval $(env ")
    fish = (tree / "usr/share/fish/vendor_completions.d/hive-qos.fish").read_text()
    assert fish.startswith("complete --command hive-qos ")


def test_removing_takes_back_the_sizes_of_buffers_that_the_package_sets(tree: Path) -> None:
    lines = (tree / "usr/lib/sysctl.d/10-hive-qos.conf").read_text().splitlines()
    settings = dict(line.split(" = ") for line in lines if line and not line.startswith("#"))
    assert set(settings) == {"net.core.rmem_max", "net.core.wmem_max"}
    (value,) = set(settings.values())
    assert f'!= {value} ] || echo "$before"' in (tree / "DEBIAN/prerm").read_text()
    assert f"-ge {value} ]" in (tree / "DEBIAN/postinst").read_text(), "it lowers none that is larger"


def test_removing_ends_every_service_that_can_be_enabled_and_purging_takes_its_user_and_state(tree: Path) -> None:
    prerm, postrm, postinst = ((tree / "DEBIAN" / name).read_text() for name in ("prerm", "postrm", "postinst"))
    for unit in (tree / "usr/lib/systemd/system").glob("*.service"):
        text = unit.read_text()
        if "WantedBy=" in text:
            assert re.search(rf"^ *systemctl stop .*\b{unit.name}", prerm, re.MULTILINE), unit.name
            assert re.search(rf"^ *systemctl --quiet disable .*\b{unit.name}", prerm, re.MULTILINE), unit.name
            assert re.search(rf"^ *systemctl (try-restart|start) {unit.name}", postinst, re.MULTILINE), unit.name
        for state in re.findall(r"^StateDirectory=(.*)$", text, re.MULTILINE):
            assert re.search(rf"rm -rf .*/var/lib/{state}( |$)", postrm, re.MULTILINE), state
    lines = (tree / "usr/lib/sysusers.d/hive-qos.conf").read_text().splitlines()
    made = [line.split()[:2] for line in lines if line.startswith(("u ", "g "))]
    assert made
    for kind, name in made:
        assert re.search(rf"for group in .*\b{name}[ ;]", postrm), name
        assert kind == "g" or f"userdel {name}" in postrm
