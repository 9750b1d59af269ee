"""Small networks for the simulator's tests."""

from __future__ import annotations

TWO_HOSTS = """
version = 1
seconds = "12 s"
[[site]]
name = "a"
hosts = 2
link = "40 Mbit/s"
[[site]]
name = "b"
hosts = 2
link = "40 Mbit/s"
[[job]]
name = "J"
hosts = ["a/0", "b/0"]
burst = "1 MB"
think = "300 ms"
[[copy]]
from = "a/0"
to = "b/1"
streams = 8
"""
