#!/usr/bin/env bash
# Runs every check in stages. Prints each stage with its seconds, failures in full, and as its last line:
#   N passed, N failed, N skipped
# The line counts every test once and every other stage once. A test that cannot run here prints
# `SKIP <name>: <reason>` and is counted as skipped. With CI=true, skips that .ci/allowed-skips does not list are one failure.
# Full output: target/test-logs/<stage>.log
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
want_pip

# The logs are read by awk below.
export CARGO_TERM_COLOR=never

logs=${CARGO_TARGET_DIR:-target}/test-logs
mkdir -p "$logs"
rm -f "$logs"/*.log
passed=0 failed=0 skipped=0
skips=$logs/skips # one line per skip: name, tab, reason
: >"$skips"
started=$SECONDS

# The last line is printed after a failure, too.
finish() {
  local rc=0
  if [ -s "$skips" ]; then
    say ""
    say "skipped:"
    sort -u "$skips" | awk -F'\t' '{ printf "  SKIP %s: %s\n", $1, $2 }'
    if [ "${CI:-}" = true ]; then
      local unlisted
      unlisted=$(sort -u "$skips" | awk -F'\t' '
        NR == FNR { sub(/#.*/, ""); gsub(/[ \t]+/, ""); if ($0 != "") allowed[$0] = 1; next }
        !($1 in allowed) { print $1 }' .ci/allowed-skips - | sort -u)
      if [ -n "$unlisted" ]; then
        say "error: skipped in CI without being listed in .ci/allowed-skips:"
        printf '%s\n' "$unlisted" | sed 's/^/  /'
        failed=$((failed + 1))
      fi
    fi
  fi
  [ "$failed" = 0 ] || rc=1
  say ""
  say "all stages: $((SECONDS - started)) s, full output in $logs"
  say "$passed passed, $failed failed, $skipped skipped"
  exit $rc
}

stage_line() { printf '%-8s %-7s %4d s%s\n' "$1" "$2" "$3" "${4:+   $4}"; }

# Lines of cargo that are irrelevant for a failure.
without_progress() { grep -vE '^ *(Compiling|Checking|Downloading|Downloaded|Updating|Locking|Adding|Fresh|Finished|Blocking) ' "$1"; }

# check NAME COMMAND...: one stage that counts as one check.
check() {
  local name=$1 begin=$SECONDS log
  shift
  log=$logs/$name.log
  if "$@" >"$log" 2>&1 </dev/null; then
    if grep -q "^SKIP $name: " "$log"; then
      skip "$name" "$(sed -n "s/^SKIP $name: //p" "$log" | head -n 1)"
      return 0
    fi
    passed=$((passed + 1))
    stage_line "$name" ok $((SECONDS - begin))
    return 0
  fi
  failed=$((failed + 1))
  stage_line "$name" FAILED $((SECONDS - begin)) "$*"
  without_progress "$log" | sed 's/^/    /'
  return 1
}

# skip NAME REASON: a stage that cannot run here.
skip() {
  skipped=$((skipped + 1))
  printf '%s\t%s\n' "$1" "$2" >>"$skips"
  stage_line "$1" skipped 0 "$2"
}

# shellcheck disable=SC2317 # called by check
# One set of features for programs and tests: `cargo build --workspace` alone leaves out those of the tests and would build every crate twice.
build() { cargo build --locked --workspace --lib --bins --examples --tests && cargo test --locked --workspace --no-run; }

# Programs whose tests compare times: they run alone, after all others.
alone='^(bench|pace|program|pytorch|ratios|real_nccl_bytes|shares)$'

# one_program NUMBER FOLDER LIBRARIES PROGRAM: one test program, in its package's folder; its output is $each/NUMBER.log. Where the shell runs in the
# background, SIGINT is ignored, and under nohup SIGHUP: tests send it.
one_program() {
  local name=${4##*/} begin=$SECONDS out=$each/$1.log rc
  name=${name%-*}
  printf '     Running %s (%s)\n' "$name" "$4" >"$out"
  (cd "$2" && LD_LIBRARY_PATH=$3 CARGO_MANIFEST_DIR=$2 exec env --default-signal=HUP,INT,QUIT "$4" --show-output) >>"$out" 2>&1 </dev/null
  rc=$?
  # A program that was killed leaves no result line.
  if [ $rc != 0 ] && ! grep -q '^test result: FAILED' "$out"; then
    printf 'error: %s ended with %s\ntest result: FAILED. 0 passed; 1 failed; 0 ignored;\n' "$name" "$rc" >>"$out"
  fi
  awk -v name="$name" -v s=$((SECONDS - begin)) '/^test result: / { if ($4 + $6 + $8 > 0) {
    printf "  %-30s %4d s  %s passed, %s failed, %s ignored\n", name, s, $4, $6, $8 } }' "$out"
}
export -f one_program

