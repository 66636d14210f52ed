#!/usr/bin/env bash
# Builds linkwise-slurm_VERSION_ARCH.deb for the installed slurmctld: the plugins, the agent's unit and a guard that switches the plugin off before
# slurmctld would die of it. The package depends on exactly this version of slurmctld, so an upgrade of Slurm waits for a new package.
#
#   scripts/slurm-package.sh [OUT]        default: out; the file's name is the last line
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
out=${1:-out} from=$root/integrations/slurm/package
have dpkg-deb || fail "no dpkg-deb here"
slurm=$(dpkg-query -W -f '${Version}' slurmctld 2>/dev/null) || fail "slurmctld is not from a Debian package"
release=$(awk -F'"' '/^version *=/ { print $2; exit }' Cargo.toml)
version=$release+slurm${slurm//:/.} arch=$(dpkg --print-architecture) triplet=$(gcc -print-multiarch)
tree=$(mktemp -d)
# shellcheck disable=SC2064 # the folder of now
trap "rm -rf '$tree'" EXIT
chmod 0755 "$tree"
lib=$tree/usr/lib/linkwise/slurm
scripts/build-slurm.sh "$lib" >&2
strip --strip-debug "$lib"/*.so
install -D -m 0755 "$from/guard" "$lib/guard"
install -D -m 0644 "$from/linkwise-slurm-agent.service" "$tree/lib/systemd/system/linkwise-slurm-agent.service"
install -D -m 0644 "$from/slurmctld.conf" "$tree/lib/systemd/system/slurmctld.service.d/linkwise.conf"
install -D -m 0644 docs/slurm.md "$tree/usr/share/doc/linkwise-slurm/slurm.md"
install -D -m 0644 integrations/slurm/LICENSE "$tree/usr/share/doc/linkwise-slurm/copyright"
sed "s|@PLUGINS@|/usr/lib/$triplet/slurm-wlm|" "$from/linkwise.conf" >"$lib/linkwise.conf"
install -d "$tree/DEBIAN"
install -m 0755 "$from/postinst" "$from/prerm" "$from/postrm" "$tree/DEBIAN/"
printf 'interest-noawait /usr/sbin/slurmctld\n' >"$tree/DEBIAN/triggers"
cat >"$tree/DEBIAN/control" <<CONTROL
Package: linkwise-slurm
Version: $version
Architecture: $arch
Maintainer: linkwise <linkwise@localhost>
Section: admin
Priority: optional
Depends: slurmctld (= $slurm)
Description: exact GPUs for Slurm's jobs by measured bandwidth
 The plugins burst_buffer/linkwise and spank/linkwise, built for slurmctld $slurm.
 A job gets the GPUs that linkwise chooses; users change nothing.
CONTROL
mkdir -p "$out"
dpkg-deb --root-owner-group -Zxz --build "$tree" "$out/linkwise-slurm_${version}_$arch.deb" >&2
say "$out/linkwise-slurm_${version}_$arch.deb"
