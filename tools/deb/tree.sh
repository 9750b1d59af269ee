#!/usr/bin/env bash
# Lay out the Debian package's files but the Python packages: units, completion, manual page, maintainer scripts.
# Usage: tools/deb/tree.sh PYTHON DIRECTORY     PYTHON has the packages of requirements.lock
#
# What an installation by hand has in /opt, where the administrator's own things are, a package has in /usr/lib.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1
root=$2
version=$("$python" -c 'import hive_qos; print(hive_qos.__version__)')
put() { install -D -m 644 "$1" "$root/$2"; }
packed() { gzip -9n >"$1" && chmod 644 "$1"; }

for unit in systemd/*.service systemd/*.slice; do
  put "$unit" "usr/lib/systemd/system/$(basename "$unit")"
  sed -i 's#/opt/hive-qos/bin/#/usr/lib/hive-qos/bin/#g' "$root/usr/lib/systemd/system/$(basename "$unit")"
done
# `hive-qos init` writes the configuration: one that is brought would be asked about at every upgrade.
install -d "$root/etc/hive-qos"
about=usr/share/doc/hive-qos
put systemd/broker.toml "$about/examples/broker.toml"
schema=/usr/lib/hive-qos/lib/python3/site-packages/broker/policy/broker.schema.json
for example in examples/config/*.toml; do
  put "$example" "$about/examples/$(basename "$example")"
  sed -i "1s|^#:schema .*|#:schema file://$schema|" "$root/$about/examples/$(basename "$example")"
done
# What units, configurations and messages name as docs/.
for page in docs/*.md docs/{operate,reference,understand}/*.md; do put "$page" "$about/$page"; done
put systemd/hive-qos-sysusers.conf usr/lib/sysusers.d/hive-qos.conf
put systemd/hive-qos-sysctl.conf usr/lib/sysctl.d/10-hive-qos.conf

mkdir -p "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d,man/man1,doc/hive-qos}
# Of these sources, installed or not.
command='import sys; sys.argv[0] = "hive-qos"; from broker.cli import main; main()'
completion() { _HIVE_QOS_COMPLETE=source_$1 "$python" -c "$command" | sed '/./,$!d'; }
completion bash >"$root/usr/share/bash-completion/completions/hive-qos"
# zsh takes the whole file for the function of its name: no function in it, and nothing to register.
completion zsh | sed -n '/^#compdef/p; s/^  eval/eval/p' >"$root/usr/share/zsh/vendor-completions/_hive-qos"
completion fish >"$root/usr/share/fish/vendor_completions.d/hive-qos.fish"
"$python" -m tools.man_page | packed "$root/usr/share/man/man1/hive-qos.1.gz"

packed "$root/$about/CHANGELOG.md.gz" <CHANGELOG.md
packed "$root/$about/changelog.gz" <<TEXT
hive-qos ($version) stable; urgency=medium

  * What users notice is in CHANGELOG.md.gz.

 -- hive-qos <hive-qos@hive-qos.invalid>  $(date -uR -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}")
TEXT
put packaging/debian/lintian-overrides usr/share/lintian/overrides/hive-qos

install -d "$root/DEBIAN"
install -m 755 packaging/debian/{postinst,prerm,postrm} "$root/DEBIAN"
sed "s/@VERSION@/$version/" packaging/debian/control >"$root/DEBIAN/control"
