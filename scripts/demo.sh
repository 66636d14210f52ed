#!/usr/bin/env bash
# Builds both programs and runs the demo; arguments go to `linkwise-lab demo`.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
say "demo: builds linkwise (the first time about 9 minutes on two cores, 2 GB), then measures, places and tunes on simulated and published data without"
say "a GPU (about a minute), and writes a report to out/"
scripts/build-with-time-left.sh --locked --package linkwise --package linkwise-lab
begin=$SECONDS
before=$(mktemp)
trap 'rm -f "$before"' EXIT
"${CARGO_TARGET_DIR:-target}/debug/linkwise-lab" demo "$@"
say "demo: $((SECONDS - begin)) s"
[ ! -d out ] || find out -name '*.html' -newer "$before" | while read -r report; do
  say "report: $root/$report (open it in a browser)"
done
scripts/demo-page.sh
