#!/usr/bin/env bash
# Prove and measure the GPU path on a machine without network that has torch for CUDA, but not all other packages:
#   scripts/gpu_offline.sh PART WHEELS OUT
# PART: check, extraction, training or finetuning; each takes less than nine minutes. WHEELS: folder of the wheels that
# the machine lacks (docs/performance.md#a-gpu-without-network). OUT: folder for what is found.
set -u
if [ $# -ne 3 ]; then
  sed -n 2,5p "$0" >&2
  exit 2
fi
part=$1 wheels=$(realpath "$2") out=$(realpath -m "$3") python=${PYTHON:-python3}
cd "$(dirname "$0")/.." || exit 1
site=${TMPDIR:-/tmp}/daamctl-site work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$site"
if [ ! -e "$site/.ready" ]; then
  "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$wheels"/*.whl || exit 1
  touch "$site/.ready"
fi
export PYTHONPATH=$site:$PWD PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
failed=0
run() { # SECONDS WORD...: goes on after a failure
  timeout "$1" "${@:2}" || { echo "FAILED: ${*:2}" >&2; failed=1; }
}
check() { run $(($1 + 20)) "$python" -m benchmarks.gpu_check "${@:2}" --out "$out" --limit "$1"; }
measure() { run "$1" "$python" -m benchmarks.gpu_measure "$2" "$out/$2.json" "${@:3}"; }

case $part in
check) # facts, a pipeline by the command line, the same with CUDA graphs, every GPU test
  check 60 facts
  cp -r params.yaml stages.yaml pipelines "$work"
  export DAAMCTL_ROOT=$work
  for stage in download segment extract; do run 100 "$python" -m daamctl $stage -p demo; done
  for method in daam-v1 mha; do run 100 "$python" -m daamctl train demo -m $method --no-track; done
  cp -r "$work/data/train" "$work/eager"
  run 100 "$python" -m daamctl train demo -m daam-v1 --no-track --force --set train.graphs=auto
  measure 60 same "$work/eager" "$work/data/train" daam-v1
  run 100 "$python" -m daamctl finetune demo -m lora-r4 --no-track --fold 1 --set finetune.search=none \
    --set finetune.epochs=2
  unset DAAMCTL_ROOT
  check 330 tests ;;
extraction) # 6,000 clips in several ways, then kernels
  measure 400 extract
  check 120 timings ;;
training) # steps and folds against the released loop, five folds, the default search
  check 240 training
  measure 290 folds ;;
finetuning) # LoRA with repeatability, texts, images
  measure 200 finetune
  check 150 text
  check 150 vision ;;
*) echo "no part '$part': check, extraction, training or finetuning" >&2; exit 2 ;;
esac
exit $failed
