#!/usr/bin/env bash
# Runs cargo of a toolchain that is new enough; installs one first if it is missing.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
exec cargo "$@"
