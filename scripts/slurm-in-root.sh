#!/usr/bin/env bash
# Runs a command inside of a system made by scripts/slurm-root.sh, in this repository's folder, in namespaces of its own: nothing stays
# mounted and no process is left, whatever happens to the command. Needs root.
#
#   scripts/slurm-in-root.sh FOLDER COMMAND...
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:?folder of the system}
shift
mkdir -p "$folder$root" "$folder/run/lock"
# shellcheck disable=SC2016 # expanded by the inner shell
exec unshare --mount --propagation private --pid --fork --kill-child bash -c '
  set -e
  folder=$1 root=$2
  shift 2
  mount -t proc proc "$folder/proc"
  mount --rbind /dev "$folder/dev"
  mount --rbind /sys "$folder/sys"
  mount -t tmpfs tmpfs "$folder/tmp"
  mount --bind "$root" "$folder$root"
  [ -z "${CARGO_TARGET_DIR:-}" ] || { mkdir -p "$folder$CARGO_TARGET_DIR"; mount --bind "$CARGO_TARGET_DIR" "$folder$CARGO_TARGET_DIR"; }
  ! cat /etc/resolv.conf >"$folder/etc/resolv.conf" 2>/dev/null || cat /etc/hosts >"$folder/etc/hosts"
  exec chroot "$folder" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 LANG=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive $(env | grep "^LINKWISE_\|^CARGO_MANIFEST_DIR=\|^CFLAGS=" | cut -d= -f1 | while read -r v; do printf "%s=%s " "$v" "${!v}"; done) \
    bash -c '"'"'cd "$1" && shift && "$@"'"'"' linkwise "$root" "$@"
' slurm-in-root "$folder" "$root" "$@"
