#!/usr/bin/env bash
# Makes sure that linkwise can be built: a C compiler (the bundled SQLite is C), git, and a Rust toolchain with
# rustfmt and clippy. Installs only missing parts and prints each step; a second run does nothing.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# The installation script of rustup.rs, from the server of the toolchains.
rustup_script=https://static.rust-lang.org/rustup/rustup-init.sh

# apt_install PACKAGE...: only what is missing reaches this function.
apt_install() {
  local as_root=()
  have apt-get || fail "missing: $*. There is no apt-get here; install these with your system's package manager"
  if [ "$(id -u)" != 0 ]; then
    have sudo || fail "missing: $*. This user is neither root nor has sudo; as root, run: apt-get install $*"
    as_root=(sudo)
  fi
  say "setup: installing with apt-get: $*"
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

packages=()
have cc || packages+=(gcc libc6-dev)
have git || packages+=(git)
if ! use_rust; then
  have curl || packages+=(curl ca-certificates)
fi
[ ${#packages[@]} = 0 ] || apt_install "${packages[@]}"

if use_rust; then
  say "setup: using Rust $(rust_version) ($(command -v cargo)); $rust_needed or newer is needed"
elif have rustup; then
  say "setup: Rust ${rust_needed} or newer is needed, found: $(rust_version || true); installing rustup's stable toolchain"
  rustup toolchain install stable --profile minimal --component rustfmt --component clippy
else
  say "setup: Rust ${rust_needed} or newer is needed, found: $(rust_version || true); installing it with rustup into ${CARGO_HOME:-$HOME/.cargo}"
  script=$(mktemp)
  trap 'rm -f "$script"' EXIT
  curl --proto '=https' --tlsv1.2 --retry 3 -sSfL "$rustup_script" -o "$script" ||
    fail "cannot download $rustup_script. Install Rust $rust_needed or newer by hand (rustup.rs), then try again"
  # Existing toolchains and shell profiles stay unchanged; use_rust finds the new one in the home folder.
  RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$script" -y --no-modify-path --profile minimal \
    --default-toolchain stable --component rustfmt --component clippy
fi
use_rust || fail "the toolchain that was installed is not usable; 'cargo --version' should say $rust_needed or newer"

for part in fmt clippy; do
  cargo "$part" --version >/dev/null 2>&1 && continue
  if have rustup; then
    say "setup: adding cargo $part"
    rustup component add "$([ "$part" = fmt ] && echo rustfmt || echo clippy)" ||
      say "setup: cargo $part could not be added; its stage of 'make test' will be skipped"
  else
    say "setup: this toolchain has no cargo $part; its stage of 'make test' will be skipped"
  fi
done
say "setup: ready"
