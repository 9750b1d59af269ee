"""What a test says that waited in vain, and how many windows have to be good."""

from __future__ import annotations

import re

import pytest
from patience import most_of, wait_until


def test_a_wait_in_vain_says_what_was_waited_for_and_what_there_was() -> None:
    alarms, wanted = ["late"], ["early"]
    with pytest.raises(AssertionError) as caught:
        wait_until(lambda: alarms == wanted or not alarms, limit_s=0.01)
    text = str(caught.value)
    assert "not within 0.01 s: alarms == wanted or not alarms gives False" in text
    assert "alarms = ['late']" in text
    assert "wanted = ['early']" in text


def test_of_two_conditions_on_one_line_the_one_that_was_waited_for_is_shown() -> None:
    first, second = (lambda: 1 > 2), (lambda: len("abc") == 2)
    with pytest.raises(AssertionError, match=re.escape("len('abc') == 2 gives False\n  len('abc') = 3")):
        wait_until(second, limit_s=0.01)
    assert not first()


def test_a_function_with_a_name_and_more_words_are_shown() -> None:
    def came() -> list[int]:
        return []

    with pytest.raises(AssertionError, match=r"came\(\) gives \[\]\nthe log"):
        wait_until(came, what=lambda: "the log", limit_s=0.01)


def test_so_many_windows_of_so_many_have_to_be_good() -> None:
    seen = iter([1, 9, 1, 1, 9, 1])
    assert most_of(lambda: next(seen), lambda found: found > 5, needed=2, windows=6) == 9
    few = iter([1, 9, 1, 1])
    with pytest.raises(AssertionError, match=r"1 of 4 windows are good, 2 of 4 have to be: \[1, 9, 1, 1\]"):
        most_of(lambda: next(few), lambda found: found > 5, needed=2, windows=4)
