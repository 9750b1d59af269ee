"""What was carried, lent, borrowed and repaid: counted at each snapshot, kept by the hour across restarts.

ledger      counters and decisions to bytes by hour, class, job and user; pure
database    the file usage.sqlite, its bounds, and what a report asks of it
writer      hands the ledger's bytes to the file, in a thread of its own
"""
