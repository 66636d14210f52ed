#!/usr/bin/env bash
# Fuzzes what Slurm's plugin reads from its agent, with clang's libFuzzer under the address and undefined-behaviour sanitizers.
#
#   scripts/fuzz-slurm.sh [SECONDS]       default: 600
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
seconds=${1:-600}
have clang || fail "no clang here; apt-get install clang"
work=$(mktemp -d)
# shellcheck disable=SC2064 # the folder of now
trap "rm -rf '$work'" EXIT
mkdir "$work/corpus"
printf 'take 7 3 n1:0.1.2,n3:7 {"linkwise":"took"}\nbeat\n' >"$work/corpus/take"
printf 'wait 4294967294 0 no "free" GPUs\npass 1 2\n' >"$work/corpus/wait"
clang -std=gnu11 -g -O1 -Wall -Wextra -Werror -Wno-unused-function -DLIBFUZZER -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
  -o "$work/fuzz" integrations/slurm/tests/fuzz.c 2>"$work/log" || { tail -n 5 "$work/log" >&2; fail "clang cannot build the fuzz target"; }
"$work/fuzz" -max_total_time="$seconds" -max_len=70000 -rss_limit_mb=1024 -artifact_prefix="$work/" -print_final_stats=1 "$work/corpus" >"$work/log" 2>&1 || {
  tail -n 40 "$work/log" >&2
  kept=$(mktemp -t linkwise-slurm-crash.XXXXXX)
  cp "$(find "$work" -maxdepth 1 \( -name 'crash-*' -o -name 'leak-*' -o -name 'timeout-*' -o -name 'oom-*' \) -print -quit)" "$kept" 2>/dev/null || true
  fail "the fuzzer found a fault; its input is $kept"
}
grep -E '^stat::(number_of_executed_units|peak_rss_mb)|cov:' "$work/log" | tail -n 3
