"""Every event that the daemon logs: its level, its meaning and its keys. `docs/reference/broker-api.md` shows it.

A name is `subject-verb`, and stays: filters of operators rest on it. A test compares the table with every log call.
`uid` names the user who caused an event. `broker.events.log` limits the lines of one event and user, or of one `code`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True)
class Event:
    """What one event says. A key is left out of a line where it has no value."""

    level: Level
    meaning: str
    keys: tuple[str, ...] = ()


EVENTS: Final[Mapping[str, Event]] = {
    # the daemon and its configuration
    "daemon-ready": Event("info", "The broker shapes and serves.", ("interfaces", "socket")),
    "daemon-stopped": Event("info", "The broker has released everything.", ("ticks",)),
    "group-missing": Event("warning", "A group of [daemon] does not exist on this host.", ("note",)),
    "configuration-reloaded": Event("info", "A configuration was read and is in force.", ("interfaces", "note")),
    "configuration-rejected": Event("error", "A reload was refused. The former configuration stays.", ("error",)),
    "configuration-confirmed": Event("info", "The configuration on trial was confirmed."),
    "configuration-trial-ended": Event(
        "warning", "A trial ended unconfirmed. The file and the former configuration are in force.", ("note",)
    ),
    "configuration-fallback": Event("error", "The last good configuration is in force, not the file's.", ("error",)),
    "configuration-incomplete": Event(
        "error", "A former configuration is in force, and a part cannot be applied. The broker tries again.", ("error",)
    ),
    "settings-changed": Event("info", "`hive-qos set` or `unset` changed a setting, or its time is over.", ("note",)),
    "settings-left-out": Event(
        "error", "Settings of `hive-qos set` do not fit the configuration any more.", ("error",)
    ),
    "settings-not-kept": Event("error", "Settings cannot be written. A restart ends them.", ("error",)),
    "settings-unusable": Event("error", "The settings that an earlier broker kept cannot be used.", ("error",)),
    "shaping-paused": Event("warning", "Nobody is limited for some time.", ("for_s",)),
    "shaping-resumed": Event("info", "Limits are in force again."),
    "rollback-impossible": Event("error", "A trial ended unconfirmed, and no former configuration is kept."),
    "last-good-unusable": Event("error", "The last good configuration cannot be used any more.", ("error",)),
    "last-good-not-saved": Event("error", "The last good configuration cannot be saved.", ("error",)),
    "restart-needed": Event("warning", "A changed setting takes effect at the next start.", ("note",)),
    "recording-ended": Event("error", "The recording of decisions has stopped.", ("error",)),
    "usage-not-kept": Event("error", "What was carried cannot be written. It is tried again every minute.", ("error",)),
    "usage-file-replaced": Event("warning", "The file of what was carried was broken. A new one is begun.", ("file",)),
    "page-ready": Event("info", "The status page and metrics are served over TCP.", ("listen",)),
    "page-unavailable": Event("error", "The page cannot listen. It is tried again every 10 seconds.", ("error",)),
    "alarm-raised": Event("warning", "Something is wrong.", ("code", "subject", "text")),
    "alarm-cleared": Event("info", "What was wrong is over.", ("code", "subject")),
    "capacity-changed": Event(
        "debug", "A link was found to carry less or more.", ("interface", "direction", "before", "rate", "reason")
    ),
    "limit-changed": Event(
        "debug",
        "Something else limits a class or job.",
        ("interface", "traffic_class", "job", "uid", "limited_by", "before", "text"),
    ),
    "telemetry-missing": Event("warning", "OpenTelemetry is asked for, and not installed.", ("note",)),
    "telemetry-failed": Event(
        "warning",
        "OpenTelemetry does not start, or the collector takes no records. They are lost meanwhile.",
        ("note",),
    ),
    "telemetry-recovered": Event("info", "The collector takes records again."),
    # interfaces and their trees
    "interface-shaped": Event(
        "info", "Our queues are on an interface.", ("interface", "adopted", "prior", "operations")
    ),
    "interface-reshaped": Event("info", "Our queues were lost, and are on the interface again.", ("interface",)),
    "interface-released": Event("info", "The former queues are back on an interface.", ("interface",)),
    "interface-release-failed": Event("error", "Our queues cannot be removed.", ("interface", "error")),
    "interface-note": Event("warning", "Something about an interface or its queues to look at.", ("interface", "note")),
    "interface-failed": Event(
        "error", "The kernel refused a read or a write. `code` is the alarm's.", ("interface", "code", "error")
    ),
    "interface-recovered": Event("info", "An interface has its allocation again.", ("interface",)),
    "interface-missing": Event("error", "An interface of the policy is not there. It is shaped later.", ("interface",)),
    "interface-removed": Event("warning", "A shaped interface has gone.", ("interface",)),
    "interface-renamed": Event("warning", "A shaped interface has another name now.", ("interface", "new_name")),
    "stale-shaping-found": Event(
        "warning", "A former broker shaped an interface that the policy does not name. It is released.", ("interface",)
    ),
    "interface-unreadable": Event("warning", "An interface cannot be looked at.", ("interface", "error")),
    "interfaces-unreadable": Event("warning", "The kernel does not list the interfaces.", ("error",)),
    "journal-failed": Event("error", "The journal cannot follow a renamed interface.", ("error",)),
    "tree-changed": Event("warning", "Another program changed our queues. They are corrected.", ("interface",)),
    "packets-unshaped": Event("error", "Packets passed an interface without a class.", ("interface", "error")),
    "carrier-lost": Event("warning", "A shaped interface has no carrier.", ("interface",)),
    "carrier-restored": Event("info", "A shaped interface has a carrier again.", ("interface",)),
    "ingress-shaped": Event(
        "info", "Inbound traffic of an interface is shaped here.", ("interface", "device", "adopted")
    ),
    "ingress-failed": Event("error", "Inbound traffic of an interface cannot be shaped.", ("interface", "error")),
    "ingress-note": Event("warning", "Something about inbound shaping to look at.", ("interface", "note")),
    "ingress-release-failed": Event("error", "Inbound shaping cannot be removed.", ("interface", "error")),
    "inbound-sockets-unknown": Event("warning", "What passed sockets receive has no class of its own.", ("error",)),
    "rule-not-applied": Event("warning", "A rule or a part of it is not in force.", ("note",)),
    "cgroups-unavailable": Event("warning", "`hive-qos run` cannot classify on this host.", ("error",)),
    "cgroups-busy": Event("info", "Programs still run in our cgroups, which stay without effect.", ("cgroups",)),
    "cgroups-rebuilt": Event("warning", "Somebody removed our cgroups. They are made again.", ("uid",)),
    # measurements
    "tcp-unmeasured": Event("warning", "The kernel does not list TCP connections.", ("error",)),
    "udp-unlisted": Event("warning", "The kernel does not list UDP sockets.", ("error",)),
    "probes-unavailable": Event("error", "The kernel gives no socket for ICMP echoes.", ("error",)),
    # sessions
    "session-opened": Event("info", "A program said hello.", ("session", "client", "job", "pid", "uid")),
    "session-closed": Event("info", "A session has ended.", ("session", "uid", "reason", "code")),
    "session-refused": Event("warning", "A program may not open a session.", ("uid", "pid", "code")),
    "session-failed": Event(
        "error", "A fault of the broker ended a session; its traceback follows.", ("session", "uid")
    ),
    "accept-failed": Event("warning", "A connection could not be accepted.", ("uid", "error")),
    "socket-mark-failed": Event("error", "The kernel refused to mark a passed socket.", ("session", "uid", "error")),
    "process-classified": Event("info", "A program moved into the cgroup of a class.", ("pid", "uid", "traffic_class")),
    # other brokers
    "peers-listening": Event("info", "The channel to other brokers is open.", ("listen", "node", "engine")),
    "peers-unavailable": Event("error", "The channel to other brokers cannot be opened or closed.", ("error",)),
    "peers-failed": Event("error", "The QUIC engine that talks to other brokers has failed.", ("error",)),
    "peer-connected": Event("info", "Another broker is connected.", ("peer", "address", "engine")),
    "peer-disconnected": Event("info", "A connection to another broker has ended.", ("peer", "address", "reason")),
    "peer-refused": Event("warning", "We refused another broker, or it refused us.", ("address", "reason")),
    "peer-message-unknown": Event("debug", "A newer broker sent a message that this version ignores.", ("peer",)),
    "certificate-renewed": Event("info", "A new certificate is in use.", ("certificate", "until")),
    "certificate-refused": Event("error", "The new certificate files cannot be used.", ("error",)),
    "certificate-expired": Event("error", "Our certificate has ended, and all connections to other brokers."),
    "certificate-unaddressed": Event(
        "warning", "Our certificate names no address, so no broker reduces its rate for us.", ("certificate", "note")
    ),
    # `hive-qos pods`
    "pods-classified": Event("info", "Pods' rules are in force.", ("pods", "rules")),
    "pods-not-applied": Event("error", "Pods' rules are not in force. It is tried again within a minute.", ("error",)),
    "pods-unknown": Event("warning", "The broker starts without pods' rules: no API server answers.", ("error",)),
    "pod-not-classified": Event("warning", "A pod is not in the class that it names.", ("pod", "reason")),
    "pod-event-refused": Event("warning", "The API server took no event about a pod.", ("pod", "error")),
    "api-server-unavailable": Event("warning", "The API server does not answer, or refuses.", ("error", "retry_s")),
    # storage programs, by hive-qos adapter
    "adapter-ready": Event("info", "The adapter follows its storage programs.", ("programs",)),
    "storage-program-failed": Event("warning", "A storage program does not answer as it should.", ("program", "error")),
    "storage-program-answers": Event("info", "A storage program answers again.", ("program",)),
    "storage-program-mistake": Event("error", "The adapter made a mistake with a program. It goes on.", ("program",)),
    "storage-limit-restored": Event("info", "A program has its own limit again.", ("program", "note")),
    "storage-limit-left": Event("error", "A program keeps the limit that we set.", ("program", "error")),
    # processes and threads of the daemon
    "watchdog-lost": Event("error", "The watchdog died or hung. It is started again.", ("error",)),
    "watchdog-restored": Event("info", "A new watchdog runs."),
    "watchdog-start-failed": Event("error", "The watchdog cannot be started. The broker tries again.", ("error",)),
    "ceilings-opened": Event("warning", "The watchdog opened the ceilings, because no tick came.", ("silence_s",)),
    "closer-lost": Event("error", "The process that closes passed sockets died. It is started again."),
    "closer-start-failed": Event("error", "The process that closes passed sockets cannot be started.", ("error",)),
    "closer-stuck": Event("warning", "The process that closes passed sockets does not end."),
    "close-delayed": Event("warning", "A descriptor that a user passed cannot be closed at once.", ("uid", "error")),
    "finder-lost": Event("error", "The process that finds sockets' owners died. None are found until a restart."),
    "finder-start-failed": Event("warning", "The process that finds sockets' owners cannot be started.", ("error",)),
    "priority-refused": Event("warning", "No raised priority: holds may come late on a busy host.", ("error",)),
}
