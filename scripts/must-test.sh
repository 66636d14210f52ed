#!/usr/bin/env bash
# Runs a check that somebody asked for by name, and fails if a part of it was skipped: `scripts/test.sh` counts skips, a single check would end with 0
# although nothing was tested. LINKWISE_TEST_ALLOW_SKIP=1 only prints the skips.
#
#   scripts/must-test.sh COMMAND...
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$@" 2>&1 | tee "$log"
# A test that runs alone stands before its SKIP in the same line.
if grep -Eq '(^|\.\.\. )SKIP ' "$log"; then
  [ "${LINKWISE_TEST_ALLOW_SKIP:-}" = 1 ] || fail "skipped, see the SKIP lines above; LINKWISE_TEST_ALLOW_SKIP=1 allows it"
fi
