#!/usr/bin/env bash
# The page of `linkwise serve` with an example cluster and a few jobs: starts a server for a moment, places the jobs, takes a picture of the
# page into out/, and stops the server. Without Chromium the page is saved as HTML. Needs a built linkwise (scripts/demo.sh runs it).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

linkwise=${CARGO_TARGET_DIR:-target}/debug/linkwise
folder=out/serve
rm -rf "$folder"
mkdir -p "$folder"
log=$folder/serve.log
: >"$log"
profile=$(mktemp -d)
"$linkwise" serve --cluster examples/roce-leaf-spine.yaml --state "$folder/site.db" --listen 127.0.0.1:0 >"$log" 2>&1 &
server=$!
stop() {
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  rm -rf "$profile"
}
trap stop EXIT
for _ in $(seq 100); do
  grep -q listens "$log" && break
  kill -0 "$server" 2>/dev/null || fail "the server ended: $(cat "$log")"
  sleep 0.1
done
port=$(sed -n 's/.*listens on http:.*:\([0-9]*\)$/\1/p' "$log")
[ -n "$port" ] || fail "the server does not say where it listens: $(cat "$log")"

# http METHOD PATH [JSON]: the body of the answer.
http() {
  local body=${3:-}
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  printf '%s %s HTTP/1.0\r\nhost: localhost:%s\r\ncontent-type: application/json\r\ncontent-length: %s\r\n\r\n%s' \
    "$1" "$2" "$port" "${#body}" "$body" >&3
  sed '1,/^\r$/d' <&3
  exec 3<&- 3>&-
}

for job in train-a:64 train-b:24 eval-c:12 notebook-3:2 sweep-1:16; do
  http POST /v1/allocations "{\"gpus\": ${job#*:}, \"commit\": \"${job%:*}\"}" >/dev/null
done
http POST /v1/hosts/drain '{"gpus": ["gpu-017"], "reason": "NIC 4 flaps"}' >/dev/null

chromium=${LINKWISE_CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
shot() { # shot FILE PATH HEIGHT
  "$chromium" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --hide-scrollbars --user-data-dir="$profile/$RANDOM" --window-size="1280,$3" \
    --screenshot="$root/out/$1.png" "http://localhost:$port$2" >/dev/null 2>&1 && [ -s "out/$1.png" ]
}
if [ -n "$chromium" ] && shot page / 1500 && shot page-job /jobs/train-a 1500; then
  say "page: $root/out/page.png and page-job.png"
else
  http GET / >out/page.html
  say "page: $root/out/page.html, without its colours: no Chromium to take a picture with"
fi
say "look at it yourself:"
say "  $linkwise serve --state $folder/site.db"
say "  xdg-open http://localhost:7878/"
