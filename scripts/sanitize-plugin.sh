#!/usr/bin/env bash
# Runs the plugin and a host in C that calls all its interfaces (crates/nccl-plugin/tests/host/host.c) under AddressSanitizer, the host
# also under UndefinedBehaviorSanitizer. Needs a C compiler and a nightly toolchain (its sanitizer for the library, and the same runtime
# for the host); prints SKIP without them.
#
#   scripts/sanitize-plugin.sh
#
# Rust has no undefined-behaviour sanitizer: in this build its overflow, bounds and precondition checks are on, and Miri
# (`cargo +nightly miri test -p nccl-plugin --lib`) checks the code that runs without a host. The compiler checks the types of the host's
# prototypes; clang's -fsanitize=function ignores functions that clang has not compiled.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
rustc +nightly -vV >/dev/null 2>&1 || { say "SKIP sanitize-plugin: no nightly toolchain"; exit 0; }
have "${CC:-cc}" || { say "SKIP sanitize-plugin: no C compiler"; exit 0; }
target=$(rustc +nightly -vV | sed -n 's/^host: //p')
runtime=$(rustc +nightly --print sysroot)/lib/rustlib/$target/lib/librustc-nightly_rt.asan.a
[ -f "$runtime" ] || { say "SKIP sanitize-plugin: the nightly toolchain has no AddressSanitizer for $target"; exit 0; }
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sanitize
RUSTFLAGS="-Zsanitizer=address -Clink-arg=-rdynamic -Coverflow-checks -Cdebug-assertions" \
  cargo +nightly build --locked -p nccl-plugin --target "$target"
built=$CARGO_TARGET_DIR/$target/debug
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The C compiler instruments the host, but it is linked with the library's runtime: a process can have only one.
"${CC:-cc}" -std=gnu11 -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
  -c crates/nccl-plugin/tests/host/host.c -o "$scratch/host.o"
"${CC:-cc}" -rdynamic "$scratch/host.o" -o "$scratch/host" -Wl,--whole-archive "$runtime" -Wl,--no-whole-archive -ldl -lpthread -lm -lrt -lstdc++

printf 'AllReduce 0 max TREE/SIMPLE@4\nAllGather 0 max RING/LL\nBroadcast 0 max AUTO@8\n' >"$scratch/table"
runs=0
# run "SETTING=VALUE ..." COMMAND...
run() {
  local settings=$1 log=$scratch/log
  shift
  # shellcheck disable=SC2086 # words of the settings
  env RUST_BACKTRACE=0 ASAN_OPTIONS=detect_leaks=0 $settings timeout 300 "$@" >"$log" 2>&1 || {
    tail -n 40 "$log"
    fail "$* with ${settings:-nothing set}"
  }
  runs=$((runs + 1))
}
local=LINKWISE_RENDEZVOUS=local:sanitize-$$
observe="LINKWISE_MODE=observe LINKWISE_TRACE=$scratch/trace"
adaptive="LINKWISE_MODE=adaptive $local"
table="LINKWISE_MODE=profile LINKWISE_PROFILE=$scratch/table LINKWISE_PROCESS=0/8"
panics="LINKWISE_TEST=1 LINKWISE_TEST_PANIC=1"
library=$built/liblinkwise_nccl.so
for settings in "" "$observe" "$adaptive" "$adaptive LINKWISE_REWARD=kernel LINKWISE_KERNEL_TIMES=1" "$table $local" "$observe $panics"; do
  run "$settings" "$scratch/host" "$library" every-version
  run "$settings" "$built/linkwise-plugin-check" "$library" 20000
done
for scenario in twice threads fork exit close signals; do
  for settings in "$observe" "$adaptive"; do
    run "$settings" "$scratch/host" "$library" "$scenario"
  done
done
run "$table LINKWISE_TEST=1 LINKWISE_TEST_ALONE=1" "$scratch/host" "$library" in-force
run "LINKWISE_MODE=observe LINKWISE_TRACE=$scratch/full" "$scratch/host" "$library" full-disk
say "$runs runs, no memory error, no undefined behaviour"
