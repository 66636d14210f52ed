#!/usr/bin/env bash
# Builds linkwise and runs its demo; arguments go to `linkwise demo`.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
say "building (the first time takes minutes)"
cargo build --locked --quiet --package linkwise
begin=$SECONDS
cargo run --locked --quiet --package linkwise -- demo "$@"
say "demo: $((SECONDS - begin)) s"
for report in out/*.html; do
  [ -f "$report" ] && say "report: $report (open it in a browser)"
done
