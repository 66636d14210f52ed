#!/usr/bin/env bash
# A trace of jobs through the real slurmctld of this machine, with and without linkwise: simulated bandwidth of the running jobs, waiting time, used
# GPUs, fragmentation, and the controller's time. Nodes of eight fake GPUs, all on this machine; the bandwidths are those of a simulated fabric.
#
#   scripts/bench-slurm.sh [JOBS [NODES [COMPRESSION]]]      default: 2000 jobs, 8 nodes, time 200 times shorter; about 40 minutes on 2 idle cores
#
# The trace is synthetic: many jobs of one GPU, few large ones, durations with a long tail (crates/linkwise/tests/common/slurm/trace.rs). No published
# trace is reproduced. Segments of 250 jobs run in the order with, without,
# without, with. One JSON line per run goes to out/bench-slurm-SOURCES.jsonl; a run that is there already is not repeated, so the command goes on where it
# was cut off. Needs root and apt-get, or an installed Slurm; see docs/slurm.md.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
mkdir -p out
export LINKWISE_TEST_SLURM_JOBS=${1:-2000} LINKWISE_TEST_SLURM_NODES=${2:-8} LINKWISE_TEST_SLURM_COMPRESSION=${3:-200}
export LINKWISE_TEST_SLURM_SEGMENT=${LINKWISE_TEST_SLURM_SEGMENT:-250}
export LINKWISE_TEST_SLURM_OUT=${LINKWISE_TEST_SLURM_OUT:-$root/out/bench-slurm-$(sources_word).jsonl}
cargo test --locked --quiet --workspace --test slurm_agent -- --ignored --nocapture the_trace_is_measured_with_and_without_linkwise
cargo test --locked --quiet --workspace --test slurm_agent -- --ignored --nocapture the_measured_trace_is_a_table
