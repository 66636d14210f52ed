#!/usr/bin/env bash
# Makes a folder with a small Debian in it that has another release of Slurm than this machine: for tests in `chroot`. Needs root, mmdebstrap and
# Debian's addresses. Prints the folder, which is kept in ${XDG_CACHE_HOME:-~/.cache}/linkwise/slurm/roots/SUITE.
#
#   scripts/slurm-root.sh bookworm|trixie|forky [clean]     Slurm 22.05, 24.11, 26.05; `clean`: a system with apt only, for tests of the package
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
suite=${1:?suite of Debian} kind=${2:-slurm}
folder=${XDG_CACHE_HOME:-${HOME:?}/.cache}/linkwise/slurm/roots/$suite
case $kind in
slurm) packages=slurmctld,slurmd,slurm-client,munge,slurm-wlm-basic-plugins,gcc,libc6-dev,make,patch,pkgconf,xz-utils,bzip2,procps ;;
clean) packages=procps folder=$folder-clean ;;
*) fail "$kind: \`slurm\` or \`clean\`" ;;
esac
if [ -f "$folder/made" ]; then
  say "$folder"
  exit
fi
[ "$(id -u)" = 0 ] || fail "a chroot needs root"
have mmdebstrap || fail "no mmdebstrap here; apt-get install mmdebstrap"
mirror=${LINKWISE_TEST_DEBIAN:-http://deb.debian.org/debian}
log=$(mktemp)
work=$folder.$$
# shellcheck disable=SC2064 # the names of now
trap "rm -rf '$work' '$log'" EXIT
mkdir -p "$(dirname "$folder")"
# A suite that is not released yet may have a list of files whose date has passed.
mmdebstrap --variant=apt --mode=root --include="$packages" --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Install-Recommends "false"' \
  --aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' "$suite" "$work" "deb $mirror $suite main" "deb-src $mirror $suite main" >"$log" 2>&1 </dev/null ||
  { tail -n 5 "$log" >&2; fail "mmdebstrap cannot make a system of $suite"; }
"$root/scripts/slurm-in-root.sh" "$work" apt-get -q -o Acquire::Check-Valid-Until=false update >"$log" 2>&1 || { tail -n 5 "$log" >&2; fail "no lists of packages of $suite"; }
rm -rf "$folder" "$work"/var/cache/apt/archives/*.deb
touch "$work/made"
mv -T "$work" "$folder"
say "$folder"
