"""`hive-qos job` on a screen: who is in the group, who is late and why, what its links measure."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from broker.cli.app import app
from broker.cli.exits import ExitCode
from broker.cli.show.job_table import late, render

RUN = CliRunner()


def member(rank: int, *, called: int, waits_for: tuple[int, ...] = (), others: int = 3, **more: Any) -> dict[str, Any]:
    waits = {"what": "allreduce 7 of group default", "group": "default", "number": 7, "since_s": 3.25}
    return {
        "id": str(rank),
        "rank": rank,
        "groups": [{"name": "default", "called": called}],
        "waits": [{**waits, "for": list(waits_for)}] if waits_for else [],
        "idle_s": 0.0 if waits_for else 4.5,
        "links": [
            {"rank": one, "rate_bits_per_s": 94_000_000, "rtt_s": 0.04, "loss": 0.002, "sent_bytes": 2**20}
            for one in range(others)
            if one != rank
        ],
        "sent_bytes": 5 * 2**20,
        "received_bytes": 2**20,
        "saved_bytes": 3 * 2**20,
        **more,
    }


def volatile(name: str, *, digest: str = "ab" * 16, phase: str = "reducing") -> dict[str, Any]:
    commits = [{"step": 41, "epoch": 3, "digest": digest}]
    return {"member": name, "epoch": 3, "epoch_s": 200.0, "step": 41, "phase": phase, "commits": commits}


def screen(*members: dict[str, Any], silent: tuple[dict[str, Any], ...] = ()) -> str:
    written = io.StringIO()
    group = {"members": members, "silent": silent}
    Console(width=80, file=written, highlight=False).print(render({"job": "llm", "groups": [group]}))
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines())


def test_a_late_member_is_named_with_who_waits_for_it_and_why() -> None:
    text = screen(
        member(0, called=8, waits_for=(1, 2)), member(1, called=8, waits_for=(0, 2)), member(2, called=7)
    )  # fmt: skip
    lines = text.splitlines()
    assert lines[0] == "llm: 3 ranks, all answer"
    assert " ".join(" ".join(lines[1:3]).split()) == (
        "rank 0, rank 1 wait for rank 2 for 3.2 s in allreduce 7 of group default: "
        "it has not begun that, nor anything for 4.5 s"
    )
    assert "rank 0                       8       3.2 s       5 MiB       1 MiB       3 MiB" in lines
    assert "rank 0 > rank 2      94 Mbit/s       40 ms       0.2 %       1 MiB" in lines
    assert max(map(len, lines)) <= 80


def test_where_all_have_begun_nobody_is_blamed() -> None:
    both = [member(0, called=8, waits_for=(1,)), member(1, called=8, waits_for=(0,))]
    assert list(late(both, {"0": "a", "1": "b"})) == [
        "all have begun allreduce 7 of group default, and wait for 3.2 s: look at the links"
    ]


def test_one_that_does_not_answer_is_late_and_told_with_its_reason() -> None:
    text = screen(member(0, called=8, waits_for=(1,)), silent=({"rank": 1, "why": "not back after 2 s"},))
    assert "llm: 2 ranks, 1 answer\n" in text
    assert "rank 1: not back after 2 s\n" in text
    assert "it does not answer" in " ".join(text.split())


def test_members_that_committed_different_results_are_told() -> None:
    texts = [
        screen(*(member(rank, called=8, volatile=volatile(name, digest=digest)) for rank, name, digest in both))
        for both in (((0, "a", "ab" * 16), (1, "b", "ab" * 16)), ((0, "a", "ab" * 16), (1, "b", "cd" * 16)))
    ]
    assert "llm: 2 members, epoch 3 for 3 min, step 41, all answer\n" in texts[0]
    assert "step 41: abababababababab on a, b\n" in texts[0]
    assert "step 41: abababababababab on a; cdcdcdcdcdcdcdcd on b\n" in texts[1]


def test_what_members_wait_for_before_their_next_step_is_told_once_for_all_of_them() -> None:
    waits = {"waits_for": "it waits for 1 more to join, as members_min is 3"}
    both = [member(rank, called=8, volatile={**volatile(name), **waits}) for rank, name in enumerate("ab")]
    text = " ".join(screen(*both).split())
    assert text.count("a, b: it waits for 1 more to join, as members_min is 3") == 1


def test_what_members_that_meet_seldom_have_sent_is_told_beside_what_ddp_would_have() -> None:
    traffic = {"sent_bytes": 2**20, "received_bytes": 2**20, "inner_steps": 400, "ddp_bytes": 100 * 2**20}
    both = [member(rank, called=8, volatile={**volatile(name), **traffic}) for rank, name in enumerate("ab")]
    text = screen(*both)
    assert "a" + " " * 27 + "41           -       1 MiB       1 MiB      99 MiB\n" in text
    assert "all sent 2 MiB since they joined; DDP would have sent 200 MiB\n" in text
    assert "DDP" not in screen(member(0, called=8, volatile={**volatile("a"), "sent_bytes": 2**20}))


def test_what_others_chose_cannot_reach_the_terminal_as_it_is() -> None:
    hostile = "\x1b[31m[bold]x\n" * 3
    one = member(0, called=1, volatile={**volatile(hostile), "phase": hostile, "step": hostile})
    text = screen(one, silent=({"why": hostile},))
    assert "\x1b" not in text
    assert "[bold]" in text


@pytest.mark.parametrize("wrong", [None, [], 7, "x", {"a": 1}])
def test_a_document_of_another_kind_is_shown_without_what_is_not_there(wrong: object) -> None:
    keys = ("rank", "groups", "waits", "links", "volatile", "sent_bytes", "idle_s")
    assert "llm" in screen(*({**member(0, called=1), key: wrong} for key in keys))


@pytest.mark.parametrize("argv", [["job"], ["job", "llm"], ["job", "--json"], ["job", "--watch"]])
def test_without_a_job_here_it_says_so(argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.inspection.jobs.sockets", lambda: iter(()))
    done = RUN.invoke(app, argv)
    assert done.exit_code == ExitCode.TRANSPORT
    assert "no rank of a job of yours answers on this host" in done.output


@pytest.mark.parametrize(("argv", "said"), [(["job"], "name one of a, b"), (["job", "c"], "use one of a, b")])
def test_of_several_jobs_one_is_to_be_named(argv: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(Path(f"/x/{name}"), {"job": name, "id": name}) for name in ("a", "b")]
    monkeypatch.setattr("transport.inspection.jobs.members", lambda: found)
    done = RUN.invoke(app, argv)
    assert done.exit_code == ExitCode.USAGE
    assert said in " ".join(done.output.replace("│", " ").split())


def test_two_runs_of_one_name_are_two_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(Path(f"/x/{name}"), {"job": "llm", "id": name}) for name in ("a0", "a1", "b0")]
    monkeypatch.setattr("transport.inspection.jobs.members", lambda: found)
    monkeypatch.setattr(
        "transport.inspection.jobs.ask",
        lambda path, whole, limit_s: {"members": [{"id": f"{path.name[0]}{rank}"} for rank in range(2)], "silent": []},
    )
    document = json.loads(RUN.invoke(app, ["job", "--json"]).output)
    assert [[one["id"] for one in group["members"]] for group in document["groups"]] == [["a0", "a1"], ["b0", "b1"]]


@pytest.mark.parametrize("limit", ["0", "31", "nan", "inf"])
def test_a_limit_that_cannot_be_is_refused(limit: str) -> None:
    done = RUN.invoke(app, ["job", "--limit", limit])
    assert done.exit_code == ExitCode.USAGE
    assert "not within 0.1 to 30" in done.output


def test_watching_survives_a_restart_of_the_job_and_the_start_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, other = (Path("/run/0"), {"job": "llm"}), (Path("/run/1"), {"job": "other"})
    rounds = iter([[llm], [], [other], [other, llm]])
    monkeypatch.setattr("transport.inspection.jobs.members", lambda: next(rounds))
    monkeypatch.setattr("transport.inspection.jobs.ask", lambda path, _want, **_: {"members": [{"id": str(path)}]})
    monkeypatch.setattr("time.sleep", lambda _s: None)
    done = RUN.invoke(app, ["job", "--json", "--watch"])
    assert isinstance(done.exception, StopIteration | RuntimeError)  # after the last round
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["job"] for one in shown] == ["llm", "llm"]
    assert done.stderr.count("no rank of job llm answers on this host any more; trying again") == 1
