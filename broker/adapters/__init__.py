"""Storage programs that know their limits: a process of its own that asks each for its backlog, and sets its rate.

It runs without privileges, holds the programs' keys, and speaks to the broker as any storage program does.
"""
