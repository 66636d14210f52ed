#!/usr/bin/env bash
# Kills 200 rails at random moments under the real NCCL library and checks every byte (needs root). `scripts/test-net-deaths.sh 1000` kills more.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust

scripts/cargo.sh build --locked --package nccl-net
LINKWISE_TEST_DEATHS=${1:-200} scripts/cargo.sh test --locked --package nccl-net --test deaths -- --nocapture
