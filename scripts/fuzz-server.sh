#!/usr/bin/env bash
# Sends a server requests made from its OpenAPI document, right and wrong ones, for some minutes (default 10); any answer other than the document
# says is a fault, and any 5xx but 503, which is the answer to more slow tasks than may wait. Needs python3 and, the first time, the package index: schemathesis goes into a venv in the user's cache.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
minutes=${1:-10}
venv=${XDG_CACHE_HOME:-$HOME/.cache}/linkwise/schemathesis
if ! [ -x "$venv/bin/schemathesis" ]; then
  python3 -m venv "$venv" && "$venv/bin/pip" install --quiet 'schemathesis>=4,<5' openapi-python-client || fail "schemathesis cannot be installed into $venv"
fi
build_all
folder=$(mktemp -d)
"${CARGO_TARGET_DIR:-target}/debug/linkwise" serve --cluster h100 --state "$folder/s.db" --listen 127.0.0.1:0 --rate 1000000 >"$folder/serve.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$folder"' EXIT
until grep -q listens "$folder/serve.log"; do kill -0 $server || fail "$(cat "$folder/serve.log")"; sleep 0.1; done
at=$(grep -o 'http:.*' "$folder/serve.log")
# The stream of events does not end, and the generator makes no lines of JSON.
cd "$folder" # it writes a folder of its findings
printf '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]\n' >schemathesis.toml
"$venv/bin/schemathesis" run "$at/openapi.json" --exclude-path /v1/events/stream --exclude-path /v1/place/stream --max-time $((minutes * 60)) --max-examples 100000 --request-timeout 30 \
  --continue-on-failure --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance
kill -0 $server || fail "the server ended"
