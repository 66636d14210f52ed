#!/usr/bin/env bash
# The plugin under AddressSanitizer, in the host that drives every interface. Needs a nightly toolchain; says SKIP without one.
# (Rust has no undefined-behaviour sanitizer; overflow and bounds checks are on in this build.)
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
rustc +nightly -vV >/dev/null 2>&1 || { say "SKIP sanitize-plugin: no nightly toolchain"; exit 0; }
target=$(rustc +nightly -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sanitize
RUSTFLAGS="-Zsanitizer=address -Clink-arg=-rdynamic -Coverflow-checks -Cdebug-assertions" cargo +nightly build --locked -p nccl-plugin --target "$target"
built=$CARGO_TARGET_DIR/$target/debug
for settings in "" "LINKWISE_MODE=observe LINKWISE_TRACE=$(mktemp -d)" "LINKWISE_MODE=adaptive LINKWISE_MEETING=local:sanitize-$$" \
  "LINKWISE_MODE=observe LINKWISE_TEST=1 LINKWISE_TEST_PANIC=1"; do
  say "== ${settings:-off}"
  # shellcheck disable=SC2086 # words of the settings
  env $settings ASAN_OPTIONS=detect_leaks=0 "$built/linkwise-plugin-check" "$built/liblinkwise_nccl.so" 20000 >/dev/null 2>&1 ||
    { env $settings ASAN_OPTIONS=detect_leaks=0 "$built/linkwise-plugin-check" "$built/liblinkwise_nccl.so" 20000 2>&1 | tail -n 30; exit 1; }
done
say "no memory error"
