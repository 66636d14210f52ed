#!/usr/bin/env bash
# Measures the network plugin in the real NCCL library between network namespaces with shaped links (needs root), about 40 minutes:
# skewed traffic beside NCCL's sockets and the theory, small messages, hosts without a switch, a rail that dies and one that slows down.
#
#   scripts/bench-net.sh [OPTION VALUE]...     for example --rounds 2, or --nice -10 on a machine that has other work
#
# Resumable: what is in out/bench-net.jsonl is not measured again. Delete the file to begin anew, for example with another build.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust

scripts/cargo.sh build --locked --package nccl-net --example bench_net
scripts/cargo.sh build --locked --package nccl-net
mkdir -p out
bench() { "${CARGO_TARGET_DIR:-target}/debug/examples/bench_net" --results out/bench-net.jsonl "$@"; }
date -u +%F
# Public routing files of a mixture of experts, if LINKWISE_NET_MOE names their folder.
experts=
for file in "${LINKWISE_NET_MOE:-/nonexistent}"/moe/esft/*/expert_weights_12.txt; do [ ! -f "$file" ] || experts="$experts,experts:$file"; done
cases="uniform,hot-destination,hot-source,hot-pair,zipf$experts"
bench --tag 2x4 --mb 20 --rounds 3 --cases "$cases" --arms sockets,sockets-best,sockets-no-pxn,sockets-mptcp,source-rail,stripe,linkwise "$@"
bench --tag 4x2 --hosts 4x2 --rails 2 --mb 10 --rounds 3 --cases "$cases" --arms sockets,sockets-no-pxn,stripe,linkwise "$@"
bench --tag hot-rank --mb 12 --rounds 2 --cases hot-rank:0.4,hot-rank:0.6,hot-rank:0.8,hot-rank:1.0 --arms sockets,linkwise "$@"
bench --tag small --mbit 2000 --mb 0.0655 --cases uniform --repetitions 60 --rounds 3 "$@"
bench --tag 4x2slow --hosts 4x2 --rails 2 --mb 6 --mbit 25 --rounds 2 --cases "$cases" --arms sockets,linkwise "$@"
bench --tag ring --shape ring --hosts 4x1 --mbit 100 --mb 12 --cases uniform,hot-pair,zipf --arms linkwise-greedy,linkwise --rounds 3 "$@"
bench --tag mesh --shape mesh --hosts 4x1 --mbit 50 --mb 12 --cases uniform,hot-pair,zipf --arms linkwise-direct,linkwise --rounds 3 "$@"
bench --tag cut --mb 12 --cases zipf --arms linkwise --fault cut:1 --repetitions 24 --rounds 3 "$@"
bench --tag slow --mb 12 --cases zipf --arms linkwise --fault slow:1 --repetitions 24 --rounds 3 "$@"
