#!/usr/bin/env bash
# Runs every micro-benchmark of the workspace; arguments go to the benchmarks (a filter, for instance).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
if ! ls crates/*/benches/*.rs >/dev/null 2>&1; then
  say "no benchmark yet: a crate's benchmarks live in its benches/ folder"
  exit 0
fi
# The profile of tests and demo, so that nothing is built twice.
exec cargo bench --profile dev --locked --workspace --bench '*' -- "$@"
