#!/usr/bin/env bash
# Tests each artefact of a release in a clean system: installs it, checks the host, does the main job, runs the server, removes it and looks for what is
# left. Systems: Debian 12 and Ubuntu 24.04 (scripts/clean-root.sh). Needs root, mmdebstrap and the distributions' addresses.
#
#   scripts/test-packages.sh [FOLDER] [SUITE...]      default: out/release, bookworm and noble
#
# A system that cannot be made here is a failure: the release would be tested in fewer systems than its page says. LINKWISE_TEST_ALLOW_SKIP=1 makes it a
# SKIP.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
if [ "${1:-}" != inside ]; then
  folder=$(realpath "${1:-out/release}")
  [ $# = 0 ] || shift
  [ -f "$folder/SHA256SUMS" ] || fail "no release in $folder; \`scripts/build-packages.sh\` makes it"
  [ "$(id -u)" = 0 ] || fail "a chroot needs root"
  (cd "$folder" && sha256sum --quiet -c SHA256SUMS) || fail "the files are not those of SHA256SUMS"
  [ $# -gt 0 ] || set -- bookworm noble
  tested=0 skipped=0
  # Tests of the same files that have passed are not run again: a run that was cut off goes on.
  done_before=${XDG_CACHE_HOME:-$HOME/.cache}/linkwise/tested/$(sha256sum <"$folder/SHA256SUMS" | cut -c1-16)
  mkdir -p "$done_before"
  for suite in "$@"; do
    if ! system=$(scripts/clean-root.sh "$suite" | tail -n 1); then
      [ "${LINKWISE_TEST_ALLOW_SKIP:-}" = 1 ] || fail "no system of $suite can be made here; LINKWISE_TEST_ALLOW_SKIP=1 tests the others only"
      say "SKIP $suite: no system of it can be made here"
      skipped=$((skipped + 1))
      continue
    fi
    for kind in deb tarball wheel rpm; do
      if [ -f "$done_before/$suite-$kind" ]; then
        say "-- $suite $kind: passed before"
        tested=$((tested + 1))
        continue
      fi
      # Works on a copy, so that the clean system stays clean.
      copy=$(mktemp -d "$(dirname "$system")/test.XXXXXX")
      # shellcheck disable=SC2064 # the folder of now
      trap "rm -rf '$copy'" EXIT
      cp -a --reflink=auto "$system/." "$copy"
      mkdir -p "$copy/release"
      cp "$folder"/* "$copy/release/"
      scripts/slurm-in-root.sh "$copy" scripts/test-packages.sh inside "$kind" "$suite"
      touch "$done_before/$suite-$kind"
      rm -rf "$copy"
      trap - EXIT
      tested=$((tested + 1))
    done
  done
  [ $tested -gt 0 ] || fail "nothing was tested"
  rm -r "$done_before"
  say "release: $tested tests in clean systems passed, $skipped of $# systems skipped"
  exit
fi

# From here on: inside of a clean system. `cd` leaves the checkout: nothing of it may help.
kind=$2 suite=$3
cd /
export HOME=/tmp/home
mkdir -p "$HOME"
log=/tmp/log
apt=(apt-get -q -y -o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false -o Dpkg::Use-Pty=0 --no-install-recommends)
quietly() { "$@" >$log 2>&1 || { tail -n 20 $log >&2; fail "$suite $kind: $*"; }; }
expect() { grep -q -- "$2" "$1" || { tail -n 30 "$1" >&2; fail "$suite $kind: no \`$2\`"; }; }
# A busy machine makes seconds long, so the minute until the first answer is checked in seconds of CPU time of all commands so far, and both are said.
cpu_seconds() {
  times >/tmp/times # not in a subshell, which has times of its own
  awk 'NR == 2 { gsub(/s/, ""); for (i = 1; i <= 2; i++) { split($i, t, "m"); sum += t[1] * 60 + t[2] }; printf "%.0f\n", sum }' /tmp/times >/tmp/seconds
  read -r cpu </tmp/seconds
}
start_of_install() {
  cpu_seconds
  cpu_before=$cpu begin=$(date +%s)
}
! command -v linkwise >/dev/null || fail "the system is not clean"
before=/tmp/before
# What apt and Python write about themselves is not linkwise's.
all_files() { find / -xdev \( -path /tmp -o -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /release -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -path /var/lib/rpm -o -path /root -o -name __pycache__ -o -path "$root" \) -prune -o -print | sort; }

case $kind in
deb)
  all_files >$before
  start_of_install
  quietly "${apt[@]}" install /release/linkwise_*_amd64.deb
  bin=linkwise
  ;;
rpm)
  all_files >$before
  start_of_install
  # The database of rpm is empty on Debian: what the package requires is checked by name.
  rpm -qp --requires /release/linkwise-*.x86_64.rpm >$log 2>/dev/null
  expect $log 'glibc >= 2.28'
  quietly rpm --force-debian -i --nodeps /release/linkwise-*.x86_64.rpm
  bin=linkwise
  ;;
tarball)
  all_files >$before
  start_of_install
  mkdir /opt/linkwise
  tar -C /opt/linkwise --strip-components 1 -xf /release/linkwise-*-x86_64-linux.tar.xz
  bin=/opt/linkwise/bin/linkwise
  ;;
wheel)
  all_files >$before
  start_of_install
  quietly python3 -m venv /opt/venv
  quietly /opt/venv/bin/pip install --no-index /release/linkwise-*_x86_64.whl
  bin=/opt/venv/bin/linkwise
  ;;
esac
say "-- $suite $kind: installed in $(($(date +%s) - begin)) s"

# The first answer within a minute of the install.
$bin nccl explain --cluster h100 >$log 2>&1 || { cat $log >&2; fail "$suite $kind: nccl explain"; }
expect $log 'all_reduce\|AllReduce\|allreduce'
cpu_seconds
used=$((cpu - cpu_before))
[ $used -lt 60 ] || fail "$suite $kind: install and first answer took $used s of CPU time; less than 60 s were expected"
say "-- $suite $kind: first answer $(($(date +%s) - begin)) s after the install began, $used s of CPU time"
$bin doctor install >$log 2>&1 || { cat $log >&2; fail "$suite $kind: doctor install"; }
expect $log 'PASS plugin: '
expect $log 'PASS network plugin: '
expect $log 'PASS glibc: '
expect $log 'PASS permissions: '
work=$(mktemp -d)
cd "$work"
$bin measure --cluster h100 --backend simulated --samples 20 --store r.db >$log 2>&1 || { cat $log >&2; fail "$suite $kind: measure"; }
$bin fit --store r.db --cluster h100 -o model.json >$log 2>&1 || { cat $log >&2; fail "$suite $kind: fit"; }
$bin place --cluster h100 --model model.json --gpus 12 >$log 2>&1 || { cat $log >&2; fail "$suite $kind: place"; }
expect $log '12 GPUs'
# shellcheck disable=SC2016 # expanded by the job
$bin run --observe -- sh -c 'test -r "$NCCL_TUNER_PLUGIN"' >$log 2>&1 || { cat $log >&2; fail "$suite $kind: run"; }
$bin serve --cluster h100 --state site.state --listen 127.0.0.1:0 >serve.log 2>&1 &
server=$!
for _ in $(seq 300); do
  ! grep -q listens serve.log || break
  sleep 0.1
done
port=$(sed -n 's/.*listens on http:.*:\([0-9]*\)$/\1/p' serve.log)
[ -n "$port" ] || { cat serve.log >&2; fail "$suite $kind: serve"; }
python3 -c "import urllib.request as u; assert b'h100' in u.urlopen('http://127.0.0.1:$port/v1/cluster').read()" || fail "$suite $kind: the server does not answer"
kill $server
wait $server || true
cd /
say "-- $suite $kind: main job, plugin and server"

case $kind in
deb | rpm)
  [ -f /etc/linkwise/serve.env ] && [ -f /usr/lib/systemd/system/linkwise.service ] || fail "$suite $kind: no unit"
  gzip -t /usr/share/man/man1/linkwise.1.gz /usr/share/man/man1/linkwise-doctor-install.1.gz || fail "$suite $kind: no manual page"
  bash -n /usr/share/bash-completion/completions/linkwise || fail "$suite $kind: bash's completion"
  echo '# kept' >>/etc/linkwise/serve.env
  ;;
esac
case $kind in
deb)
  quietly "${apt[@]}" reinstall /release/linkwise_*_amd64.deb
  expect /etc/linkwise/serve.env kept
  quietly "${apt[@]}" remove linkwise
  expect /etc/linkwise/serve.env kept
  quietly "${apt[@]}" purge linkwise
  ;;
rpm)
  quietly rpm --force-debian -e linkwise
  expect /etc/linkwise/serve.env.rpmsave kept
  rm -r /etc/linkwise
  ;;
tarball) rm -r /opt/linkwise ;;
wheel)
  quietly /opt/venv/bin/pip uninstall --yes linkwise
  left=$(find /opt/venv -iname '*linkwise*')
  [ -z "$left" ] || fail "$suite $kind: left behind: $left"
  rm -r /opt/venv
  ;;
esac
all_files >/tmp/after
left=$(comm -13 $before /tmp/after)
[ -z "$left" ] || fail "$suite $kind: left behind: $left"
say "-- $suite $kind: removed; nothing is left"
