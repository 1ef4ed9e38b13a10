#!/usr/bin/env bash
# The experiment of `script` mode on one node: trains with the config that is named.
#
#   bash rccl_exp.sh CONFIG
#
# NPROC_PER_NODE       ranks (default 1)
# AORTA_OVERRIDE_ARGS  options for the trainer: --override key=value …
# TORCH_PYTHON         interpreter with PyTorch (default python3)
# CVS_OUT_DIR          where torchrun leaves a log per rank
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

logs=()
if [[ -n "${CVS_OUT_DIR:-}" ]]; then
    logs=("--log_dir=${CVS_OUT_DIR}/torchrun" --tee=3)
fi
# The override arguments are words of their own, so they stay unquoted.
# shellcheck disable=SC2086
exec "${TORCH_PYTHON:-python3}" -m torch.distributed.run --standalone \
    --nproc_per_node="${NPROC_PER_NODE:-1}" --max_restarts=0 "${logs[@]}" \
    "${here}/../train.py" --config "$1" ${AORTA_OVERRIDE_ARGS:-}
