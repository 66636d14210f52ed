#!/bin/sh
# Fuzzes every reader, one after the other. Needs a nightly toolchain and a C++ compiler; no stable build uses it.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]      default: 600 seconds each, all targets
#
# Resumable: findings of earlier runs are kept in fuzz/corpus-local/TARGET and start the next run; the small
# hand-written corpora in fuzz/corpus/TARGET are replayed by `make test`. A crash leaves fuzz/artifacts/TARGET/crash-*.
set -eu
cd "$(dirname "$0")/../fuzz"
seconds=${1:-600}
[ $# -gt 0 ] && shift
targets=${*:-cluster_yaml gpu_list topo_m nccl_xml nccl_log p2p_text p2p_csv nccl_tests_text nccl_tests_json job_trace store_csv model_file request_line route_demand route_link tune_sample tune_policy wire_frames wire_pipe wire_handshake net_frames net_greeting net_handle agreement_rank agreement_folder plugin_settings plugin_trace slurm_conf slurm_yaml ibnetdiscover topograph ibstat nvidia_smi slurm_jobs arm_table inspector flight_recorder inspector_metrics inspector_write call_summary}
export CARGO_TARGET_DIR="${FUZZ_TARGET_DIR:-$PWD/target}"
# What cargo-fuzz passes: coverage counters for libFuzzer, checks of a debug build.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks --cfg fuzzing"
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
for t in $targets; do
    cargo +nightly build --quiet --release --target "$host" --bin "$t"
    mkdir -p "corpus-local/$t" "artifacts/$t"
    echo "== $t for $seconds s"
    "$CARGO_TARGET_DIR/$host/release/$t" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -max_len=65536 \
        -artifact_prefix="artifacts/$t/" -print_final_stats=1 "corpus-local/$t" "corpus/$t"
done
