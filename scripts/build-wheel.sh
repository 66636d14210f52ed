#!/usr/bin/env bash
# Builds the Python wheel: the command, the NCCL plugins, the program that checks them and the Python module, for glibc 2.28 and later
# (RHEL 8, Debian 10, Ubuntu 20.04) and every CPython from 3.9 on.
#
#   scripts/build-wheel.sh [OUT [kubernetes] [aarch64]]   OUT/linkwise-VERSION-cp39-abi3-manylinux_2_28_x86_64.whl; default: out/
#
# With `kubernetes` also OUT/linkwise-kubernetes, the controller, which is in the container image and not in the wheel. With `aarch64` the wheel for such
# hosts, cross-built: needs `rustup target add aarch64-unknown-linux-gnu`.
#
# `scripts/build-wheel.sh --has-zig` builds nothing; it says by its exit code if zig is there or can be had.
#
# The linker is zig's, from the package index, in a virtual environment in the user's cache. Without it the wheel is for this machine's glibc
# and its name says so. One cargo build makes all programs; scripts/wheel.py packs them, the same bytes from the same sources.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cache=${LINKWISE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/linkwise}

# A Python that has ziglang: python3, else the tools in the cache, made on the first run.
zig_python() {
  local venv=$cache/zig
  if python3 -c 'import ziglang' 2>/dev/null; then echo python3; return 0; fi
  if "$venv/bin/python" -c 'import ziglang' 2>/dev/null; then echo "$venv/bin/python"; return 0; fi
  { python3 -m venv "$venv" && "$venv/bin/python" -m pip install -q ziglang; } >&2 && echo "$venv/bin/python"
}
if [ "${1:-}" = --has-zig ]; then
  zig_python >/dev/null
  exit
fi
require_rust
have readelf || fail "no readelf, which says what a library needs; install binutils"
have python3 || fail "no python3, which packs the wheel"
out=${1:-out}
[ $# = 0 ] || shift
machine='' kubernetes=''
for word in "$@"; do
  case $word in
    kubernetes) kubernetes=1 ;;
    aarch64 | x86_64) machine=$word ;;
    *) fail "$word: kubernetes, aarch64 or x86_64 was expected" ;;
  esac
done
profile=${LINKWISE_TEST_WHEEL_PROFILE:-wheel}
host=$(rustc -vV | sed -n 's/^host: //p')
target=${machine:+$machine-unknown-linux-gnu}
target=${target:-$host}
glibc=2.28
folder=${CARGO_TARGET_DIR:-target}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The time in the wheel is the commit's; C code gets a fixed one, because it is built again whenever this variable changes.
settings=("CARGO_PROFILE_DEV_DEBUG=none" "SOURCE_DATE_EPOCH=315532800")
if [ "$target" != "$host" ]; then
  [ "$profile" = wheel ] || fail "LINKWISE_TEST_WHEEL_PROFILE=$profile is for this machine, not for $machine"
  have rustup && rustup target list --installed | grep -qx "$target" || fail "no standard library of Rust for $machine; rustup target add $target"
fi
if [ "$profile" = wheel ] && ZIG_PYTHON=$(zig_python); then
  # In the target folder: with another linker cargo builds everything again, also after a build that was cut off.
  mkdir -p "$folder/zig-$target"
  cc=$(realpath "$folder/zig-$target")/cc
  zig_cc "$(dirname "$cc")" "$target" $glibc
  upper=$(printf '%s' "$target" | tr 'a-z-' 'A-Z_')
  # Without the paths of this machine the same sources give the same bytes elsewhere.
  remap="--remap-path-prefix=$root=linkwise --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
  settings+=("CARGO_TARGET_${upper}_LINKER=$cc" "CC_${target//-/_}=$cc" "RUSTFLAGS=-Clinker-flavor=gcc -Clink-self-contained=no $remap")
else
  [ "$target" = "$host" ] || fail "no zig (python3 -m pip install ziglang), which links for $machine"
  [ "$profile" = wheel ] && say "note: no zig (python3 -m pip install ziglang): the wheel will need the glibc of this machine"
  glibc=$(getconf GNU_LIBC_VERSION | awk '{ print $2 }')
fi

case $profile in
  wheel)
    env "${settings[@]}" cargo build --locked --profile wheel --target "$target" -p linkwise -p nccl-plugin -p nccl-net -p python
    built=$folder/$target/wheel
    ;;
  dev) # for a quick look: what the tests have built
    env "${settings[@]}" cargo build --locked --workspace
    built=$folder/debug
    ;;
  *) fail "LINKWISE_TEST_WHEEL_PROFILE=$profile; wheel or dev was expected" ;;
esac

files=(linkwise linkwise-plugin-check liblinkwise_nccl.so liblinkwise_nccl_net.so liblinkwise_python.so)
for file in "${files[@]}"; do
  symbols=$(readelf -W --dyn-syms "$built/$file") || fail "readelf cannot read $built/$file"
  newest=$(grep -o 'GLIBC_[0-9.]*' <<<"$symbols" | sed 's/GLIBC_//' | sort -V | tail -n 1) || true
  [ -n "$newest" ] || fail "$file names no version of glibc: it is not linked as intended"
  version_at_least "$glibc" "$newest" || fail "$file needs glibc $newest, newer than $glibc"
  cp "$built/$file" "$work/"
  # Builds of the wheel are stripped by their profile.
  if [ "$profile" = dev ]; then strip --strip-debug "$work/$file"; fi
done
mkdir -p "$out"
if [ -n "$kubernetes" ]; then
  [ "$profile" != wheel ] || env "${settings[@]}" cargo build --locked --profile wheel --target "$target" -p linkwise-kubernetes
  cp "$built/linkwise-kubernetes" "$out/"
fi
python3 scripts/wheel.py "$work" "$out" "manylinux_${glibc/./_}_${target%%-*}"
