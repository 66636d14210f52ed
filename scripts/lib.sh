# shellcheck shell=bash
# Functions for the other scripts; sourced, never run. Needs bash and awk.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

# The oldest Rust that builds the workspace; Cargo.toml defines it.
rust_needed=$(awk -F'"' '/^rust-version *=/ { print $2; exit }' Cargo.toml)

# A word that changes with the sources of this checkout, committed or not: what ran on other sources is run again.
sources_word() {
  git -C "$root" ls-files -z --cached --others --exclude-standard crates integrations lab Cargo.lock | (cd "$root" && xargs -0 sha256sum 2>/dev/null) | sha256sum | cut -c1-16
}

say() { printf '%s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# version_at_least HAVE NEED: true when HAVE (such as 1.91.0-nightly) is NEED or newer.
version_at_least() {
  awk -v have="$1" -v need="$2" 'BEGIN {
    split(have, h, /[.-]/); split(need, n, /[.-]/)
    for (i = 1; i <= 3; i++) { if (h[i] + 0 > n[i] + 0) exit 0; if (h[i] + 0 < n[i] + 0) exit 1 }
    exit 0
  }'
}

# The version of the rustc on PATH, or nothing. A rustup without a toolchain counts as nothing.
rust_version() { rustc --version 2>/dev/null </dev/null | awk '{ print $2; exit }'; }

rust_is_new_enough() {
  local found
  have cargo && found=$(rust_version) && [ -n "$found" ] && version_at_least "$found" "$rust_needed"
}

# Puts a new enough toolchain first on PATH, without installing anything: the one in use, else the one
# in the home folder, else rustup's `stable`. False if there is none.
use_rust() {
  rust_is_new_enough && return 0
  local home_bin=${CARGO_HOME:-${HOME:-/nonexistent}/.cargo}/bin
  if [ -x "$home_bin/cargo" ]; then
    PATH=$home_bin:$PATH
    export PATH
    hash -r
    rust_is_new_enough && return 0
  fi
  if have rustup && rustup toolchain list 2>/dev/null | grep -q '^stable'; then
    export RUSTUP_TOOLCHAIN=stable
    rust_is_new_enough && return 0
    unset RUSTUP_TOOLCHAIN
  fi
  return 1
}

# Makes sure that there is a toolchain, or ends the script with the reason.
require_rust() {
  if ! { use_rust && have cc; }; then
    "$root/scripts/setup.sh" || exit 1
    use_rust || fail "no Rust $rust_needed or newer after setup; install one from rustup.rs and try again"
  fi
}

# Builds everything with the features and the profile of the tests, so that nothing is built twice.
build_all() { cargo build --locked --quiet --workspace --lib --bins --examples --tests; }

# run_example NAME ARGUMENTS...: ends the script with this example.
run_example() {
  local name=$1
  shift
  build_all || exit 1
  exec "${CARGO_TARGET_DIR:-target}/debug/examples/$name" "$@"
}

# The NCCL bench fetches libraries with pip. If pip is missing, this function installs it where that needs no password; otherwise the tests
# of the bench print SKIP.
want_pip() {
  python3 -m pip --version >/dev/null 2>&1 && return 0
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    have sudo && sudo -n true 2>/dev/null || { say "note: python3 with pip is missing: no NCCL library can be fetched"; return 0; }
    as_root=(sudo -n)
  fi
  have apt-get || { say "note: python3 with pip is missing: no NCCL library can be fetched"; return 0; }
  say "installing with apt-get: python3 python3-pip (they fetch the NCCL library for tests)"
  { "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3 python3-pip; } >/dev/null 2>&1 </dev/null ||
    say "note: apt-get could not install python3-pip; tests that need an NCCL library will be skipped"
}

# zig_cc FOLDER TARGET GLIBC: writes FOLDER/cc, a C compiler and linker for systems with this glibc (ZIG_PYTHON has the package ziglang).
# zig's driver rejects a few flags of rustc, and has its own unwinder instead of gcc's.
zig_cc() {
  cat >"$1/cc" <<WRAPPER
#!/usr/bin/env bash
args=()
for a in "\$@"; do
  case \$a in
    -lgcc_s) args+=(-lunwind) ;;
    -lgcc | -Wl,--no-undefined-version | -Wl,-O1 | --target=*) ;;
    *) args+=("\$a") ;;
  esac
done
exec "${ZIG_PYTHON:-python3}" -m ziglang cc -target ${2%%-*}-linux-gnu.$3 "\${args[@]}"
WRAPPER
  chmod +x "$1/cc"
}
