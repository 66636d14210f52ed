#!/usr/bin/env bash
# Kills servers a hundred times under clients that allocate and release, once with a state in a file and once with two servers on one PostgreSQL, and PostgreSQL itself
# ten times; then fills the disk, cuts the network and stops the answers between linkwise and PostgreSQL, and lets clocks jump. What the clients were told is compared with
# the state. Needs root for the disk and the network; about five minutes on two idle cores.
#
#   scripts/server-kills.sh [KILLS [KILLS-OF-POSTGRESQL [FAULTS]]]      default: 100 10 5; a part that passed on the same sources is in out/server-kills and is not
#                                                                       repeated
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
done=$root/out/server-kills
mkdir -p "$(dirname "$done")"
touch "$done"
sources=$(sources_word)

# part NAME VARIABLE NUMBER TEST FILTER: runs the tests with this number of faults, unless they passed already.
part() {
  local run="$1, $3, sources $sources"
  if grep -qxF "$run" "$done"; then
    say "$run: passed before"
    return
  fi
  env "$2=$3" scripts/must-test.sh cargo test --locked --quiet --workspace --test "$4" -- --nocapture --test-threads=1 "$5"
  printf '%s\n' "$run" >>"$done"
  say "$run: passed"
}
part "kills of servers" LINKWISE_KILLS "${1:-100}" serve kill
part "kills of PostgreSQL" LINKWISE_KILLS "${2:-10}" shared killed
part "faults of the disk, the network and PostgreSQL" LINKWISE_FAULTS "${3:-5}" faults ""
part "jumps of the clock" LINKWISE_FAULTS 1 serve clock
