#!/usr/bin/env bash
# Makes a folder with a minimal Debian or Ubuntu in it, for tests of packages in `chroot`: apt, Python with venv, rpm, xz, and nothing of linkwise. The tests need no
# network then. Needs root,
# mmdebstrap and the distribution's addresses. Prints the folder, which is kept in ${XDG_CACHE_HOME:-~/.cache}/linkwise/roots/SUITE.
#
#   scripts/clean-root.sh bookworm|trixie|noble
#
# Ubuntu's keys: /usr/share/keyrings/ubuntu-archive-keyring.gpg, else LINKWISE_TEST_UBUNTU_KEYS=FILE, else the package ubuntu-keyring from its archive.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
suite=${1:?suite of Debian or Ubuntu}
folder=${XDG_CACHE_HOME:-${HOME:?}/.cache}/linkwise/roots/$suite
packages=python3,python3-venv,procps,rpm,xz-utils
# One that an older version of this script made with other packages is made again.
if [ "$(cat "$folder/made" 2>/dev/null)" = "$packages" ]; then
  say "$folder"
  exit
fi
[ "$(id -u)" = 0 ] || fail "a chroot needs root"
have mmdebstrap || fail "no mmdebstrap here; apt-get install mmdebstrap"
log=$(mktemp)
work=$folder.$$
# shellcheck disable=SC2064 # the names of now
trap "rm -rf '$work' '$log' '$log.keys'" EXIT
mkdir -p "$(dirname "$folder")"
extra=()
case $suite in
bookworm | trixie) sources=("deb ${LINKWISE_TEST_DEBIAN:-http://deb.debian.org/debian} $suite main") ;;
noble)
  mirror=${LINKWISE_TEST_UBUNTU:-http://archive.ubuntu.com/ubuntu}
  sources=("deb $mirror $suite main universe")
  keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  if [ ! -f $keys ]; then
    keys=${LINKWISE_TEST_UBUNTU_KEYS:-$log.keys/usr/share/keyrings/ubuntu-archive-keyring.gpg}
    if [ ! -f "$keys" ]; then
      have curl || fail "no curl to fetch Ubuntu's keys"
      package=$(curl -fsS -m 120 "$mirror/dists/$suite/main/binary-amd64/Packages.gz" | zcat | awk '/^Package: / { is = $2 == "ubuntu-keyring" } is && /^Filename: / { print $2 }')
      [ -n "$package" ] || fail "no package ubuntu-keyring in $mirror"
      curl -fsS -m 120 -o "$log.deb" "$mirror/$package" && dpkg-deb -x "$log.deb" "$log.keys" && rm "$log.deb"
    fi
  fi
  extra=(--keyring="$keys")
  ;;
*) fail "$suite: bookworm, trixie or noble" ;;
esac
mmdebstrap --variant=apt --mode=root --include=$packages "${extra[@]}" --aptopt='Acquire::Languages "none"' \
  --aptopt='APT::Install-Recommends "false"' "$suite" "$work" "${sources[@]}" >"$log" 2>&1 </dev/null ||
  { tail -n 5 "$log" >&2; fail "mmdebstrap cannot make a system of $suite"; }
rm -rf "$work"/var/cache/apt/archives/*.deb
printf '%s\n' "$packages" >"$work/made"
rm -rf "$folder"
mv -T "$work" "$folder"
say "$folder"
