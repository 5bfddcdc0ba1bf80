#!/usr/bin/env bash
# Records one run on this machine, one rank a GPU (or NUM_RANKS ranks on the CPU over gloo).
#
#   runners/launch/single_node.sh                        # FSDP2, tiny
#   STRATEGY=zero2 MODEL=7b runners/launch/single_node.sh --batch-size 1 --seq-len 2048
#
# Edit, or set in the environment: what to train and where the run goes. Further options go to runners/train.py.
set -euo pipefail

STRATEGY=${STRATEGY:-fsdp2}
MODEL=${MODEL:-tiny}
NUM_RANKS=${NUM_RANKS:-$( (nvidia-smi --list-gpus 2>/dev/null || true) | wc -l)}
if ((NUM_RANKS == 0)); then NUM_RANKS=2; fi
OUT=${OUT:-traces/$STRATEGY-$MODEL-$NUM_RANKS}

TRAIN=$(dirname "$(dirname "$(readlink -f "$0")")")/train.py # of this checkout or wheel
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec torchrun --standalone --nproc-per-node "$NUM_RANKS" \
  "$TRAIN" --strategy "$STRATEGY" --model "$MODEL" --out "$OUT" "$@"
