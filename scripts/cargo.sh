#!/usr/bin/env bash
# cargo of a toolchain that is new enough; installs one first if there is none.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
exec cargo "$@"
