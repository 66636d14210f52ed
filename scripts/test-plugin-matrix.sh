#!/usr/bin/env bash
# Tests the NCCL plugin on the newest patch of every minor release from 2.21 to 2.32 and on the first that identifies communicators.
# Then runs the long checks of the agreement: ten million simulated steps, 200 bad networks, a larger model, a leader's processor time. Wheels come from the configured package index (some 4 GB the first time).
#
#   scripts/test-plugin-matrix.sh [VERSION...]      AGREEMENT=0 leaves the long checks out
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
want_pip

versions=("$@")
if [ $# = 0 ]; then
  for minor in $(seq 21 32); do versions+=("2.$minor"); done
  versions+=(2.27.3)
fi
cargo test --locked --workspace --no-run --test real_nccl --test job --test agreement
[ "${AGREEMENT:-1}" = 0 ] || cargo test --locked --workspace --no-run --test simulation --test model --test cost

passed=0 failed=0 skipped=0
# stage NAME COMMAND...
stage() {
  local name=$1 begin=$SECONDS log rc=0
  shift
  log=$("$@" 2>&1 </dev/null) || rc=$?
  if [ "$rc" != 0 ]; then
    failed=$((failed + 1))
    printf '%-24s FAILED  %4d s\n' "$name" $((SECONDS - begin))
    printf '%s\n' "$log" | sed 's/^/    /'
  elif grep -q '^SKIP ' <<<"$log"; then
    skipped=$((skipped + 1))
    printf '%-24s skipped: %s\n' "$name" "$(sed -n 's/^SKIP [^:]*: //p' <<<"$log" | head -n 1)"
  else
    passed=$((passed + 1))
    printf '%-24s ok      %4d s\n' "$name" $((SECONDS - begin))
    grep -E '^(512 ranks|[23] ranks|[0-9]+ members:)' <<<"$log" | sed 's/^/    /' || true
  fi
}
for version in "${versions[@]}"; do
  stage "NCCL $version" env "LINKWISE_NCCL_VERSIONS=$version" cargo test --locked -q --workspace --test real_nccl --test job --test agreement -- --show-output
done
[ "${AGREEMENT:-1}" = 0 ] || stage "agreement, ten million" env LINKWISE_SIMULATION_STEPS=10000000 LINKWISE_MODEL_LARGE=1 \
  cargo test --locked -q --workspace --test simulation --test model -- --show-output
[ "${AGREEMENT:-1}" = 0 ] || stage "agreement, cost" cargo test --locked -q --workspace --test cost -- --ignored --show-output
say ""
say "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
