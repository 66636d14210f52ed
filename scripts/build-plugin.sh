#!/usr/bin/env bash
# Builds the NCCL plugin, and the program that checks it, for systems with glibc 2.28 and later (RHEL 8, Debian 10, Ubuntu 20.04), and checks that
# they need nothing newer.
#
#   scripts/build-plugin.sh [OUT]        OUT/liblinkwise_nccl.so and OUT/linkwise-plugin-check; default: out/
#
# The linker is zig's, which supports old versions of glibc (python3 -m pip install ziglang).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
glibc=2.28
out=${1:-out}
target=$(rustc -vV | sed -n 's/^host: //p')
python3 -c 'import ziglang' 2>/dev/null || fail "no zig; install it with: python3 -m pip install ziglang"
have objdump || fail "no objdump, which says what a library needs; install binutils"

mkdir -p "$out"
wrapper=$(mktemp -d)
trap 'rm -rf "$wrapper"' EXIT
zig_cc "$wrapper" "$target" $glibc
variable=CARGO_TARGET_$(printf '%s' "$target" | tr 'a-z-' 'A-Z_')_LINKER
env "$variable=$wrapper/cc" RUSTFLAGS="-Clinker-flavor=gcc -Clink-self-contained=no" \
  cargo build --locked --release -p nccl-plugin --target "$target"
built=${CARGO_TARGET_DIR:-target}/$target/release
cp "$built/liblinkwise_nccl.so" "$built/linkwise-plugin-check" "$out/"

for file in liblinkwise_nccl.so linkwise-plugin-check; do
  symbols=$(objdump -T "$out/$file") || fail "objdump cannot read $out/$file"
  newest=$(grep -o 'GLIBC_[0-9.]*' <<<"$symbols" | sed 's/GLIBC_//' | sort -V | tail -n 1) || true
  [ -n "$newest" ] || fail "$file names no version of glibc: it is not linked as intended"
  version_at_least "$glibc" "$newest" || fail "$file needs glibc $newest, newer than $glibc"
  say "$out/$file: needs glibc $newest"
done
