#!/usr/bin/env bash
# Kills the agent, slurmctld and slurmd of a real Slurm on this machine at random moments while a trace of jobs runs: no job may be lost or stuck, no GPU
# held twice or left taken, and slurmdbd and jobcomp have to have every job. Needs root and apt-get, or an installed Slurm and MariaDB.
#
#   scripts/slurm-kills.sh [SEEDS [JOBS]]      default: 5 seeds of 100 jobs, about 15 minutes; a seed that passed on the same sources is in
#                                              out/slurm-kills and is not repeated
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
seeds=${1:-5} jobs=${2:-100}
require_rust
done=$root/out/slurm-kills
mkdir -p "$(dirname "$done")"
touch "$done"
sources=$(sources_word)
for ((seed = 1; seed <= seeds; seed++)); do
  run="seed $seed, $jobs jobs, sources $sources"
  ! grep -qxF "$run" "$done" || continue
  LINKWISE_TEST_SLURM_SEED=$seed LINKWISE_TEST_SLURM_FAULT_JOBS=$jobs LINKWISE_TEST_SLURM_ACCOUNTS=1 \
    cargo test --locked --quiet --workspace --test slurm_agent -- --exact --nocapture faults::killed_daemons_cost_no_job_and_no_gpu_is_held_twice |
    tee /dev/stderr | { ! grep '^SKIP'; }
  printf '%s\n' "$run" >>"$done"
done
say "$seeds seeds of $jobs jobs: passed"
