#!/usr/bin/env bash
# The test `real_slurm` on other releases of Slurm: small systems of Debian (scripts/slurm-root.sh), a plugin built in each, and the same test in
# them. Needs root, mmdebstrap and Debian's addresses; about two minutes each after the first time.
#
#   scripts/test-slurm-releases.sh [SUITE...]      default: trixie (Slurm 24.11); forky is 26.05
#
# Where an archive has no source of its slurmctld, upstream's part of it is taken alone; where it has none at all, put a configured source tree of that
# release into SYSTEM/root/.cache/linkwise/slurm/VERSION-OF-THE-PACKAGE.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
[ $# -gt 0 ] || set -- trixie
[ "$(id -u)" = 0 ] || fail "needs root"
require_rust
program=$(cargo test --workspace --locked --test real_slurm --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*real_slurm[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || fail "the test does not build: cargo test --workspace --test real_slurm --no-run"
export LINKWISE_TEST_SLURM_UNPATCHED=1
failed=0
for suite in "$@"; do
  system=$(scripts/slurm-root.sh "$suite")
  release=$(scripts/slurm-in-root.sh "$system" slurmctld -V)
  log=$(mktemp)
  if scripts/slurm-in-root.sh "$system" "$program" jobs_of_a_real_slurm segments_of_blocks --nocapture --test-threads=1 >"$log" 2>&1 && ! grep -q '^SKIP' "$log"; then
    say "$suite, $release: passed: $(grep -m 1 'ran on linkwise' "$log")"
  else
    tail -n "${LINKWISE_TEST_SLURM_LINES:-40}" "$log"
    say "$suite, $release: FAILED"
    failed=1
  fi
  rm -f "$log"
done
exit $failed
