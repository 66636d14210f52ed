#!/usr/bin/env bash
# Cases that harmed, or could harm, a job with the NCCL plugin: each is a test that failed once. Runs them on the real NCCL library of several
# releases (the bench, without GPUs) and prints a table in Markdown. Wheels come from the configured package index the first time.
#
#   scripts/test-plugin-hostile.sh [VERSION...]      default: 2.24.3 2.27.7 2.28.9 2.32.3
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
want_pip

versions=("$@")
[ $# -gt 0 ] || versions=(2.24.3 2.27.7 2.28.9 2.32.3)
# case | test binary | test | first and last minor release to which it applies ("-": does not depend on the release)
cases=(
  'one rank simulates groups (`ncclGroupSimulateEnd`)|launched|a_rank_that_simulates|27|99'
  'one rank captures graphs that it never launches|launched|a_rank_that_captures|27|99'
  'one host has `NCCL_PROTO=Simple`|launched|a_table_that_one_hosts|27|99'
  'cost tables differ for a reason that no setting shows|launched|an_arm_that_one_rank_lacks|27|99'
  'a canary: the rest stays at AUTO|launched|only_the_canary|28|99'
  'a job that may have processes outside (not `job = closed`)|job|a_job_that_is_not_said|21|26'
  'processes with different tables|job|processes_with_different|21|26'
  'wrong settings|real_nccl|wrong_settings|21|99'
  'panics in every entry|real_nccl|a_panic_in_every_entry|21|99'
  'settings as FIFO, folder, device, binary, endless|c_host|corrupt_and_unreadable|-|'
  'abort while a call waits|threads|a_waiting_call|-|'
  'simulated groups in 300 random schedules|simulated_groups||-|'
  'a process outside of the job, in a communicator with one of its processes|job|a_communicator_with_a_process_outside|-|'
  'cuts of the control network (needs root)|cuts||-|'
  'file systems that hang (needs root)|hanging||-|'
  'a leader or a member that falls silent; a stranger with the token|silence||-|'
  'forks, exits and closes without finalize|c_host|fork|-|'
)
cargo test --locked -q --workspace --no-run --test launched --test job --test real_nccl --test c_host --test threads --test simulated_groups --test cuts --test silence --test hanging

failed=0
# result BINARY TEST VERSION: ok, FAILED or skipped
result() {
  local log rc=0
  log=$(env "LINKWISE_NCCL_VERSIONS=$3" cargo test --locked -q --workspace --test "$1" "$2" -- --show-output 2>&1 </dev/null) || rc=$?
  if [ "$rc" != 0 ]; then
    printf '%s\n' "$log" | sed 's/^/    /' >&2
    echo FAILED
  elif grep -q '^SKIP ' <<<"$log"; then
    echo skipped
  else
    echo ok
  fi
}

{
  printf '| case |'
  printf ' %s |' "${versions[@]}"
  printf '\n|---|'
  printf -- '---|%.0s' "${versions[@]}"
  printf '\n'
}
for line in "${cases[@]}"; do
  IFS='|' read -r name binary test first last <<<"$line"
  printf '| %s |' "$name"
  if [ "$first" = - ]; then
    same=$(result "$binary" "$test" "${versions[0]}")
    [ "$same" != FAILED ] || failed=$((failed + 1))
    for _ in "${versions[@]}"; do printf ' %s |' "$same"; done
  else
    for version in "${versions[@]}"; do
      minor=$(cut -d. -f2 <<<"$version")
      if [ "$minor" -lt "$first" ] || [ "$minor" -gt "$last" ]; then
        printf ' - |'
        continue
      fi
      got=$(result "$binary" "$test" "$version")
      [ "$got" != FAILED ] || failed=$((failed + 1))
      printf ' %s |' "$got"
    done
  fi
  printf '\n'
done
[ "$failed" = 0 ]
