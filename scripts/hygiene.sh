#!/usr/bin/env bash
# Checks that the repository has no paths of one machine, no large files and no addresses of package registries.
# Prints each offender as file:line; the exit code is 1 if there is one.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

size_limit_bytes=409600
# The bracket keeps each pattern from matching its own line.
machine_paths='(^|[^A-Za-z0-9._-])/(wor[k]|far[m]|roo[t]|home/[a-z][a-z0-9_-]*)/'
registries='replace-wit[h]|^\[sourc[e]\.|^\[registr(y|ie[s])|spars[e]\+http|index-ur[l]|registry[.=][ "]*http|(index|static)\.crate[s]\.io'

# The checkout may belong to another user than the one that runs the test (common in containers).
git() { command git -c safe.directory='*' "$@"; }
git rev-parse --git-dir >/dev/null 2>&1 || { say "SKIP hygiene: not a git checkout"; exit 0; }

bad=0
report() {
  [ -n "$2" ] || return 0
  bad=1
  say "$1"
  printf '%s\n' "$2" | sed 's/^/  /'
}

report "absolute paths of one machine (write them relative to the repository):" \
  "$(git grep -nIE "$machine_paths" -- . ':!Cargo.lock' || true)"
report "addresses of package registries (they belong into the user's own configuration):" \
  "$(git grep -nIE "$registries" -- . ':!Cargo.lock' || true)"
report "packages that do not come from crates.io:" \
  "$(awk '/^source = / && $0 != "source = \"registry+https://github.com/rust-lang/crates.io-index\"" { print FILENAME ":" FNR ": " $0 }' Cargo.lock)"
report "files over $size_limit_bytes bytes (fetch or generate them instead):" \
  "$(git ls-files -z | while IFS= read -r -d '' file; do
    [ -f "$file" ] || continue
    bytes=$(wc -c <"$file")
    if [ "$bytes" -gt $size_limit_bytes ]; then say "$bytes $file"; fi
  done)"

report "names in .ci/allowed-skips that no test prints (rename or delete them):" \
  "$(sed -n 's/^\([a-z][a-z0-9_]*\).*/\1/p' .ci/allowed-skips | while IFS= read -r name; do
    git grep -qw "$name" -- crates lab integrations || say "$name"
  done)"

exit $bad
