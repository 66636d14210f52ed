#!/usr/bin/env bash
# Runs every placement comparison of the documents, each into a separate file.
# Resumable: comparisons that are finished for this commit are skipped. Arguments are words; only comparisons whose names contain one of
# them run (no arguments: all), for example `scripts/bench-place.sh real scenarios`.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

scripts/cargo.sh build --locked --package linkwise-lab
lab=${CARGO_TARGET_DIR:-target}/debug/linkwise-lab

# A tree with uncommitted changes may differ at every run: its results go to a marked folder.
commit=$(git rev-parse --short HEAD 2>/dev/null || say unknown)
git diff --quiet HEAD -- 2>/dev/null || commit=$commit-changed
out=out/bench-place/$commit
mkdir -p "$out/seeds"
# A run takes long: a build meanwhile must not change its program.
cp "$lab" "$out/linkwise-lab"
lab=$out/linkwise-lab

# The same folder as in the program: LINKWISE_DATA, else shared/data next to the checkout.
data=${LINKWISE_DATA:-../shared/data}
tables=$data/bandpilot

names=() commands=()
# bench NAME ARGUMENT...: `linkwise-lab ARGUMENT...`, into NAME.txt. No argument holds a space: they are kept as one line.
bench() {
  names+=("$1")
  commands+=("${*:2}")
}

# --- The measured tables, the main result. Fast methods with the protocol of the papers; networks follow separately.
real=(evaluate --truth "$tables" --resume "$out/seeds")
cheap=even,random,default,topo,topo-v4,topo-greedy,slurm-bestfit,slurm-topo,bw-greedy,cascore,upper-litegd,ideal-bandpilot,bandpilot-v4/truth,bound,gp,gp+3
networks=random,topo,eha,pts,bandpilot,bandpilot-v4,exact/transformer,exact/linear,gp
for file in h100 het4mix; do
  for samples in 100 250; do
    bench "scenarios-$file-$samples" evaluate --scenarios "$tables/peer-scenarios-$file.jsonl" --samples "$samples" --design random --seeds 3
  done
  bench "scenarios-$file-100-stratified" evaluate --scenarios "$tables/peer-scenarios-$file.jsonl" --samples 100 --seeds 3
done
bench real-h100-16mib "${real[@]}" --cluster h100 --sizes 16MiB --methods $cheap --by-k
bench real-h100-2gib "${real[@]}" --cluster h100 --sizes 2GiB --missing restrict --methods $cheap --by-k
bench real-h100-16mib-20-seeds "${real[@]}" --cluster h100 --sizes 16MiB --full --per-k 10
bench real-h100-2gib-20-seeds "${real[@]}" --cluster h100 --sizes 2GiB --missing restrict --full --per-k 10
for outliers in remove replace; do
  bench real-h100-16mib-outliers-$outliers "${real[@]}" --cluster h100 --sizes 16MiB --outliers $outliers --methods $cheap
done
for load in idle common intensive; do
  bench real-h100-16mib-$load "${real[@]}" --cluster h100 --sizes 16MiB --contention $load --per-k 10
done
bench real-h100-16mib-physical "${real[@]}" --cluster h100 --sizes 16MiB --contention common --sharing physical --per-k 10
bench real-h100-online "${real[@]}" --cluster h100 --sizes 16MiB --per-k 10 --online
for cluster in het-ra het-va het-4mix; do
  bench composed-$cluster "${real[@]}" --cluster $cluster --methods $cheap
done
bench composed-het-4mix-common "${real[@]}" --cluster het-4mix --contention common --per-k 10

# --- Simulated sites of 16 to 128 hosts: switches, rails, defects, noise, wrong files (docs/research/sites.md). A minute or two;
# every finished site is kept.
bench sites sites --resume "$out/sites"

# --- Simulated truths: formulas of other forms than linkwise's physics, and the physics itself; never the headline.
ours=gp,gp+3,bound,topo,random
simulated=(--methods "$ours" --resume "$out/seeds")
for cluster in h100 het-ra het-va het-4mix; do
  bench simulated-rule-r-$cluster evaluate --cluster $cluster --truth rule-r "${simulated[@]}" --per-k 10
done
for truth in ring-search shared-nics-slow-host p-norm fabric; do
  for cluster in h100 het-4mix; do
    bench simulated-$truth-$cluster evaluate --cluster $cluster --truth $truth "${simulated[@]}" --per-k 5
  done
done

# --- Networks: about 10 s to train on 250 samples, 40 s on 1,000, on one core; deciding with them is slow, so fewer requests.
bench networks-h100-16mib "${real[@]}" --cluster h100 --sizes 16MiB --methods $networks --per-k 5
bench networks-het-4mix "${real[@]}" --cluster het-4mix --methods $networks --per-k 5
bench networks-litegd-h100 "${real[@]}" --cluster h100 --sizes 16MiB --methods litegd,upper-litegd,gp --per-k 1
bench curves-h100 "${real[@]}" --cluster h100 --sizes 16MiB --curves transformer,linear,gp --seeds 1 --per-k 5
bench curves-het-4mix "${real[@]}" --cluster het-4mix --curves linear,gp --seeds 1 --per-k 5
bench reproduce-bandpilot reproduce bandpilot all --truth "$tables" --per-k 3
bench reproduce-litegd reproduce litegd all --truth "$tables" --per-k 1 --quick
bench reproduce-litegd-network reproduce litegd figure-9 figure-11 --truth "$tables" --per-k 1

# --- Run them.
wanted() {
  [ $# -gt 1 ] || return 0
  local name=$1 word
  shift
  for word in "$@"; do case $name in *"$word"*) return 0 ;; esac; done
  return 1
}

total=${#names[@]} made=0 kept=0 skipped=0 failed=0
rows=()
for i in "${!names[@]}"; do
  name=${names[$i]} file=$out/${names[$i]}.txt
  wanted "$name" "$@" || continue
  head="[$((i + 1))/$total] $((SECONDS / 60)) min  $name"
  if [ -s "$file" ]; then
    say "$head: there"
    kept=$((kept + 1))
    rows+=("$(printf '%-34s %8s  %s' "$name" there "$file")")
    continue
  fi
  if [[ ${commands[$i]} == *"$tables"* && ! -d $tables ]]; then
    say "SKIP bench-place $name: no folder $tables (set LINKWISE_DATA; docs/data.md)"
    skipped=$((skipped + 1))
    rows+=("$(printf '%-34s %8s  %s' "$name" SKIP "no published tables")")
    continue
  fi
  say "$head ..."
  begin=$SECONDS
  {
    say "linkwise-lab ${commands[$i]}"
    say
  } >"$file.part"
  # shellcheck disable=SC2086  # words: see bench
  if "$lab" ${commands[$i]} >>"$file.part" 2>"$file.log"; then
    mv "$file.part" "$file"
    rm -f "$file.log"
    made=$((made + 1))
    rows+=("$(printf '%-34s %6d s  %s' "$name" $((SECONDS - begin)) "$file")")
  else
    say "FAILED $name: $(tail -n 1 "$file.log") (all of it: $file.log)"
    failed=$((failed + 1))
    rows+=("$(printf '%-34s %8s  %s' "$name" FAILED "$file.log")")
  fi
done

say
if [ ${#rows[@]} -gt 0 ]; then printf '%s\n' "${rows[@]}"; fi
say
say "bench-place: $made made, $kept there before, $skipped skipped, $failed failed, $((SECONDS / 60)) min; in $out"
[ "$failed" -eq 0 ]
