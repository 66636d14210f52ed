#!/usr/bin/env bash
# Measures the network plugin in the real NCCL library between network namespaces with shaped rails (needs root): skewed traffic beside NCCL's sockets
# and the theory, then a rail that dies and one that slows down. Arguments go to the first part, for example `scripts/bench-net.sh --rounds 2`.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust

scripts/cargo.sh build --locked --package nccl-net --example bench_net
scripts/cargo.sh build --locked --package nccl-net
bench=${CARGO_TARGET_DIR:-target}/debug/examples/bench_net
"$bench" --mb 20 --rounds 3 "$@"
"$bench" --hosts 4x2 --rails 2 --mb 10 --cases uniform,zipf --rounds 2
"$bench" --mb 12 --cases zipf --arms linkwise --fault cut:1 --repetitions 24 --rounds 3
"$bench" --mb 12 --cases zipf --arms linkwise --fault slow:1 --repetitions 24 --rounds 3
