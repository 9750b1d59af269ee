"""Nodes, names, routes and programs of a real lab."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from patience import LIMIT_S, wait_until

from tools.lab import Host, Lab, LabError

REACH = "import socket,sys; socket.create_connection((sys.argv[1], 4000), 30).close()"
SERVE = (
    "import socket; s=socket.create_server(('::',4000),family=socket.AF_INET6,dualstack_ipv6=True); print(flush=True)"
)
SERVE += "\nwhile True: s.accept()[0].close()"

ROOT = Path(__file__).parents[3]
TOTAL = """
import torch, torch.distributed as dist
dist.init_process_group("hive")
tensor = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(tensor)
print(f"rank {dist.get_rank()}: {tensor[0]:g}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def serve(host: Host) -> None:
    """Start a server there, and wait until it listens."""
    server = host.popen(["python3", "-c", SERVE], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"\n"
    server.stdout.close()


def programs() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def sites() -> Iterator[Lab]:
    """Two sites of two with a link between the routers, and a second link from a to s that by-passes them."""
    with Lab("sites") as lab:
        for router in ("east", "west"):
            lab.router(router, site=router)
        for name, router in (("a", "east"), ("b", "east"), ("c", "west"), ("s", "west")):
            lab.host(name, site=router)
            lab.link(name, router)
        lab.link("east", "west", rate_bits_per_s=100_000_000, delay_s=0.003)
        lab.link("a", "s", name="direct")
        lab.up()
        for name in ("a", "b", "c", "s"):
            serve(lab[name])
        yield lab


def test_every_host_reaches_every_other_by_name(sites: Lab) -> None:
    for one in sites.hosts:
        script = "import socket,sys\nfor name in sys.argv[1:]:\n for family in (socket.AF_INET, socket.AF_INET6):\n"
        script += "  s=socket.socket(family); s.settimeout(30); s.connect(socket.getaddrinfo(name,4000,family)[0][4])"
        sites[one].run(["python3", "-c", script, *sites.hosts])


def test_the_machines_own_name_is_each_hosts_own_address(sites: Lab) -> None:
    script = "import socket; print(socket.gethostbyname(socket.gethostname()), socket.getfqdn())"
    for name, router in (("a", "east"), ("c", "west")):
        assert sites[name].run(["python3", "-c", script]).stdout == f"{sites[name].address} {name}.{name}-{router}\n"


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("shared_store", ["yes", "no"])
def test_torchrun_runs_between_two_hosts(sites: Lab, tmp_path: Path, shared_store: str) -> None:
    """As the README says, with the launcher's store for the ranks too, and with one that rank 0 serves by name."""
    program = tmp_path / "program.py"
    program.write_text(TOTAL)
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={sites['a'].address}:29400", str(program)]
    environment = {
        "PYTHONPATH": str(ROOT),
        "HIVE_JOB_SECRET": "secret of the test",
        "HIVE_BROKER": "off",
        "OMP_NUM_THREADS": "1",
    }
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "0" if shared_store == "yes" else "1"
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(sites[name].run, command, env=environment, timeout_s=200.0) for name in ("a", "c")]
        assert sorted(one.result().stdout for one in running) == ["rank 0: 3\n", "rank 1: 3\n"]


def test_addresses_choose_the_link(sites: Lab) -> None:
    before = sites.links["direct"].counters()["a"].packets
    sites["a"].run(["python3", "-c", REACH, "s"])
    assert sites.links["direct"].counters()["a"].packets == before
    sites["a"].run(["python3", "-c", REACH, sites["s"].address_on("a")])
    assert sites.links["direct"].counters()["a"].packets > before
    sites["a"].run(["python3", "-c", REACH, "s.direct"])


def test_a_host_does_not_forward(sites: Lab) -> None:
    forwards = {name: sites[name].run(["cat", "/proc/sys/net/ipv4/ip_forward"]).stdout for name in ("a", "east")}
    assert forwards == {"a": "0\n", "east": "1\n"}


def test_hosts_carry_no_qdisc_of_ours(sites: Lab) -> None:
    for name in ("a", "s", "east"):
        shown = sites[name].run(["tc", "qdisc", "show"]).stdout
        assert not re.search(r"tbf|netem|htb|ingress", shown), shown


def test_sockets_made_inside_enter_belong_to_the_host(sites: Lab) -> None:
    home = os.stat("/proc/thread-self/ns/net").st_ino
    with sites["a"].enter():
        connection = socket.create_connection((sites["c"].address6, 4000), LIMIT_S)
    assert os.stat("/proc/thread-self/ns/net").st_ino == home
    with connection:
        assert connection.getsockname()[0] == sites["a"].address6


def test_a_program_sees_its_host(sites: Lab) -> None:
    devices = sites["a"].run(["ls", "/sys/class/net"]).stdout.split()
    assert set(devices) == {"lo", "eth0", "eth1"}
    assert "c.c-west" in sites["a"].run(["cat", "/etc/hosts"]).stdout
    assert sites["a"].run(["ls", "/sys/fs/cgroup"]).stdout == "\n".join([*sorted(os.listdir("/sys/fs/cgroup")), ""])


def test_a_program_can_run_as_an_ordinary_user(sites: Lab) -> None:
    script = "import os,sys; print(os.getuid(), os.environ['USER'], os.environ['X'], sys.stdin.read())"
    done = sites["a"].run(["python3", "-c", script], user="nobody", env={"X": "y"}, input_text="in")
    assert done.stdout == "65534 nobody y in\n"
    with pytest.raises(LabError, match="no user 'nosuch'"):
        sites["a"].run(["true"], user="nosuch")


def test_a_failed_program_raises_with_its_last_words(sites: Lab) -> None:
    with pytest.raises(LabError, match=r"(?s)exit status 3.*it was me"):
        sites["a"].run(["python3", "-c", "import sys; print('it was me', file=sys.stderr); sys.exit(3)"])
    with pytest.raises(LabError, match=r"(?s)exit status 127.*nosuchprogram"):
        sites["a"].run(["nosuchprogram"])


def test_a_program_past_its_time_is_killed_with_its_children(sites: Lab) -> None:
    with pytest.raises(LabError, match=r"no end after 0\.3 s"):
        sites["a"].run(["sh", "-c", "sleep 71.5 & sleep 71.5"], timeout_s=0.3)
    wait_until(lambda: "71.5" not in programs())


def test_the_process_number_is_the_programs_own(sites: Lab) -> None:
    process = sites["a"].popen(["sleep", "60"])
    wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == -signal.SIGTERM


def test_a_link_can_be_added_while_the_lab_is_up(lab_factory: Callable[..., Lab]) -> None:
    lab = lab_factory()
    lab.router("r")
    lab.host("a")
    lab.link("a", "r")
    lab.up()
    lab.host("b")
    lab.link("b", "r", delay_s=0.001)
    lab.up()
    serve(lab["b"])
    lab["a"].run(["python3", "-c", REACH, "b"])


def test_the_end_kills_programs_that_left_their_session(lab_factory: Callable[..., Lab]) -> None:
    lab = lab_factory()
    lab.host("a")
    lab.up()
    namespace = lab["a"].namespace_path
    lab["a"].run(["sh", "-c", "setsid sleep 72.5 >/dev/null 2>&1 & setsid -f sleep 72.5 >/dev/null 2>&1"])
    wait_until(lambda: programs().count("sleep 72.5") == 2)
    lab.close()
    wait_until(lambda: "72.5" not in programs())
    assert not namespace.exists()
    assert not Path("/etc/netns", namespace.name).exists()


def test_nothing_is_left_when_the_kernel_refuses_something(lab_factory: Callable[..., Lab]) -> None:
    lab = lab_factory()
    lab.host("a", sysctls={"net.ipv4.no_such_key": "1"})
    with pytest.raises(LabError, match="no_such_key"):
        lab.up()
    with pytest.raises(LabError, match="not up"):
        lab["a"].run(["true"])
