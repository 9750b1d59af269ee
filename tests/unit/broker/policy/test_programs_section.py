"""`[[storage_program]]`: which programs, where they answer, and what is refused."""

from __future__ import annotations

import pytest

from broker.policy.programs import DEFAULT_URLS, KINDS, PROGRAMS_MAX
from broker.policy.toml import ConfigurationErrors, load
from broker.policy.types import StorageProgram

HEAD = 'version = 1\n[[interface]]\nname = "eth0"\n'
ENTRY = "[[storage_program]]\n"


def programs(text: str) -> tuple[StorageProgram, ...]:
    return load(HEAD + text).storage_programs


def refused(text: str) -> str:
    with pytest.raises(ConfigurationErrors) as caught:
        programs(text)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_alone_is_found_at_its_usual_port(kind: str) -> None:
    assert programs(f'{ENTRY}kind = "{kind}"') == (StorageProgram(kind, kind, DEFAULT_URLS[kind]),)


def test_everything_that_stands_there_is_taken() -> None:
    text = f"""{ENTRY}kind = "syncthing"
    name = "photos"
    url = "https://nas:8384"
    key_file = "/k"
    ca_file = "/c"
    deadline = "06:30"
    timezone = "UTC"
    limit = false"""
    assert programs(text) == (
        StorageProgram("photos", "syncthing", "https://nas:8384", "/k", "/c", 6 * 3600 + 1800, "UTC", limit=False),
    )


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1/", "https://10.0.0.9", "unix:/run/s"]
)
def test_an_address_of_this_host_or_an_encrypted_one_is_taken(url: str) -> None:
    assert programs(f'{ENTRY}kind = "rclone"\nurl = "{url}"')[0].url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.9:1",
        "http://nas:8384",
        "http://127.0.0.1.evil:1",
        "ftp://127.0.0.1",
        "http://u:p@127.0.0.1:1",
        "http://127.0.0.1:1/path",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://[::1",
        "unix:run/s",
        "127.0.0.1:1",
        "",
    ],
)
def test_an_address_to_which_a_key_may_not_go_is_refused(url: str) -> None:
    assert "storage_program[0].url" in refused(f'{ENTRY}kind = "rclone"\nurl = "{url}"')


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('kind = "samba"', "kind"),
        ('kind = "rclone"\nname = "../x"', "name"),
        ('kind = "rclone"\nname = "\\u001b[31m"', "name"),
        ('kind = "rclone"\nkey_file = "key"', "key_file"),
        ('kind = "rclone"\ndeadline = "24:00"', "deadline"),
        ('kind = "rclone"\ndeadline = "06:00"\ntimezone = "Mars"', "timezone"),
        ('kind = "rclone"\ntimezone = "UTC"', "timezone"),
        ('kind = "rclone"\nlimit = 1', "limit"),
        ('kind = "rclone"\nrate = 1', "rate"),
    ],
)
def test_a_mistake_names_its_key(line: str, key: str) -> None:
    assert f"storage_program[0].{key}" in refused(ENTRY + line)


def test_programs_have_names_of_their_own_and_are_few() -> None:
    assert "storage_program[1].name" in refused(2 * f'{ENTRY}kind = "rclone"\n')
    many = "".join(f'{ENTRY}kind = "rclone"\nname = "r{i}"\n' for i in range(PROGRAMS_MAX + 1))
    assert f"at most {PROGRAMS_MAX}" in refused(many)
