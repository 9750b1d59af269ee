"""The status page of a real daemon with real traffic in a real browser: what operators see, and what never happens."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from broker_host import STORAGE, TRAINER, Broker, broker_in, two_hosts
from chromium import Tab, tab_in
from patience import wait_until
from test_broker_status import programs, sink

URL = "http://127.0.0.1:8710/"
CONFIGURATION = """
version = 1
[[interface]]
name = "eth0"
egress = "20 Mbit/s"
ingress = "20 Mbit/s"
[page]
[class.storage]
match = [{ port = 4873 }]
[daemon]
group = "nogroup"
"""
HOSTILE = "<img src=x onerror=alert(1)>\\x1b[31m\\u202e"
"""A job's name, as it stands in the program's text."""
FINGER_PX = 24
"""WCAG 2.2, target size (minimum)."""
PICTURES = Path("out/page")
STATE = "document.getElementById('state')?.textContent ?? ''"


@dataclass
class Scene:
    """A host whose broker has a page, with training and storage on its link, and a browser there."""

    broker: Broker
    tab: Tab

    def text(self, selector: str = "body") -> str:
        return str(self.tab.value(f"document.querySelector({selector!r})?.innerText ?? ''"))

    def shows(self, *wanted: str, of: str = "body") -> None:
        """Wait until all of that can be read."""
        wait_until(lambda: all(one in self.text(of) for one in wanted), what=lambda: (self.text(of), self.tab.problems))

    def state(self) -> str:
        return str(self.tab.value(STATE))


@contextmanager
def scene_of(trainer: str) -> Iterator[Scene]:
    with two_hosts("page") as lab, broker_in(lab["a"]) as broker, sink(lab["b"]):
        broker.configuration = CONFIGURATION
        broker.start()
        traffic = [(lab["a"], text, arguments) for text, arguments in (
            (STORAGE, (lab["b"].address,)), (trainer, (broker.sessions, lab["b"].address)),
        )]  # fmt: skip
        with programs(*traffic), tab_in(lab["a"]) as tab:
            tab.look(width=1280)
            tab.go(URL)
            yield Scene(broker, tab)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with scene_of(TRAINER.replace('"lab"', f'"{HOSTILE}"')) as scene:
        wait_until(lambda: scene.state() == "live", what=lambda: scene.tab.problems)
        yield scene


@pytest.fixture(autouse=True)
def _as_it_was(scene: Scene) -> None:
    scene.tab.look(width=1280)


def test_it_shows_links_with_every_class_and_jobs_with_what_limits_them(scene: Scene) -> None:
    scene.shows("eth0 outbound", "eth0 inbound", "19.4\u00a0Mbit/s, as configured")
    scene.shows("control", "compute", "storage", "other", "sends nothing", of="table")
    scene.shows("onerror", of="#jobs")
    wait_until(lambda: "Mbit/s" in scene.text("#jobs td.rate"))


def test_names_from_outside_are_text(scene: Scene) -> None:
    scene.shows("<img src=x onerror=alert(1)>\\x1b[31m\\u202e", of="#jobs")
    assert scene.tab.value("document.querySelectorAll('main img, main script').length") == 0


def test_charts_grow_by_the_second_and_can_be_read_by_keyboard_and_as_tables(scene: Scene) -> None:
    drawn = "document.querySelector('.chart path.edge.storage')?.getAttribute('d') ?? ''"
    before = wait_until(lambda: scene.tab.value(drawn))
    wait_until(lambda: scene.tab.value(drawn) != before)
    assert "storage" in scene.tab.value("document.querySelector('.chart svg').getAttribute('aria-label')")
    press = "new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true})"
    scene.tab.value(f"document.querySelector('.chart svg').dispatchEvent({press})")
    scene.shows("1 s ago: control 0, compute", of=".readout")
    scene.tab.value("document.querySelector('details summary').click()")
    scene.shows("When", "storage", "link", "now", of="details table")
    scene.tab.value("document.querySelector('details summary').click()")


def test_a_day_is_one_press_away(scene: Scene) -> None:
    scene.tab.value("document.querySelector('[data-step=\"60\"]').click()")
    scene.shows("2 h ago", of=".chart")
    assert scene.tab.value("document.querySelector('[data-step=\"60\"]').getAttribute('aria-pressed')") == "true"
    scene.tab.value("document.querySelector('[data-step=\"1\"]').click()")
    scene.shows("2 min ago", of=".chart")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_fits_the_window_of_a_desk_and_of_a_telephone(scene: Scene, width: int, dark: bool) -> None:
    scene.tab.look(width=width, dark=dark)
    wait_until(lambda: scene.tab.value("innerWidth") == width)
    wait_until(lambda: scene.tab.value("document.documentElement.scrollWidth") <= width)
    heights = "[...document.querySelectorAll('button, summary')].map((one) => one.getBoundingClientRect().height)"
    assert min(scene.tab.value(heights)) >= FINGER_PX
    PICTURES.mkdir(parents=True, exist_ok=True)
    scene.tab.picture(PICTURES / f"{width}-{'dark' if dark else 'light'}.png")


def test_an_alarm_comes_first_and_goes_with_its_cause(scene: Scene) -> None:
    path = scene.broker.folder / "broker.toml"
    good = path.read_text()
    path.write_text("version = 2\n")
    assert scene.broker.process is not None
    scene.broker.process.send_signal(signal.SIGHUP)
    scene.shows("configuration-rejected", of="#alarms")
    assert str(scene.tab.value("document.title")).startswith("(")
    path.write_text(good)
    scene.broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "configuration-rejected" not in scene.text("#alarms"))


def test_nothing_comes_from_elsewhere_and_the_console_stays_empty(scene: Scene) -> None:
    assert scene.tab.problems == []
    assert {one for one in scene.tab.requests if not one.startswith(URL)} == set()


def test_a_dead_broker_is_said_and_one_that_comes_back_is_followed(scene: Scene) -> None:
    assert scene.broker.end(signal.SIGTERM) == 0
    wait_until(lambda: "what you see is old" in scene.state())
    assert scene.tab.value("document.body.classList.contains('stale')")
    scene.broker.start()
    wait_until(lambda: scene.state() == "live")
    scene.shows("eth0 outbound")
    assert not scene.tab.value("document.body.classList.contains('stale')")
