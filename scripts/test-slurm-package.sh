#!/usr/bin/env bash
# The package linkwise-slurm in a clean system of the same Debian as this one: install, jobs, an upgrade of slurmctld that apt holds back, a plugin that
# does not fit, remove. The controller starts and runs jobs after each. Needs root, mmdebstrap and Debian's addresses.
#
#   scripts/test-slurm-package.sh
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
if [ "${1:-}" != inside ]; then
  [ "$(id -u)" = 0 ] || fail "needs root"
  require_rust
  # shellcheck source=/dev/null
  suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:?}")
  system=$(scripts/slurm-root.sh "$suite" clean | tail -n 1)
  mkdir -p target/slurm-package
  rm -rf target/slurm-package/*
  scripts/slurm-package.sh target/slurm-package
  # The same plugin, built for a release that the system does not have.
  version=$(dpkg-query -W -f '${source:Version}' slurmctld)
  other=target/slurm-package/other-source
  cp -a "${XDG_CACHE_HOME:-$HOME/.cache}/linkwise/slurm/$version" "$other"
  sed -i 's/^\(#define SLURM_VERSION_STRING ".*\)\.[0-9]*"/\1.99"/' "$other/config.h" "$other/slurm/slurm_version.h"
  sed -i 's/^\(#define SLURM_VERSION_NUMBER 0x....\)../\163/' "$other/config.h" "$other/slurm/slurm_version.h"
  scripts/build-slurm.sh target/slurm-package/other "$other"
  rm -rf "$other"
  # The command as `make build` or a test left it.
  [ -x target/debug/linkwise ] || scripts/cargo.sh build --locked --workspace --bin linkwise
  # Works on a copy, so that the clean system stays clean.
  copy=$(mktemp -d "$(dirname "$system")/package.XXXXXX")
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$copy'" EXIT
  cp -a --reflink=auto "$system/." "$copy"
  install -m 0755 target/debug/linkwise "$copy/usr/bin/linkwise"
  scripts/slurm-in-root.sh "$copy" scripts/test-slurm-package.sh inside
  exit
fi

# From here on: inside of the clean system.
apt=(apt-get -q -y -o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false -o Dpkg::Use-Pty=0 --no-install-recommends)
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 0755 /usr/sbin/policy-rc.d
lab=/tmp/lab
mkdir -p $lab/state $lab/spool $lab/log
quietly() { "$@" >$lab/log/last 2>&1 || { tail -n 20 $lab/log/last >&2; fail "$*"; }; }

step() { say "-- $*"; }
step install
quietly "${apt[@]}" install ./target/slurm-package/*.deb slurmd slurm-client munge slurm-wlm-basic-plugins
grep -q 'fits: plugin and slurmctld are' $lab/log/last || fail "postinst did not run linkwise slurm check"
grep -q 'add the line .include linkwise.conf.' $lab/log/last || fail "postinst did not say how to begin"
! pgrep -x slurmctld >/dev/null || fail "the package started slurmctld"

cat >/etc/slurm/slurm.conf <<CONF
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$lab/state
SlurmdSpoolDir=$lab/spool
SlurmctldPidFile=$lab/ctld.pid
SlurmdPidFile=$lab/slurmd.pid
SlurmctldLogFile=$lab/log/ctld
SlurmdLogFile=$lab/log/slurmd
ProctrackType=proctrack/linuxproc
ReturnToService=2
SelectType=select/cons_tres
SlurmdParameters=config_overrides
include linkwise.conf
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=26818 CPUs=4 RealMemory=100 State=UNKNOWN
PartitionName=main Nodes=n1 Default=YES State=UP
CONF
[ -s /etc/munge/munge.key ] || { dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 status=none && chown munge /etc/munge/munge.key; }
chmod 0400 /etc/munge/munge.key
mkdir -p /run/munge
chown munge /run/munge /etc/munge /etc/munge/munge.key
setpriv --reuid=munge --regid=munge --clear-groups munged --force

until_true() { # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { tail -n 20 $lab/log/ctld >&2; return 1; }
    sleep 0.2
  done
}
idle() { timeout 5 sinfo -h -t idle -o %N | grep -q n1; }
start() { # as systemd does: the guard first
  /usr/lib/linkwise/slurm/guard 2>/dev/null || true
  slurmctld || return 1
  pgrep -x slurmd >/dev/null || slurmd -N n1
  until_true 40 idle || { tail -n 5 $lab/log/* >&2; sinfo -R >&2; ls -la /run/munge >&2; return 1; }
}
stop() {
  timeout 5 scontrol shutdown slurmctld || pkill -x slurmctld || true
  until_true 30 bash -c '! pgrep -x slurmctld | grep -v -f <(awk "/State:.*Z/ { print FILENAME }" /proc/[0-9]*/status | cut -d/ -f3)'
}
job() { timeout 60 srun -n1 hostname >/dev/null || fail "no job runs"; }
bbstat() { timeout 5 scontrol show bbstat; }

step "start with the plugin, and a job"
start || fail "slurmctld does not start"
bbstat | grep -q 'linkwise slurm=' || fail "the plugin is not loaded"
job
stop

step "an upgrade of slurmctld waits for the package"
installed=$(dpkg-query -W -f '${Version}' slurmctld)
mkdir -p $lab/newer /tmp/repository
(cd /tmp && quietly "${apt[@]}" download slurmctld && dpkg-deb -R slurmctld_*.deb $lab/newer)
sed -i "s/^Version: .*/Version: $installed+newer/" $lab/newer/DEBIAN/control
dpkg-deb --root-owner-group -b $lab/newer /tmp/repository/slurmctld_newer.deb >/dev/null
! "${apt[@]}" install /tmp/repository/slurmctld_newer.deb --no-remove >$lab/log/last 2>&1 || fail "apt upgraded slurmctld although the package needs another version"
[ "$(dpkg-query -W -f '${Version}' slurmctld)" = "$installed" ] || fail "slurmctld was upgraded"
[ -f /usr/lib/linkwise/slurm/burst_buffer_linkwise.so ] || fail "the package is gone"

step "a plugin of another release: slurmctld would not start; the guard switches it off"
cp target/slurm-package/other/burst_buffer_linkwise.so /usr/lib/linkwise/slurm/burst_buffer_linkwise.so
! linkwise slurm check --plugin /usr/lib/linkwise/slurm/burst_buffer_linkwise.so >$lab/log/last 2>&1 || fail "linkwise slurm check accepts it"
timeout 20 slurmctld -D >$lab/log/last 2>&1 && fail "slurmctld started with a plugin of another release" || [ $? != 124 ] || fail "slurmctld started with a plugin of another release"
start || fail "slurmctld does not start after the guard"
! bbstat | grep -q linkwise || fail "the plugin is loaded"
job
stop

step "the right plugin again: the guard switches it on"
quietly "${apt[@]}" reinstall ./target/slurm-package/*.deb
start || fail "slurmctld does not start"
bbstat | grep -q 'linkwise slurm=' || fail "the plugin is not loaded"

step "remove while slurmctld runs, and start again"
quietly "${apt[@]}" remove linkwise-slurm
pgrep -x slurmctld >/dev/null || fail "removing the package ended slurmctld"
job
stop
start || fail "slurmctld does not start without the package"
! bbstat | grep -q linkwise || fail "the plugin is loaded"
job
stop
quietly "${apt[@]}" purge linkwise-slurm
start || fail "slurmctld does not start after purge"
stop
pkill -x slurmd || true
pkill -x munged || true
say "the package installs, waits, switches off and goes; slurmctld started and ran jobs every time"
