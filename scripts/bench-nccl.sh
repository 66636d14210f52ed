#!/usr/bin/env bash
# Mode `adaptive` in the real NCCL library, whose kernels are played on the CPU, between network namespaces with shaped rails (needs root). Prints a
# table; a run that was cut off goes on where it was (out/bench-nccl.jsonl; --fresh starts again).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
want_pip

scripts/cargo.sh build --locked --workspace
"${CARGO_TARGET_DIR:-target}/debug/bench-nccl" "$@"
