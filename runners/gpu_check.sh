#!/usr/bin/env bash
# Checks the recorder and the runners on one GPU, within ten minutes, and leaves traces of less than 16 MiB together.
#
#   OUT=gpu-check runners/gpu_check.sh
#
# Records: FSDP2 and DDP over NCCL with one rank (NCCL kernels, CUDA memory events), and FSDP2 with two ranks that share
# the GPU over gloo (a GPU's compute under a CPU backend's collectives). Needs torch with CUDA; where tracekit's own
# dependencies are at hand too, it ends with what tracekit reads in each.
set -euo pipefail
RUNNERS=$(dirname "$(readlink -f "$0")")
# Beside a checkout's runners lies its tracekit; a wheel's are inside it, and it is installed.
if [ -d "$RUNNERS/../tracekit" ]; then export PYTHONPATH="$RUNNERS/..${PYTHONPATH:+:$PYTHONPATH}"; fi

OUT=${OUT:-out/gpu-check}
PYTHON=${PYTHON:-python3}
export OMP_NUM_THREADS=1 KINETO_LOG_LEVEL=${KINETO_LOG_LEVEL:-6}
COMMON=(--model tiny --layers 2 --seq-len 64 --wait 2 --warmup 1 --active 2 --overwrite)

"$PYTHON" -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "gpu_check: torch sees no GPU here")'
"$PYTHON" -c 'import torch; print("gpu_check:", torch.cuda.get_device_name(0), "torch", torch.__version__)'

record() { # name, ranks, options of runners/train.py
  local name=$1 ranks=$2
  shift 2
  echo "== $name"
  timeout 150 "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$RUNNERS/train.py" \
    "${COMMON[@]}" --out "$OUT/$name" "$@" || echo "gpu_check: $name failed with $?"
}

record fsdp2-nccl 1 --strategy fsdp2
record ddp-nccl 1 --strategy ddp
record fsdp2-gloo-shared 2 --strategy fsdp2 --backend gloo

echo "== traces"
find "$OUT" -name 'rank*.json.gz' -exec ls -l {} +
size=$(du -sm "$OUT" | cut -f1)
[ "$size" -lt 16 ] || echo "gpu_check: $size MiB is more than 16"

if "$PYTHON" -c 'import polars, msgspec, isal, typer' 2>/dev/null; then
  for run in "$OUT"/*/; do
    echo "== $run"
    for table in steps collectives breakdown; do
      "$PYTHON" -m tracekit show "$table" "$run" --limit 12 || true
    done
  done
fi
