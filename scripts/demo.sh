#!/usr/bin/env bash
# Builds linkwise and runs its demo; arguments go to `linkwise demo`.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
cargo build --locked --package linkwise
begin=$SECONDS
before=$(mktemp)
trap 'rm -f "$before"' EXIT
cargo run --locked --quiet --package linkwise -- demo "$@"
say "demo: $((SECONDS - begin)) s"
[ ! -d out ] || find out -name '*.html' -newer "$before" | while read -r report; do
  say "report: $root/$report (open it in a browser)"
done
