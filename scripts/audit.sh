#!/usr/bin/env bash
# Checks every dependency with cargo-deny (deny.toml): licences, sources, duplicates, known vulnerabilities.
# Installs cargo-deny into target/tools if it is missing. A check that cannot run here prints SKIP.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust

tools=${CARGO_TARGET_DIR:-target}/tools
case $tools in /*) ;; *) tools=$root/$tools ;; esac
PATH=$tools/bin:$PATH
if ! have cargo-deny; then
  say "audit: installing cargo-deny into $tools (once; takes minutes)"
  # A separate target folder, so that the workspace's artefacts stay unchanged.
  if ! CARGO_TARGET_DIR=$tools/build cargo install --locked --quiet --root "$tools" cargo-deny; then
    say "SKIP audit: cargo-deny is not installed and could not be (no network, or the build failed)"
    exit 0
  fi
  rm -rf "$tools/build"
fi

cargo deny --version
cargo deny --log-level warn check --hide-inclusion-graph licenses bans sources

# The advisories need a copy of the public advisory database.
if cargo deny --log-level error fetch db 2>/dev/null; then
  cargo deny --log-level warn check --hide-inclusion-graph advisories
else
  say "SKIP audit-advisories: the advisory database cannot be downloaded from here"
fi
