#!/usr/bin/env bash
# A server under 20 requests a second for MINUTES (default 30): prints its memory every minute, and fails if it grows by more than 8 MiB an
# hour (plus 8 MiB) after the first quarter, or if a request fails.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
exec nice -n 5 cargo run --locked --quiet --workspace --example load -- --gpus 256 --soak "${MINUTES:-30}"
