"""What to do about each alarm of the broker, for `hive-qos doctor`."""

from __future__ import annotations

from typing import Final

ALARM_ADVICE: Final = {
    "announcements-unused": "look why the job announces bursts that it does not send; its credit comes back by itself",
    "apply-failed": "stop what else changes qdiscs on this interface (tc, another shaper)",
    "attach-failed": "mend what the text names; it is tried again when the interface changes",
    "capacity-unknown": 'write the rate of the link: egress = "40 Mbit/s" in its [[interface]]',
    "certificate-expires": "hive-qos ca issue NODE --renew, and install the pair as before",
    "certificate-refused": "mend the files that the text names; `hive-qos broker --check` judges them",
    "configuration-rejected": "mend broker.toml (`hive-qos broker --check`), then `hive-qos reload`",
    "configuration-rolled-back": "`hive-qos reload`, and `hive-qos confirm` in time, where the new one was good",
    "configuration-unconfirmed": "`hive-qos confirm` keeps it",
    "counters-stale": "look at the host's load; the last allocation holds meanwhile",
    "counters-unreadable": "stop what else changes qdiscs on this interface (tc, another shaper)",
    "deadline-infeasible": "more guarantee for storage, a later deadline, or less to copy",
    "deadline-missed": "more guarantee for storage, a later deadline, or less to copy",
    "floors-scaled": "smaller floors, or look why the link carries so little",
    "guarantees-scaled": "smaller guarantees, or look why the link carries so little",
    "guard-missing": "look at the log for memory, TasksMax or a limit on processes",
    "hold-refused": "look at that host's [peers] and guarantees: its answer is in the text",
    "ingress-failed": 'load the kernel modules ifb and sch_ingress, or set ingress = "off"',
    "ingress-unknown": 'write what the link carries towards us: ingress = "100 Mbit/s" in its [[interface]]',
    "interface-missing": "mend its name in [[interface]], or connect it",
    "job-guarantees-scaled": "smaller guarantees in [job.NAME]",
    "link-down": "look at the cable and at the other end",
    "peers-failed": "look at that host: its broker, UDP 4710, its certificate",
    "peers-unavailable": "mend the certificate or port that the text names; it is tried again every minute",
    "precedence-lost": "look who sends to UDP 4710, and who opens sessions",
    "probe-elsewhere": "name a probed host that is reached through this interface",
    "probe-unanswered": "name a host that answers ICMP echo, or take it out of [probe]",
    "probes-unavailable": "give the service CAP_NET_RAW, or take [probe] out",
    "recording-ended": "make room where record_file lies, then restart the broker",
    "risk-time-spent": "look why so many objects have too few copies",
    "schedule-unknown": "install tzdata, or mend the schedule's timezone",
    "sender-without-broker": "run a broker there, or give `ingress` a rate here",
    "sockets-not-classified": "restart the programs that the text names",
    "unshaped-packets": "systemctl restart hive-qos: somebody changed its classes by hand",
    "way-in-below-guarantees": "smaller guarantees, or look why so little arrives",
}
"""By the alarm's code. The alarm's own text says what is wrong."""
