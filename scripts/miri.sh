#!/usr/bin/env bash
# Runs the rings of `wire` under Miri, which checks every memory access: `scripts/miri.sh`. Needs a nightly toolchain with miri; installs nothing.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust

if ! rustup run nightly cargo miri --version >/dev/null 2>&1; then
  say "SKIP miri: no nightly toolchain with miri; rustup component add --toolchain nightly miri rust-src"
  exit 0
fi
# proptest reads the clock and the file of earlier failures.
export MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_FAILURE_PERSISTENCE=off
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri
exec rustup run nightly cargo miri test --locked -p wire --lib -- pipe:: ring::
