#!/usr/bin/env bash
# A server of 1,024 GPUs under 200 requests a second of four clients for MINUTES (default 30): prints its memory every minute, and fails if it grows by more than 8 MiB an
# hour (plus 8 MiB) after the first quarter, if what the program holds grows by more than half of that, or if a request fails. The curve goes to
# out/soak-server.jsonl as well.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
mkdir -p out
renice -n 5 $$ >/dev/null
# As the unit of the packages and the chart set it.
export MALLOC_ARENA_MAX=2
run_example load --gpus 1024 --results out/soak-server.jsonl --soak "${MINUTES:-30}"
