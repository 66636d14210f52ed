#!/usr/bin/env bash
# `cargo install` with the feature `bundled`: the command alone is copied, and has the NCCL plugins, which its first use unpacks into the user's cache.
# Installs into a folder of its own and removes it. `--debug` builds with the profile of the tests, which is faster where they were built.
#
#   scripts/test-cargo-install.sh [--debug]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check() { say "ok: $1"; }
cargo install --locked --quiet --path crates/linkwise --features bundled --root "$work/root" "$@"
[ "$(find "$work/root/bin" -type f -printf '%f\n')" = linkwise ] || fail "more than the command was installed: $(ls "$work/root/bin")"
check "cargo install: one file of $(du -m "$work/root/bin/linkwise" | cut -f1) MB"
mkdir "$work/home" "$work/folder"
cd "$work/folder"
# Nothing of the checkout helps: neither LINKWISE_PLUGIN nor the target folder.
clean() { env -i PATH=/usr/bin:/bin HOME="$work/home" "$@"; }
# shellcheck disable=SC2016 # expanded by the job
clean "$work/root/bin/linkwise" run --observe -- sh -c 'echo "$NCCL_TUNER_PLUGIN"' >plugin 2>log || fail "run: $(cat log)"
case $(cat plugin) in "$work/home/.cache/linkwise/plugins-"*/liblinkwise_nccl.so) ;; *) fail "run uses $(cat plugin)" ;; esac
check "linkwise run finds the plugin in the cache"
clean "$work/root/bin/linkwise" doctor install >doctor 2>&1 || fail "doctor install: $(cat doctor)"
for line in '^PASS plugin:' '^PASS network plugin:' '^PASS permissions:'; do grep -q "$line" doctor || fail "no \`$line\`: $(cat doctor)"; done
check "doctor install passes both plugins"
echo damaged >"$(cat plugin)"
# shellcheck disable=SC2016
clean "$work/root/bin/linkwise" plugin check >log 2>&1 || fail "plugin check after damage: $(cat log)"
check "a damaged file in the cache is mended"
# shellcheck disable=SC2016
if env -i PATH=/usr/bin:/bin HOME=/dev/null "$work/root/bin/linkwise" run --observe -- true >log 2>&1; then fail "a home that is no folder is no error"; fi
grep -q 'set XDG_CACHE_HOME' log || fail "the error has no remedy: $(cat log)"
check "without a cache that can be written there is an error with a remedy"
cargo uninstall --quiet --root "$work/root" linkwise
say "cargo install brings the plugins"
