#!/usr/bin/env bash
# Tests the NCCL bench on the newest patch of every minor release from 2.21 to 2.32: every check of crates/nccl-bench/tests/versions.rs
# for each, those of tests/bytes.rs on the releases on which bytes move, then a table. Wheels come from the configured package index (some 4 GB
# the first time); some minutes on two cores after that.
#
#   scripts/test-nccl-matrix.sh [VERSION...]        default: 2.21 to 2.32
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
want_pip

minors=()
if [ $# = 0 ]; then
  for minor in $(seq 21 32); do minors+=("2.$minor"); done
else
  minors=("$@")
fi

# The newest patch of the index: `pip index versions` lists them newest first. Without an answer, the bench's own list is used.
published=$(python3 -m pip index versions nvidia-nccl-cu12 2>/dev/null | sed -n 's/^Available versions: //p' | tr -d ' ' | tr ',' '\n' || true)
newest() {
  printf '%s\n' "$published" | awk -v minor="$1." 'index($0, minor) == 1 && $0 ~ /^[0-9.]+$/ { print; found = 1; exit } END { if (!found) print substr(minor, 1, length(minor) - 1) }'
}

versions=()
for minor in "${minors[@]}"; do
  case $minor in
    *.*.*) versions+=("$minor") ;;
    *) versions+=("$(newest "$minor")") ;;
  esac
done

cargo test --locked -p nccl-bench --test versions --test bytes --no-run
cargo build --locked -p nccl-bench --example matrix

passed=0 failed=0 skipped=0
for version in "${versions[@]}"; do
  begin=$SECONDS
  log=$(LINKWISE_NCCL_VERSIONS=$version cargo test --locked -q -p nccl-bench --test versions --test bytes --no-fail-fast -- --show-output 2>&1 </dev/null) && rc=0 || rc=$?
  if printf '%s' "$log" | grep -q '^SKIP '; then
    skipped=$((skipped + 1))
    printf 'NCCL %-8s skipped: %s\n' "$version" "$(printf '%s' "$log" | sed -n 's/^SKIP [^:]*: //p' | head -n 1)"
  elif [ "$rc" = 0 ]; then
    passed=$((passed + 1))
    printf 'NCCL %-8s ok      %4d s\n' "$version" $((SECONDS - begin))
  else
    failed=$((failed + 1))
    printf 'NCCL %-8s FAILED  %4d s\n' "$version" $((SECONDS - begin))
    printf '%s\n' "$log" | sed 's/^/    /'
  fi
done
say ""
cargo run --locked -q -p nccl-bench --example matrix -- "${versions[@]}" || [ "$failed" != 0 ] || [ "$skipped" != 0 ] || failed=1
say ""
say "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
