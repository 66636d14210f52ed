#!/usr/bin/env bash
# The same trace of gangs placed by linkwise and by the stock kube-scheduler of a real control plane: pods a minute, waiting, writes and latencies,
# predicted bandwidth, fragmentation. Nodes and GPUs are objects only; control plane, server and controller share this machine.
#
#   scripts/bench-kubernetes.sh [NODES [GANGS [PODS_A_MINUTE [HELD]]]]      default: 16 nodes, 200 gangs, 240 pods a minute, 0 % held
#
# HELD: percent of the nodes of which others hold 2, 4 or 6 GPUs. `1000 200 240 60` is a large site in use. About 4 minutes on 2 idle cores.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
scripts/build-kubernetes.sh
export LINKWISE_TEST_KUBERNETES_NODES=${1:-16} LINKWISE_TEST_KUBERNETES_GANGS=${2:-200}
export LINKWISE_TEST_KUBERNETES_PODS_A_MINUTE=${3:-240} LINKWISE_TEST_KUBERNETES_HELD=${4:-0}
cargo test --locked --quiet --workspace --test cluster -- --ignored --nocapture a_trace_is_placed
