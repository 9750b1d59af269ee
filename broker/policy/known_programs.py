"""Well-known storage programs by name: `programs = ["syncthing", "rsync"]` finds their ports and systemd units.

A port stands here where no other usual program has it: MinIO's 9000, the REST server's 8000, SeaweedFS's 9333 and
Bacula's 9101 to 9103 (Prometheus exporters have 9100 and up) do not, nor the hundreds of Ceph's OSDs and GlusterFS's
bricks. These are found by their units. A rule on a port finds both ends, TCP and UDP (QUIC), IPv4 and IPv6; that on a
unit finds all sockets of its processes. `hive-qos init` knows a host's programs by their units and processes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.policy.types import ClassPolicy, MatchRule

ALL: Final = "known"
"""`programs = "known"`: all of them."""


@dataclass(frozen=True)
class KnownProgram:
    """How a program is found.

    Args:
        what: what it is, in a few words.
        ports: of its protocol, where nobody else uses them (IANA's registry, or the program's own documents).
        units: names of systemd units, as its packages and documents have them; one of a template without its instance.
        processes: names that the kernel shows (15 bytes at most) of those that move the data.
    """

    what: str
    ports: tuple[int, ...] = ()
    units: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()

    @property
    def cgroups(self) -> tuple[str, ...]:
        """Of its units, below the mount; all services of a template share a slice."""
        return tuple(
            f"system.slice/system-{_escaped(unit.removesuffix('@.service'))}.slice"
            if unit.endswith("@.service")
            else f"system.slice/{unit}"
            for unit in self.units
        )


def _escaped(name: str) -> str:
    """As systemd writes a name within a slice's, where a dash would nest (systemd.unit(5))."""
    return name.replace("-", r"\x2d")


KNOWN_PROGRAMS: Final[Mapping[str, KnownProgram]] = {
    "bacula": KnownProgram(
        "Bacula, Bareos",
        (),
        ("bacula-fd.service", "bacula-sd.service", "bareos-filedaemon.service", "bareos-storage.service"),
        ("bacula-fd", "bacula-sd", "bareos-fd", "bareos-sd"),
    ),
    "borg": KnownProgram("BorgBackup, over SSH", (), ("borgmatic.service", "borgbackup.service"), ("borg",)),
    "ceph": KnownProgram("Ceph's monitors and OSDs", (3300, 6789), ("ceph-osd@.service",), ("ceph-osd",)),
    "drbd": KnownProgram("DRBD's first two resources", (7788, 7789)),
    "garage": KnownProgram("Garage's S3 and RPC", (3900, 3901), ("garage.service",), ("garage",)),
    "glusterfs": KnownProgram("GlusterFS", (24007,), ("glusterd.service", "glusterfsd.service"), ("glusterfsd",)),
    "iscsi": KnownProgram("iSCSI", (3260,)),
    "kopia": KnownProgram("Kopia's server", (51515,), ("kopia.service",), ("kopia",)),
    "lsyncd": KnownProgram("Lsyncd", (), ("lsyncd.service",), ("lsyncd",)),
    "minio": KnownProgram("MinIO", (), ("minio.service",), ("minio",)),
    "nfs": KnownProgram("NFS 4", (2049,), (), ("nfsd",)),
    "proxmox-backup": KnownProgram(
        "Proxmox Backup Server", (8007,), ("proxmox-backup-proxy.service",), ("proxmox-backup-",)
    ),
    "rclone": KnownProgram("rclone", (), ("rclone.service", "rclone@.service"), ("rclone",)),
    "restic": KnownProgram(
        "restic and its REST server",
        (),
        (
            "restic.service",
            "restic-backup.service",
            "restic@.service",
            "rest-server.service",
            "restic-rest-server.service",
        ),
        ("restic", "rest-server"),
    ),
    "rsync": KnownProgram("rsync's daemon", (873,), ("rsync.service", "rsyncd.service"), ("rsync",)),
    "samba": KnownProgram("SMB", (445,), ("smbd.service", "smb.service"), ("smbd",)),
    "seaweedfs": KnownProgram("SeaweedFS", (), ("seaweedfs.service", "weed.service", "weed-volume.service"), ("weed",)),
    "syncthing": KnownProgram(
        "Syncthing, TCP and QUIC", (22000,), ("syncthing@.service", "syncthing.service"), ("syncthing",)
    ),
    "urbackup": KnownProgram(
        "UrBackup",
        (35621, 35623),
        ("urbackupclientbackend.service", "urbackupsrv.service"),
        ("urbackupclientb", "urbackupsrv"),
    ),
    "zrepl": KnownProgram("zrepl", (), ("zrepl.service",), ("zrepl",)),
}
"""By the name that `programs` takes. A database that replicates, such as etcd, is no storage in this sense."""


def rules_of_class(entry: ClassPolicy) -> tuple[MatchRule, ...]:
    """The rules of a class: those that are written, then those of its programs that are not."""
    known = [
        rule
        for name in entry.programs
        for program in (KNOWN_PROGRAMS[name],)
        for rule in (*(MatchRule(port=port) for port in program.ports), *map(_of_cgroup, program.cgroups))
    ]
    return tuple(dict.fromkeys((*entry.match, *known)))


def _of_cgroup(path: str) -> MatchRule:
    return MatchRule(cgroup=path)
