#!/usr/bin/env bash
# Runs the tests of linkwise.torch with the real packages, and of `linkwise run` under torchrun on two hosts. PyTorch and its CUDA libraries (6 GB) go into a virtual environment in the user's
# cache once; no GPU is needed. `rm -r ~/.cache/linkwise/python` removes them.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
venv=${LINKWISE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/linkwise}/python
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import torch, lightning, transformers, accelerate, numpy' 2>/dev/null ||
  "$venv/bin/python" -m pip install numpy torch lightning transformers accelerate
cargo test --locked --workspace --test python --test launchers -- --nocapture training_loops torchrun
