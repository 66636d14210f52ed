#!/usr/bin/env bash
# Decisions per second of a server beside the engine's own, at 1,024 and 10,240 GPUs, with the state in a file and in PostgreSQL; about four
# minutes after the build. Goes on where it was cut off: the results are in out/bench-server.jsonl (remove it to measure again).
# Arguments: those of the example, such as --format json, --gpus 1024 --seconds 3.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
mkdir -p out
run_example load --results out/bench-server.jsonl "$@"
