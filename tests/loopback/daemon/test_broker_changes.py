"""Changes of a running broker by the commands: on trial, for a while, and pauses. The kernel is in memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from broker_support import CONFIGURATION, Running, ask, connected
from patience import wait_until
from typer.testing import CliRunner

from broker.cli.app import app
from broker.client import http
from broker.process.rights import Right
from hive_qos.errors import BrokerRejectedError
from shaping.model.names import INNER_MINOR, ROOT_MINOR
from shaping.model.observations import PriorQdisc

RUN = CliRunner()
STORAGE = INNER_MINOR["storage"]


def command(running: Running, *words: str, code: int = 0) -> str:
    result = RUN.invoke(app, [*words, "--socket", running.api])
    assert result.exit_code == code, result.output
    return result.output


def guarantee(running: Running) -> float:
    policy = json.loads(http.fetch("/v1/policy", socket_path=running.api))
    return next(entry["guarantee"]["fraction"] for entry in policy["classes"] if entry["name"] == "storage")


def configuration(running: Running) -> dict[str, Any]:
    found = running.status()["configuration"]
    assert isinstance(found, dict)
    return found


def ceil_bits_per_s(running: Running, minor: int) -> int:
    tree = running.kernel.observe("lo")
    assert tree is not None
    return next(spec.ceil_bits_per_s for spec in tree.classes if spec.minor == minor)


def codes(running: Running) -> list[str]:
    return [alarm["code"] for alarm in running.status()["alarms"]]


def other(running: Running, mbit: int = 20) -> Path:
    """Another configuration, in a file of its own."""
    file = running.folder / "new.toml"
    text = CONFIGURATION.format(folder=running.folder, interface="lo").replace("40 Mbit/s", f"{mbit} Mbit/s")
    file.write_text(text, encoding="utf-8")
    return file


# --- set and unset ----------------------------------------------------------------------------------------------------


def test_a_setting_counts_at_once_is_shown_and_ends_when_it_is_unset(running: Running) -> None:
    said = command(running, "set", "class", "storage", "guarantee=22%", "ceiling=50%", "--for", "2h")
    assert said == "guarantee 22%, ceiling 50% in force, for 2 h; the file is unchanged\n"
    assert guarantee(running) == pytest.approx(0.22)
    assert "class storage: guarantee=22%, for " in command(running, "set", "--list")
    assert [one["key"] for one in configuration(running)["settings"]] == ["ceiling", "guarantee"]
    assert "set: class storage: ceiling=50%, for " in command(running, "status")
    command(running, "unset", "class", "storage", "guarantee")
    assert guarantee(running) == pytest.approx(0.2)
    command(running, "unset", "--all")
    assert command(running, "set", "--list") == "nothing is set; the file counts\n"
    assert "nothing of the kind is set" in command(running, "unset", "class", "storage", code=5)


def test_to_unset_a_key_of_nothing_named_unsets_nothing(running: Running) -> None:
    command(running, "set", "class", "storage", "guarantee=22%")
    with pytest.raises(BrokerRejectedError, match="name its kind and name, too"):
        http.post("/v1/unset?kind=&name=&key=guarantee", socket_path=running.api)
    assert guarantee(running) == pytest.approx(0.22)


def test_a_setting_that_breaks_a_sum_is_refused_and_nothing_changes(running: Running) -> None:
    assert "add up to more than 100 %" in command(running, "set", "class", "storage", "guarantee=60%", code=3)
    assert "no such interface" in command(running, "set", "interface", "eth0", "egress=80Mbit/s", code=3)
    assert "0 to 7" in command(running, "set", "class", "storage", "priority=9", code=3)
    assert configuration(running)["settings"] == []
    assert guarantee(running) == pytest.approx(0.2)
    assert codes(running) == []


def test_jobs_and_interfaces_have_settings_too(running: Running) -> None:
    command(running, "set", "job", "nightly-*", "weight=2", "--keep")
    command(running, "set", "interface", "lo", "egress=80 Mbit/s", "--keep")
    policy = json.loads(http.fetch("/v1/policy", socket_path=running.api))
    assert [(job["name"], job["weight"]) for job in policy["jobs"]] == [("nightly-*", 2.0)]
    assert policy["interfaces"][0]["egress_bits_per_s"] == 80_000_000
    wait_until(lambda: ceil_bits_per_s(running, ROOT_MINOR) > 70_000_000)


def test_a_setting_outlasts_a_restart_and_a_reload_but_not_its_time(running: Running) -> None:
    command(running, "set", "class", "storage", "guarantee=22%", "--keep")
    command(running, "set", "class", "other", "weight=3", "--for", "1h")
    running.stop()
    kept = running.folder / "state" / "settings.json"
    document = json.loads(kept.read_text(encoding="utf-8"))
    for one in document["settings"]:
        if one["key"] == "weight":
            one["until_s"] = 1.0  # it ended while no broker ran
    kept.write_text(json.dumps(document), encoding="utf-8")
    running.start()
    assert running.error is None
    assert [one["key"] for one in configuration(running)["settings"]] == ["guarantee"]
    command(running, "reload")
    assert guarantee(running) == pytest.approx(0.22)


def test_a_setting_ends_by_itself(running: Running) -> None:
    command(running, "set", "class", "storage", "guarantee=22%", "--for", "1s")
    wait_until(lambda: configuration(running)["settings"] == [])
    assert guarantee(running) == pytest.approx(0.2)


def test_of_kept_settings_only_what_does_not_fit_any_more_goes_and_an_alarm_names_it(running: Running) -> None:
    command(running, "set", "class", "control", "guarantee=5%", "--keep")
    command(running, "set", "class", "storage", "guarantee=10%", "--for", "6s")
    command(running, "set", "class", "compute", "guarantee=75%", "--keep")
    command(running, "set", "class", "other", "weight=3", "--keep")
    wait_until(lambda: [one["name"] for one in configuration(running)["settings"]] == ["control", "other"])
    (alarm,) = running.status()["alarms"]
    assert alarm["code"] == "settings-left-out"
    assert "class compute guarantee=75%" in alarm["text"]
    assert guarantee(running) == pytest.approx(0.2), "as the file says"
    command(running, "set", "class", "other", "weight=2", "--keep")
    assert codes(running) == []


def test_a_reload_leaves_who_may_use_the_socket_to_a_restart_and_says_so(running: Running) -> None:
    before = json.loads(http.fetch("/v1/policy", socket_path=running.api))["daemon"]
    running.write(CONFIGURATION.replace('group = "no-such-group"', 'group = "another-group"', 1))
    for _ in range(2):
        assert "changes of [daemon] and [peers] wait for a restart" in command(running, "reload")
        assert json.loads(http.fetch("/v1/policy", socket_path=running.api))["daemon"] == before
    running.stop()
    running.start()
    assert json.loads(http.fetch("/v1/policy", socket_path=running.api))["daemon"]["group"] == "another-group"


@pytest.mark.parametrize("end", ["apply --back", "its time"])
def test_settings_that_do_not_fit_a_trial_are_back_after_it(running: Running, end: str) -> None:
    command(running, "set", "class", "storage", "guarantee=28%", "--keep")
    running.write(CONFIGURATION + '[class.other]\nguarantee = "15 %"\n')
    said = command(running, "apply", "--yes", "--confirm-within", "10m" if end == "apply --back" else "1s")
    assert "left out, as it does not fit any more: class storage guarantee=28%" in said
    if end == "apply --back":
        assert configuration(running)["settings"] == []
        command(running, *end.split())
    wait_until(lambda: configuration(running)["trial_left_s"] is None)
    assert guarantee(running) == pytest.approx(0.28)
    assert [one["value"] for one in configuration(running)["settings"]] == ["28%"]
    running.stop()
    running.start()
    assert guarantee(running) == pytest.approx(0.28)


def test_a_reload_that_is_refused_leaves_settings_that_would_not_fit_it(running: Running) -> None:
    command(running, "set", "class", "storage", "guarantee=28%", "--keep")
    running.write((CONFIGURATION + '[class.other]\nguarantee = "15 %"\n').replace("{interface}", "nosuch7"))
    command(running, "reload", code=3)
    assert guarantee(running) == pytest.approx(0.28)
    assert [one["value"] for one in configuration(running)["settings"]] == ["28%"]


def test_settings_that_a_new_file_has_no_room_for_are_left_out_and_named(running: Running) -> None:
    command(running, "set", "class", "storage", "guarantee=28%", "--keep")
    running.write(CONFIGURATION + '[class.other]\nguarantee = "15 %"\n')
    said = command(running, "reload")
    assert "left out, as it does not fit any more: class storage guarantee=28%" in said
    assert configuration(running)["settings"] == []
    assert guarantee(running) == pytest.approx(0.2)


def test_settings_that_are_damaged_do_not_end_a_start(running: Running) -> None:
    running.stop()
    (running.folder / "state" / "settings.json").write_text('{"settings": [{"kind": "cl', encoding="utf-8")
    running.start()
    assert running.error is None
    assert configuration(running)["settings"] == []


def test_who_may_only_use_the_broker_may_change_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert running.daemon is not None
    monkeypatch.setattr("broker.process.rights.Authority.right_of", lambda *_: Right.USE)
    for words in (["set", "class", "storage", "weight=3"], ["unset", "--all"], ["pause"], ["resume"]):
        assert "only the admin group may change" in command(running, *words, code=5)


# --- pauses -----------------------------------------------------------------------------------------------------------


def test_a_pause_opens_every_ceiling_and_its_end_closes_them_again(running: Running) -> None:
    running.write(CONFIGURATION + '[class.storage]\nceiling = "30 %"\n')
    command(running, "reload")
    wait_until(lambda: ceil_bits_per_s(running, STORAGE) < 13_000_000)
    before = running.kernel.observe("lo")
    assert "nobody is limited for 3600 s" in command(running, "pause", "--for", "1h")
    open_to = ceil_bits_per_s(running, STORAGE)
    assert open_to >= 38_800_000
    assert "shaping-paused" in codes(running)
    assert 3000 < configuration(running)["paused_left_s"] <= 3600
    wait_until(lambda: running.status()["daemon"]["ticks"] > 20)  # it goes on deciding, and writes nothing
    assert ceil_bits_per_s(running, STORAGE) == open_to
    command(running, "resume")
    wait_until(lambda: running.kernel.observe("lo") == before)
    assert codes(running) == []
    assert "nothing is paused" in command(running, "resume", code=5)


def test_in_a_pause_no_adapter_is_told_what_its_program_may_use(running: Running) -> None:
    """It gives the program its own limit back then; else a paused broker would still hold the program."""
    program = {"op": "program", "id": 1, "name": "photos", "kind": "syncthing", "state": "working"}
    with connected(str(running.folder / "run/session.sock")) as sock:
        wait_until(lambda: ask(sock, program)["ceiling_bits_per_s"] > 0)
        command(running, "pause", "--for", "1h")
        assert ask(sock, program)["ceiling_bits_per_s"] == 0
        command(running, "resume")
        wait_until(lambda: ask(sock, program)["ceiling_bits_per_s"] > 0)


def test_a_pause_ends_by_itself_and_at_a_reload(running: Running) -> None:
    command(running, "pause", "--for", "1s")
    wait_until(lambda: configuration(running)["paused_left_s"] is None)
    command(running, "pause")
    assert command(running, "reload") == "taken; but the pause is over\n"
    assert configuration(running)["paused_left_s"] is None
    assert codes(running) == []


def test_a_pause_goes_on_where_a_reload_is_refused(running: Running) -> None:
    running.write(CONFIGURATION + '[class.storage]\nceiling = "30 %"\n')
    command(running, "reload")
    wait_until(lambda: ceil_bits_per_s(running, STORAGE) < 13_000_000)
    command(running, "pause", "--for", "1h")
    open_to = ceil_bits_per_s(running, STORAGE)
    running.kernel.set_root("eth7", PriorQdisc("fq", 0x8001, {"raw": ""}))
    running.write(CONFIGURATION + '[[interface]]\nname = "eth7"\negress = "40 Mbit/s"\n')
    assert "somebody configured fq" in command(running, "reload", code=3)
    assert 3000 < configuration(running)["paused_left_s"] <= 3600
    assert ceil_bits_per_s(running, STORAGE) == open_to


@pytest.mark.parametrize("words", [["pause", "--for", "0s"], ["pause", "--for", "2d"], ["pause", "--for", "soon"]])
def test_a_pause_has_an_end_within_a_day(running: Running, words: list[str]) -> None:
    command(running, *words, code=3)
    assert codes(running) == []


# --- plan and apply ---------------------------------------------------------------------------------------------------


def test_apply_for_good_installs_the_file_and_keeps_the_former_one_beside_it(running: Running) -> None:
    file, place = other(running), running.folder / "broker.toml"
    former = place.read_text(encoding="utf-8")
    said = command(running, "apply", str(file), "--yes")
    assert "interface.lo.egress: 40 Mbit/s -> 20 Mbit/s" in said
    assert "no packet is lost" in said
    assert place.read_text(encoding="utf-8") == file.read_text(encoding="utf-8")
    assert (running.folder / "broker.toml.former").read_text(encoding="utf-8") == former
    assert "nothing would change" in command(running, "plan", str(file))
    wait_until(lambda: ceil_bits_per_s(running, ROOT_MINOR) < 20_000_000)


def test_a_trial_without_a_terminal_is_confirmed_or_ended_from_elsewhere(running: Running) -> None:
    file, before = other(running), (running.folder / "broker.toml").read_text(encoding="utf-8")
    command(running, "apply", str(file), "--yes", "--confirm-within", "10m")
    assert 500 < configuration(running)["trial_left_s"] <= 600
    assert command(running, "apply", "--confirm") == "confirmed\n"
    command(running, "apply", str(other(running, 30)), "--yes", "--confirm-within", "10m")
    assert "the former configuration is in force" in command(running, "apply", "--back")
    # Of a trial that was not kept nothing stays, and what was kept before it is not lost.
    assert (running.folder / "broker.toml.former").read_text(encoding="utf-8") == before
    assert not list(running.folder.glob(".broker.toml*"))
    wait_until(lambda: ceil_bits_per_s(running, ROOT_MINOR) < 20_000_000)
    assert codes(running) == []  # the file says the same
    (running.folder / "broker.toml").write_text(other(running, 30).read_text(encoding="utf-8"), encoding="utf-8")
    command(running, "apply", "--yes", "--confirm-within", "10m")
    command(running, "apply", "--back")
    assert codes(running) == ["configuration-rolled-back"]  # what somebody wrote there himself stays
    command(running, "apply", str(running.folder / "broker.toml.former"), "--yes")
    assert codes(running) == []
    assert "nothing is on trial" in command(running, "apply", "--confirm", code=5)


def test_a_file_with_a_mistake_is_not_installed(running: Running) -> None:
    file, place = other(running), running.folder / "broker.toml"
    before = place.read_text(encoding="utf-8")
    file.write_text(before + '[class.storage]\nguarantee = "101 %"\n', encoding="utf-8")
    said = command(running, "apply", str(file), "--yes", code=3)
    assert f"{file}:" in said
    assert place.read_text(encoding="utf-8") == before
    assert not (running.folder / "broker.toml.former").exists()


def test_a_file_that_the_broker_refuses_leaves_the_former_one_in_its_place(running: Running) -> None:
    place = running.folder / "broker.toml"
    before = place.read_text(encoding="utf-8")
    file = running.folder / "new.toml"
    file.write_text(before.replace('"lo"', '"nosuch7"'), encoding="utf-8")
    said = command(running, "apply", str(file), "--yes", code=3)
    assert "not taken" in said
    assert place.read_text(encoding="utf-8") == before
    assert not list(running.folder.glob("*.former*"))
    assert not list(running.folder.glob(".broker.toml*"))
    assert codes(running) == []
    assert guarantee(running) == pytest.approx(0.2)


def test_without_a_terminal_apply_asks_for_a_word_of_what_to_do(running: Running) -> None:
    assert "--yes" in command(running, "apply", code=2)


def test_a_plan_in_json_says_whether_anything_changes(running: Running) -> None:
    same = json.loads(command(running, "plan", "--json"))
    assert (same["changes"], same["against"], same["differences"]) == (False, "broker", [])
    file = other(running)
    found = json.loads(command(running, "plan", str(file), "--json", "--exit-code", code=9))
    assert found["differences"] == [{"key": "interface.lo.egress", "before": "40 Mbit/s", "after": "20 Mbit/s"}]
    (interface,) = found["interfaces"]
    assert interface["action"] == "change"
    assert all(line.startswith(("change class", "change bfifo", "set gso")) for line in interface["operations"])


def test_a_state_directory_that_cannot_be_written_says_that_a_restart_ends_the_setting(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28), "settings.json")

    monkeypatch.setattr("broker.daemon.settings_store.write_whole", full)
    said = command(running, "set", "class", "storage", "weight=3", "--for", "1h")
    assert said.startswith("weight 3 in force, for 1 h; the file is unchanged; but a restart ends it: ")
    assert said.endswith("settings.json cannot be written (No space left on device)\n")
    assert [one["key"] for one in configuration(running)["settings"]] == ["weight"]


@pytest.mark.parametrize(
    "target",
    ["/v1/set", "/v1/set?kind=class&name=storage&set=weight", "/v1/set?kind=cls&name=x&set=a=1", "/v1/pause?x=1"],
)
def test_a_request_that_makes_no_sense_is_refused(running: Running, target: str) -> None:
    with pytest.raises(BrokerRejectedError):
        http.post(target, socket_path=running.api)
    assert codes(running) == []
