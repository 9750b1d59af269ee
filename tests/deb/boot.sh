#!/usr/bin/env bash
# Boot a Debian root with systemd, in name spaces of its own and the network of who calls it. It ends with this process.
# Usage: boot.sh ROOT PLACE CGROUP     PLACE is an empty folder, CGROUP one of cgroup v2 that is the machine's alone
#
# What the machine writes goes to memory, over ROOT. Settings of the kernel that are not its own it may only read.
set -euo pipefail
if [[ $1 != --inside ]]; then
  echo $$ >"$3/cgroup.procs"
  exec unshare --mount --pid --uts --ipc --cgroup --fork --kill-child "$0" --inside "$@"
fi
root=$2
place=$3
machine=$place/machine
mount --make-rprivate /
mount -t tmpfs tmpfs "$place"
mkdir "$place"/{upper,work,machine}
mount -t overlay overlay -o "lowerdir=$root,upperdir=$place/upper,workdir=$place/work" "$machine"
mount -t proc proc "$machine/proc"
mount --bind "$machine/proc/sys" "$machine/proc/sys"
mount -o remount,bind,ro "$machine/proc/sys"
mount -t sysfs -o ro sysfs "$machine/sys"
mount -t cgroup2 cgroup2 "$machine/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$machine/dev"
for device in null zero full random urandom tty; do
  touch "$machine/dev/$device"
  mount --bind "/dev/$device" "$machine/dev/$device"
done
mkdir "$machine"/dev/{pts,shm}
mount -t devpts -o newinstance,ptmxmode=666 devpts "$machine/dev/pts"
ln -s pts/ptmx "$machine/dev/ptmx"
mount -t tmpfs tmpfs "$machine/run"
mount -t tmpfs tmpfs "$machine/tmp"
mkdir "$machine/tmp/outside"
ln -s /dev/null "$machine/etc/systemd/system/systemd-modules-load.service" # the kernel is not this machine's
hostname "$(basename "$root")"
cd "$machine"
pivot_root . tmp/outside
umount -l tmp/outside
rmdir tmp/outside
exec env -i container=hive-qos PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
