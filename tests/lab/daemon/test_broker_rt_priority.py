"""Going before other programs: who has it, who has not, and that a thread which hangs loses it. In processes of their
own, because scheduling and limits are a process'."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from broker.process import rt_priority

LIMIT_S = 60


def run(program: str, *, allowed: bool = True) -> list[str]:
    """The lines that a program says which has taken precedence, where it may."""
    if allowed and not may_be_realtime():
        pytest.fail("this test needs CAP_SYS_NICE")
    begin = """
        import os, threading, time
        from broker.process import rt_priority
    """
    if not allowed:
        begin += """
        os.setuid(65534)
        """
    text = textwrap.dedent(begin) + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def may_be_realtime() -> bool:
    probe = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
    return subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_threads_that_begin_afterwards_have_it_too_and_one_that_gives_it_up_has_not() -> None:
    said = run(
        """
        print(rt_priority.take(), rt_priority.is_taken())
        def late():
            print(rt_priority.is_taken())
            rt_priority.give_up()
            print(rt_priority.is_taken())
        thread = threading.Thread(target=late)
        thread.start()
        thread.join()
        print(rt_priority.is_taken(), os.sched_getparam(0).sched_priority)
        """
    )
    assert said == ["None True", "True", "False", "True 1"]


def test_a_program_that_is_started_meanwhile_does_not_inherit_it() -> None:
    said = run(
        """
        import subprocess, sys
        rt_priority.take()
        with rt_priority.suspended():
            subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"])
        print(rt_priority.is_taken())
        """
    )
    assert said == [str(os.SCHED_OTHER), "True"]


def test_who_does_not_sleep_loses_it_with_all_threads_and_lives() -> None:
    said = run(
        """
        rt_priority.take()
        asleep = threading.Event()
        other = threading.Thread(target=asleep.wait)
        other.start()
        while rt_priority.is_taken():
            pass
        tasks = {os.sched_getscheduler(int(task)) for task in os.listdir("/proc/self/task")}
        print(tasks == {os.SCHED_OTHER})
        asleep.set()
        with rt_priority.suspended():
            print(rt_priority.is_taken())
        print(rt_priority.is_taken())
        """
    )
    assert said == ["True", "False", "False"]


def test_where_it_is_not_allowed_the_reason_says_what_is_missing() -> None:
    said = run("print(rt_priority.take(), rt_priority.is_taken())", allowed=False)
    assert "CAP_SYS_NICE" in said[0]
    assert said[0].endswith("False")


def test_it_is_taken_in_the_main_thread_alone() -> None:
    said = run(
        """
        thread = threading.Thread(target=lambda: print(rt_priority.take(), rt_priority.is_taken()))
        thread.start()
        thread.join()
        """
    )
    assert said[0].startswith("not the main thread")
    assert said[0].endswith("False")


def test_the_bound_is_longer_than_a_reload_and_shorter_than_the_watchdogs() -> None:
    assert 0.1 < rt_priority.SPELL_S < rt_priority.SPELL_S_MAX < 5.0


def test_the_daemons_log_says_once_that_it_was_lost() -> None:
    said = run(
        """
        from broker.process.rt_budget import RtBudget
        class Log:
            def warning(self, event, **fields):
                print(event, fields["reason"])
        one = RtBudget(log=Log())
        one.begin()
        one.look()
        print("nothing so far")
        rt_priority.give_up_all()
        one.look()
        one.look()
        """
    )
    assert said[0] == "nothing so far"
    assert len(said) == 2
    assert said[1].startswith("priority-lost")


def test_who_works_with_short_sleeps_loses_it_and_all_have_it_again_when_it_has_been_calm() -> None:
    said = run(
        """
        from broker.process.rt_budget import CALM_S, RtBudget
        class Log:
            def warning(self, event, **fields):
                print(event, *fields.values())
            info = warning
        ahead_s, calm, enough, asking = 0.0, threading.Event(), threading.Event(), threading.Event()
        one = RtBudget(log=Log(), clock=lambda: time.monotonic() + ahead_s)
        one.begin()
        def work():
            while not calm.is_set():
                until_s = time.thread_time() + 0.02
                while time.thread_time() < until_s:
                    pass
                time.sleep(0.002)
            enough.wait()
        def answer():
            rt_priority.give_up()
            inheriting = threading.Thread(target=enough.wait)
            inheriting.start()
            asking.set()
            inheriting.join()
        threads = [threading.Thread(target=target) for target in (work, answer)]
        for thread in threads:
            thread.start()
        asking.wait()
        def policies():
            return sorted(os.sched_getscheduler(int(task)) for task in os.listdir("/proc/self/task"))
        until_s = time.monotonic() + 40
        while rt_priority.is_taken() and time.monotonic() < until_s:
            one.look()
            time.sleep(0.05)
        print([alarm.code for alarm in one.alarms()], policies() == [os.SCHED_OTHER] * 2 + [os.SCHED_BATCH] * 2)
        calm.set()
        until_s = time.monotonic() + 10
        while one.alarms() and time.monotonic() < until_s:
            ahead_s += 1.0
            one.look()
            time.sleep(0.05)
        print(ahead_s >= CALM_S, one.alarms(), policies() == [os.SCHED_RR] * 2 + [os.SCHED_BATCH] * 2)
        enough.set()
        """
    )
    assert said[0].startswith("priority-lost its threads have used more than 0.3 of a core")
    assert said[1] == "['priority-lost'] True"
    assert said[2] == "priority-restored"
    assert said[3] == "True () True"
