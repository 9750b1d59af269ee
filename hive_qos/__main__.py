"""`python -m hive_qos`: the command `hive-qos`, where that is not on the path."""

from __future__ import annotations

from broker.cli import main

if __name__ == "__main__":
    main()
