#!/usr/bin/env bash
# `cargo build` with arguments, and the time left while it runs: on a terminal one line that changes, elsewhere a line every 20 s. Warnings and errors
# are printed as they are. The time left is that of the parts done so far for each part that is left, so it is rough at the beginning.
#
#   scripts/build-with-time-left.sh ARGUMENT...
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
begin=$SECONDS shown=-100 last=""
on_terminal=false step=20
[ ! -t 1 ] || { on_terminal=true step=1; }

clear_line() { ! $on_terminal || [ -z "$last" ] || printf '\r\033[K'; }

# progress DONE ALL
progress() {
  local spent=$((SECONDS - begin)) left=""
  [ $((SECONDS - shown)) -ge $step ] || return 0
  shown=$SECONDS
  if [ "$1" -ge 10 ] && [ $spent -ge 5 ]; then
    left=$((spent * ($2 - $1) / $1))
    left=", about $(((left + 59) / 60)) min left"
    [ $((spent * ($2 - $1) / $1)) -ge 60 ] || left=", less than a minute left"
  fi
  last="building: $1 of $2 parts$left"
  if $on_terminal; then printf '\r\033[K%s' "$last"; else say "$last"; fi
}

# What cargo prints up to a carriage return: its line of progress, and lines before that.
told() {
  local line
  while IFS= read -r line; do
    if [[ $line =~ Building\ \[[^]]*\]\ ([0-9]+)/([0-9]+) ]]; then
      progress "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
    elif [[ ! $line =~ ^[[:space:]]*(Compiling|Fresh|Downloading|Downloaded|Updating|Finished|Checking|Blocking|Locking)\  ]] && [ -n "${line//[[:space:]]/}" ]; then
      clear_line
      last=""
      printf '%s\n' "$line"
    fi
  done <<<"${1//$'\033[K'/}"
}

CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=100 CARGO_TERM_COLOR=never cargo build "$@" 2>&1 </dev/null | {
  chunk=""
  while IFS= read -r -d $'\r' chunk; do told "$chunk"; done
  told "$chunk"
  clear_line
}
say "built in $((SECONDS - begin)) s"