# Everything that cargo test finds: unit, integration and documentation tests, corpora included. As many programs at a time as there are cores: most wait
# more than they compute.
tests() {
  local begin=$SECONDS log=$logs/test.log rc=0 tally host
  export each=$PWD/$logs/each
  rm -rf "$each"
  mkdir -p "$each"
  # Tests install what they need; apt-get fails while another one runs, so that they take turns.
  if have apt-get && have flock; then
    mkdir -p "$each/bin"
    printf '#!/bin/sh\nexec flock "%s/apt.lock" "%s" "$@"\n' "$each" "$(command -v apt-get)" >"$each/bin/apt-get"
    chmod +x "$each/bin/apt-get"
    export PATH="$each/bin:$PATH"
  fi
  # cargo tells the runner what it would run, in which folder and with which libraries.
  host=$(rustc -vV | awk '$1 == "host:" { gsub(/-/, "_", $2); print toupper($2) }')
  env "CARGO_TARGET_${host}_RUNNER=$root/scripts/list-program.sh $each/list" \
    cargo test --locked --workspace --lib --bins --examples --tests >"$each/cargo.log" 2>&1 </dev/null || rc=1
  awk -F'\t' -v alone="$alone" '{ name = $3; sub(/.*\//, "", name); sub(/-[0-9a-f]+$/, "", name)
    printf "%03d\n%s\n%s\n%s\n", NR, $1, $2, $3 >(name ~ alone ? alone_list : list) }' \
    list="$each/side-by-side" alone_list="$each/alone" "$each/list"
  # shellcheck disable=SC2016 # expanded by the inner shell
  for how in side-by-side:"$(getconf _NPROCESSORS_ONLN)" alone:1; do
    [ ! -s "$each/${how%:*}" ] || xargs -d '\n' -n 4 -P "${how#*:}" bash -c 'one_program "$@"' one <"$each/${how%:*}"
  done
  cat "$each/cargo.log" "$each"/[0-9]*.log >"$log"
  cargo test --locked --workspace --no-fail-fast --doc -- --show-output 2>&1 </dev/null | tee -a "$log" | awk '
    / Doc-tests / { name = $NF }
    /^test result: / { if ($4 + $6 + $8 > 0) { printf "  %-30s doc     %s passed, %s failed, %s ignored\n", name, $4, $6, $8; fflush() } }'
  [ "${PIPESTATUS[0]}" = 0 ] || rc=1
  ! grep -q '^test result: FAILED' "$log" || rc=1
  # One line per skip goes to the list; the counts go to standard output. A test counts once however many SKIP lines it prints.
  tally=$(awk -v skips="$skips" '
    / Running |   Doc-tests / { binary++; section = "" }
    /^---- .* stdout ----$/ { section = $2 }
    /^(successes|failures|test result):/ { section = "" }
    match($0, /(^|\.\.\. )SKIP [^ :]+: /) {
      line = substr($0, RSTART); sub(/^.*SKIP /, "", line)
      name = line; sub(/: .*/, "", name); sub(/^[^:]*: /, "", line)
      printf "%s\t%s\n", name, line >>skips
      key = binary SUBSEP (section == "" ? name : section)
      if (!(key in seen)) { seen[key] = 1; quiet++ }
    }
    /^test .* \.\.\. ignored/ { reason = "marked #[ignore]"; if (match($0, /ignored, /)) reason = substr($0, RSTART + 9); printf "%s\t%s\n", $2, reason >>skips }
    /^test result: / { ok += $4; bad += $6; ignored += $8 }
    END { printf "%d %d %d", ok - quiet, bad, ignored + quiet }' "$log")
  local ok bad quiet
  read -r ok bad quiet <<<"$tally"
  # A test program that did not link leaves no result line.
  if [ "$rc" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + quiet))
  if [ "$bad" = 0 ]; then
    stage_line test ok $((SECONDS - begin)) "$ok passed, $quiet skipped"
    return 0
  fi
  stage_line test FAILED $((SECONDS - begin)) "$ok passed, $bad failed, $quiet skipped"
  awk '/^failures:$/ { on = 1 } on { print "    " $0 } /^test result: / { on = 0 }' "$log"
  grep -E '^error(\[|:)|\(signal: ' "$log" | sed 's/^/    /'
  return 1
}

say "Rust $(rust_version), $(getconf _NPROCESSORS_ONLN 2>/dev/null || echo '?') cores"
check hygiene scripts/hygiene.sh
if cargo fmt --version >/dev/null 2>&1; then check fmt cargo fmt --all --check -- --color never; else skip fmt "this toolchain has no rustfmt"; fi
if cargo clippy --version >/dev/null 2>&1; then
  # The features that are off by default compile as well.
  check clippy cargo clippy --locked --workspace --all-targets --features linkwise/otel,server/otel-test -- -D warnings
else
  skip clippy "this toolchain has no clippy"
fi
check build build || finish
# The fuzz targets are no members of the workspace; without this check they stop compiling unnoticed. libFuzzer is C++.
if command -v c++ >/dev/null 2>&1; then
  check fuzz cargo check --locked --manifest-path fuzz/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}/fuzz"
else
  skip fuzz "no C++ compiler"
fi
tests
finish
