#!/usr/bin/env bash
# Records one run on several machines: start this on every one of them, with the same values.
#
#   HEAD=node0 NUM_NODES=2 OUT=/shared/traces/fsdp2-7b runners/launch/multi_node.sh
#
# Edit, or set in the environment:
#   HEAD       a machine that all others reach by this name; torchrun's meeting point runs there
#   PORT       a free port on it
#   NUM_NODES  how many machines
#   OUT        the run folder. On a shared file system all ranks write into it. Without one every machine keeps the
#              files of its own ranks: copy the rank*.json.gz and rank*.meta.json to where manifest.json is (rank 0's).
#   NCCL_SOCKET_IFNAME  the network interface, where NCCL picks the wrong one
# Further options go to runners/train.py.
set -euo pipefail

: "${HEAD:?set HEAD to the name of the machine where all meet}"
PORT=${PORT:-29500}
NUM_NODES=${NUM_NODES:-2}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
STRATEGY=${STRATEGY:-fsdp2}
MODEL=${MODEL:-7b}
OUT=${OUT:-traces/$STRATEGY-$MODEL-$((NUM_NODES * GPUS_PER_NODE))}

TRAIN=$(dirname "$(dirname "$(readlink -f "$0")")")/train.py # of this checkout or wheel
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec torchrun --nnodes "$NUM_NODES" --nproc-per-node "$GPUS_PER_NODE" \
  --rdzv-backend c10d --rdzv-endpoint "$HEAD:$PORT" --rdzv-id "${RUN_ID:-tracekit}" \
  "$TRAIN" --strategy "$STRATEGY" --model "$MODEL" --out "$OUT" "$@"
