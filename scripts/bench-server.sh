#!/usr/bin/env bash
# Decisions per second of the engine and of a server in front of it, at 1,024 GPUs; about 20 seconds after the build. Arguments: hosts,
# seconds of each part.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
# The profile of tests and demo, so that nothing is built twice.
exec cargo run --locked --quiet --example load -- "${@:-128}"
