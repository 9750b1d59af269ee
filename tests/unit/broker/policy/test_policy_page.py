"""`[page]` of broker.toml: off by default, a literal address, names that a browser may ask for."""

from __future__ import annotations

import pytest

from broker.policy.page import NAMES_MAX
from broker.policy.toml import ConfigurationErrors, load
from broker.policy.types import PagePolicy

FIRST = 'version = 1\n[[interface]]\nname = "eth0"\negress = "40 Mbit/s"\n'


def test_without_the_section_there_is_no_page() -> None:
    assert load(FIRST).page is None
    assert load(FIRST + "[page]\n").page == PagePolicy("127.0.0.1:8710")


@pytest.mark.parametrize(
    ("written", "read"),
    [("127.0.0.1:80", "127.0.0.1:80"), ("[::1]:8710", "[::1]:8710"), ("[::]:1", "[::]:1"), ("0.0.0.0:9", "0.0.0.0:9")],
)
def test_it_listens_where_the_file_says(written: str, read: str) -> None:
    assert load(f'{FIRST}[page]\nlisten = "{written}"\n').page == PagePolicy(read)


@pytest.mark.parametrize(
    "wrong", ['"localhost:8710"', '"127.0.0.1"', '"[::1]"', '"::1"', '"1.2.3.4:70000"', "8710", '":1"']
)
def test_what_is_no_address_with_a_port_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationErrors, match=r"page\.listen"):
        load(f"{FIRST}[page]\nlisten = {wrong}\n")


def test_names_are_host_names_without_a_port() -> None:
    assert load(f'{FIRST}[page]\nnames = ["Trainer-1.Example.", "a"]\n').page.names == ("trainer-1.example", "a")
    for wrong in ('["a b"]', '["a:1"]', "[7]", '"a"', '[""]', '["a..b"]', f"{['a'] * (NAMES_MAX + 1)}"):
        with pytest.raises(ConfigurationErrors, match=r"page\.names"):
            load(f"{FIRST}[page]\nnames = {wrong}\n")
