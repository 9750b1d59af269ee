#!/usr/bin/env bash
# Run what touches the kernel on stock kernels of Debian, booted by qemu without KVM (as root).
# Usage: tools/kernels.sh PYTHON [SUITE...]     by default bookworm (6.1) and trixie (6.12)
#
# A guest sees this machine's files by virtiofs and may only read them: the same Python, the same tests, another kernel.
# It writes nothing here but its log, and has no network device.
#
#   KERNELS_DIR   where kernels, initial file systems and logs are kept (default out/kernels)
#   MIRROR        of Debian, instead of the one that apt uses here
#   TESTS         for pytest, instead of the list below
#   BOOT_S_MAX    after which a guest is ended (default 1800)
set -euo pipefail
say() { printf 'kernels: %s\n' "$*"; }
fail() { say "$*" >&2; exit 1; }
trap 'exit 130' INT

[[ $EUID -eq 0 ]] || fail "virtiofsd and the guests need root"
here=$(realpath "$(dirname "$0")/..")
. "$here/tools/debian_mirror.sh"
python=$(realpath -s "$1")
shift
(($#)) || set -- bookworm trixie
folder=$(realpath -m "${KERNELS_DIR:-$here/out/kernels}")
mkdir -p "$folder"
tests=${TESTS:-tests/lab/kernel/test_shaping_kernel.py tests/lab/kernel/test_shaping_cgroup.py
  tests/lab/kernel/test_shaping_sockets.py tests/lab/kernel/test_shaping_ingress.py tests/lab/kernel/test_stock_kernel.py}

missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
[[ -x /bin/busybox || -x /usr/bin/busybox ]] || missing+=(busybox-static)
command -v cpio >/dev/null || missing+=(cpio)
command -v depmod >/dev/null || missing+=(kmod)
if ((${#missing[@]})); then
  say "installing Debian packages: ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
virtiofsd=$(PATH=$PATH:/usr/lib/qemu:/usr/libexec command -v virtiofsd) || fail "there is no virtiofsd (Debian: qemu-system-common, later virtiofsd)"

# A suite's cloud kernel, its modules beside it; apt keeps what it knows of that suite apart from this machine's.
fetch() {
  local suite=$1 place=$2 package apt
  mkdir -p "$place"/apt/{lists/partial,cache/archives/partial}
  [[ -n $(mirror) ]] || fail "apt knows no mirror of Debian here (apt-get update); or pass MIRROR=http://..."
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $suite main" >"$place/apt/sources.list"
  apt=(-o Dir::Etc::sourcelist="$place/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$place/apt/lists"
    -o Dir::Cache="$place/apt/cache" -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root)
  apt-get "${apt[@]}" update -qq
  package=$(apt-cache "${apt[@]}" depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
  [[ -n $package ]] || fail "$suite has no linux-image-cloud-amd64"
  say "$suite: $package"
  (cd "$place" && apt-get "${apt[@]}" download -qq "$package")
  dpkg-deb -x "$place/$package"_*.deb "$place/kernel"
  rm -rf "$place/apt" "$place/$package"_*.deb
}

# What runs before the tests: modules, and what of this machine the guest sees. The folder of the log alone is writable.
initial_files() {
  local place=$1 release modules
  modules=$(find "$place"/kernel/{usr/,}lib/modules -mindepth 1 -maxdepth 1 2>/dev/null) || true
  release=$(basename "$modules")
  rm -rf "$place/initial"
  mkdir -p "$place"/initial/{bin,proc,sys,dev,host,root,lib/modules}
  cp "$(command -v busybox)" "$place/initial/bin/busybox"
  cp -r "$modules" "$place/initial/lib/modules/$release"
  depmod -b "$place/initial" "$release"
  cat >"$place/initial/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t devtmpfs dev /dev
for module in virtio_pci virtiofs; do modprobe \$module; done
mount -t virtiofs host /host
mount --bind /host /root; mount -o remount,bind,ro /root
mount --bind /host$place/log /root$place/log
mount -t tmpfs modules /root/mnt; mkdir /root/mnt/lib /root/mnt/etc; mv /lib/modules /root/mnt/lib
printf '#!/bin/sh\\nexec /sbin/modprobe -d /mnt "\$@"\\n' >/root/mnt/modprobe; chmod 755 /root/mnt/modprobe
mount -t proc proc /root/proc; mount -t sysfs sys /root/sys; mount --move /dev /root/dev
mount -t tmpfs run /root/run; mkdir /root/run/tmp
mount -t tmpfs etc /root/mnt/etc; cp -a /root/etc/. /root/mnt/etc; mount --move /root/mnt/etc /root/etc
mount -t cgroup2 cgroup /root/sys/fs/cgroup
echo /mnt/modprobe >/root/proc/sys/kernel/modprobe
exec chroot /root /bin/bash $place/log/tests.sh
END
  chmod 755 "$place/initial/init"
  (cd "$place/initial" && find . -print0 | cpio --null --create --format=newc --quiet) | gzip -1 >"$place/initial.gz"
  rm -rf "$place/initial"
}

# In a shell of its own, which takes its files' daemon with it however it ends.
boot() {
  local place=$1 image share
  image=$(ls "$place"/kernel/boot/vmlinuz-*)
  share=$(mktemp -u "/tmp/hq-virtiofs-XXXXXX")
  "$virtiofsd" --socket-path="$share" -o source=/ -o sandbox=chroot -o cache=always \
    >"$place/log/virtiofsd" 2>&1 &
  trap "kill $! 2>/dev/null || true; rm -f '$share'" EXIT
  for _ in $(seq 50); do [[ -S $share ]] && break; sleep 0.1; done
  # Without cmpxchg16b: qemu 7.2 spoils the flags when it emulates that on two processors, and Linux 6.12 dies of it.
  # In the foreground: Ctrl-C reaches it.
  timeout --foreground --kill-after=10 "${BOOT_S_MAX:-1800}" nice -n 19 qemu-system-x86_64 -machine q35 -accel tcg,thread=multi \
    -cpu Nehalem,-cx16 -smp 2 \
    -m 3G -object memory-backend-memfd,id=memory,size=3G,share=on -numa node,memdev=memory \
    -chardev socket,id=files,path="$share" -device vhost-user-fs-pci,chardev=files,tag=host \
    -kernel "$image" -initrd "$place/initial.gz" -append 'console=ttyS0 quiet panic=-1 loglevel=3' \
    -display none -serial stdio -no-reboot -nic none </dev/null
}

failed=0
for suite in "$@"; do
  [[ $suite =~ ^[a-z]+$ ]] || fail "$suite is no suite of Debian"
  place=$folder/$suite
  [[ -d $place/kernel ]] || fetch "$suite" "$place"
  rm -rf "$place/log"; mkdir -p "$place/log"
  cat >"$place/log/tests.sh" <<END
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/tmp TMPDIR=/run/tmp PYTHONDONTWRITEBYTECODE=1 CI=1 HIVE_TEST_PATIENCE=15
cd $here
ip link set lo up
modprobe -d /mnt tun
echo "kernels: \$(uname -r)"
$python -m pytest -p no:cacheprovider -q --color=no --timeout=900 -m "" $(echo $tests)
echo \$? >$place/log/code
sync
echo o >/proc/sysrq-trigger
sleep 60
END
  initial_files "$place"
  say "$suite: booting"
  boot "$place" | tee "$place/log/console" || true
  code=$(cat "$place/log/code" 2>/dev/null || echo "no result")
  say "$suite: $(sed -n 's/^kernels: //p' "$place/log/console" | tr -d '\r'): pytest $code"
  [[ $code == 0 ]] || failed=1
done
exit $failed
