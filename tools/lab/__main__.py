"""`python -m tools.lab` is `hive-lab`."""

from tools.lab.cli import main

if __name__ == "__main__":
    main()
