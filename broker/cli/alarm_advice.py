"""What each alarm of the broker means and what to do about it, for `hive-qos doctor` and `docs/operate/alarms.md`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class AlarmAdvice:
    """What holds while the alarm stands, and the next step. The alarm's own text has the names and figures.

    Args:
        command: a step that can be pasted, with `{subject}` for the alarm's; "" where the step is none of a shell's.
    """

    meaning: str
    action: str
    command: str = ""


ALARM_ADVICE: Final = {
    "announcements-unused": AlarmAdvice(
        "A job announces bursts that it does not send. Its announcements hold nobody back for a while.",
        "Check the job. Its credit comes back by itself when it sends what it announces.",
    ),
    "apply-failed": AlarmAdvice(
        "The kernel refused a change, or another program removed our queues. The broker tries again every second.",
        "Stop what else changes qdiscs on this interface (tc, another shaper).",
        command="tc qdisc show dev {subject}",
    ),
    "attach-failed": AlarmAdvice(
        "An interface appeared and cannot be shaped.",
        "Correct what the text names. The broker tries again when the interface changes.",
        command="tc qdisc show dev {subject}",
    ),
    "ca-expires": AlarmAdvice(
        "The CA of this broker's certificate, or its revocation list, ends within 90 days.",
        "Run `hive-qos ca rotate begin` on the CA's machine and follow its steps, or copy the newest ca.crl.",
    ),
    "capacity-unknown": AlarmAdvice(
        "Neither the file nor the driver names the link's rate. The broker assumes 1 Gbit/s.",
        'Write the rate of the link: egress = "40 Mbit/s" in its [[interface]].',
        command='hive-qos set interface {subject} egress="40 Mbit/s" --keep',
    ),
    "certificate-expires": AlarmAdvice(
        "This broker's certificate ends within 30 days.",
        "Run `hive-qos ca issue NODE --renew` on the CA's machine, and install the pair.",
        command="hive-qos ca issue NODE --renew",
    ),
    "certificate-refused": AlarmAdvice(
        "The new certificate, key, CA or revocation list cannot be used. The former files stay in use.",
        "Correct the files that the text names. `hive-qos check` judges them.",
        command="hive-qos check",
    ),
    "configuration-rejected": AlarmAdvice(
        "broker.toml has a mistake or cannot be applied. The last good configuration is in force.",
        "Correct broker.toml (`hive-qos check`), then `hive-qos apply`.",
        command="hive-qos check",
    ),
    "configuration-rolled-back": AlarmAdvice(
        "A trial was not confirmed in time. The former configuration is in force, whatever the file says.",
        "Run `hive-qos apply`, and confirm in time; or put the former file back and run `hive-qos reload`.",
        command="hive-qos apply",
    ),
    "configuration-unconfirmed": AlarmAdvice(
        "A configuration is on trial. The text says when the former one comes back.",
        "Run `hive-qos apply --confirm` to keep it, or `hive-qos apply --back`.",
        command="hive-qos apply --confirm",
    ),
    "counters-stale": AlarmAdvice(
        "The kernel's counters were not read for 0.5 s. The last allocation stays in force.",
        "Look at the host's load.",
        command="top -bn1 | head -20",
    ),
    "counters-unreadable": AlarmAdvice(
        "Our classes are gone or cannot be read. The broker builds them again.",
        "Stop what else changes qdiscs on this interface (tc, another shaper).",
        command="tc qdisc show dev {subject}",
    ),
    "deadline-at-risk": AlarmAdvice(
        "What storage has to send will not be there before its deadline, at its pace.",
        "Give storage a larger guarantee, set a later deadline, or copy less.",
    ),
    "deadline-missed": AlarmAdvice(
        "Storage did not send what it declared before the deadline.",
        "Give storage a larger guarantee, set a later deadline, or copy less.",
    ),
    "floors-scaled": AlarmAdvice(
        "The link carries less than the sum of the floors. Each class gets the same part of its floor.",
        "Write smaller floors, or find out why the link carries so little.",
    ),
    "guarantees-scaled": AlarmAdvice(
        "The link carries less than the sum of the guarantees. Floors hold; guarantees are scaled.",
        "Write smaller guarantees, or find out why the link carries so little.",
    ),
    "watchdog-missing": AlarmAdvice(
        "The watchdog does not run. If the daemon dies now, nobody opens the ceilings.",
        "Look in the log for memory, TasksMax or a limit on processes. The broker tries again every second.",
        command="journalctl -u hive-qos -n 50",
    ),
    "hold-refused": AlarmAdvice(
        "Another host's broker does not hold its storage back as this host asked.",
        "Look at that host's [peers] and guarantees. Its answer is in the text.",
    ),
    "ingress-failed": AlarmAdvice(
        "Inbound traffic cannot be shaped here. It arrives unshaped.",
        'Load the kernel modules ifb and sch_ingress, or set ingress = "off".',
        command="modprobe -a ifb sch_ingress act_mirred",
    ),
    "ingress-unknown": AlarmAdvice(
        'ingress = "auto", but the driver names no speed and nothing has been measured yet.',
        'Write the inbound rate of the link: ingress = "100 Mbit/s" in its [[interface]].',
        command='hive-qos set interface {subject} ingress="100 Mbit/s" --keep',
    ),
    "interface-missing": AlarmAdvice(
        "An interface of broker.toml does not exist. It is shaped when it appears.",
        "Correct its name in [[interface]], or connect it.",
        command="ip -br link",
    ),
    "job-guarantees-scaled": AlarmAdvice(
        "The jobs of a class are promised more than their class. Their guarantees are scaled.",
        "Write smaller guarantees in [job.NAME].",
    ),
    "link-down": AlarmAdvice(
        "The link has no carrier. Nothing is sent or received on it.",
        "Look at the cable and at the other end.",
        command="ip -s link show dev {subject}",
    ),
    "page-unavailable": AlarmAdvice(
        "The address of [page] is in use, or not this host's. Everything else goes on.",
        "Write another address or a port from 1024 on in [page]. The broker tries again every 10 seconds.",
    ),
    "peers-failed": AlarmAdvice(
        "The QUIC engine that talks to other brokers has failed. This host is shaped without them.",
        "Restart the broker: systemctl restart hive-qos. Its log has the cause.",
        command="systemctl restart hive-qos",
    ),
    "peers-unavailable": AlarmAdvice(
        "The channel to other brokers cannot be opened. This host is shaped without them.",
        "Correct the certificate or port that the text names. The broker tries again every minute.",
        command="hive-qos check",
    ),
    "probe-elsewhere": AlarmAdvice(
        "A host in [probe] is not reached through a shaped interface.",
        "Name a probed host that is reached through this interface.",
    ),
    "probe-unanswered": AlarmAdvice(
        "A host in [probe] has not answered for 10 s.",
        "Name a host that answers ICMP echo, or take it out of [probe].",
    ),
    "probes-unavailable": AlarmAdvice(
        "The kernel gives the broker no socket for ICMP echoes.",
        "Set net.ipv4.ping_group_range to hold the daemon's group, or take [probe] out.",
        command='sysctl -w net.ipv4.ping_group_range="0 2147483647"',
    ),
    "recording-ended": AlarmAdvice(
        "The recording of decisions has stopped. Everything else goes on.",
        "Make room on the disk of record_file, then restart the broker.",
        command="df -h",
    ),
    "risk-time-spent": AlarmAdvice(
        "Too few copies for longer than storage may go first. Storage has its ordinary guarantee again.",
        "Find out why so many objects have too few copies, or raise storage's guarantee.",
    ),
    "schedule-unknown": AlarmAdvice(
        "The host does not know the time zone of a schedule. The schedule is not in force.",
        "Install tzdata, or correct the schedule's timezone.",
        command="apt-get install tzdata",
    ),
    "sender-without-broker": AlarmAdvice(
        "A host without a broker sends storage here. Nobody holds it back during training.",
        "Run a broker there, or give `ingress` a rate here.",
    ),
    "settings-left-out": AlarmAdvice(
        "Some settings of `hive-qos set` do not fit the configuration any more. The others hold.",
        "Set what the text names again, to values that fit.",
        command="hive-qos set --list",
    ),
    "shaping-paused": AlarmAdvice(
        "Somebody paused the broker: every ceiling is open. The text says for how long still.",
        "Run `hive-qos resume`, or wait.",
        command="hive-qos resume",
    ),
    "sockets-not-classified": AlarmAdvice(
        "Sockets that are older than their rule have no class, or are in the leaf of a job that has ended. New sockets "
        "are classified.",
        "Restart the programs that the text names.",
    ),
    "usage-not-kept": AlarmAdvice(
        "What was carried cannot be written for `hive-qos report`. It is kept in memory, and tried again every minute.",
        "Make room on the disk of state_dir, or make it writable.",
        command="df -h",
    ),
    "storage-adapter-missing": AlarmAdvice(
        "A [[storage_program]] is configured, and no adapter tells of it for a minute.",
        "systemctl start hive-qos-adapter. Its log says why it ended: journalctl -u hive-qos-adapter.",
    ),
    "storage-program-failed": AlarmAdvice(
        "A storage program has not answered its adapter as it should for 30 s. The kernel holds it all the same.",
        "Do what the text says: start the program, or correct its url or key_file.",
    ),
    "unshaped-packets": AlarmAdvice(
        "Packets passed without a class, because somebody changed our classes by hand.",
        "Run systemctl restart hive-qos.",
        command="systemctl restart hive-qos",
    ),
    "ingress-below-guarantees": AlarmAdvice(
        "The inbound link carries less than the sum of the guarantees.",
        "Check the rate of `ingress`, write smaller guarantees, or find out what else fills the link.",
    ),
}
"""By the alarm's code."""
