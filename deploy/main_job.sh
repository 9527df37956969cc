#!/usr/bin/env bash
# The main job on a running cluster with three GPU slots, one of them beside large_cpu_mem: makes sums and a small Llama, fine-tunes it as a
# job on three ranks, and checks what came out. Needs `argosy` in PATH; `argosy job` finds the cluster by ARGOSY_JOB_ADDRESS.
#
#   deploy/main_job.sh FOLDER

set -euo pipefail
folder=${1:?usage: main_job.sh FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

argosy dataset create --kind arithmetic --prompt-type 3 --test-split 0.1 --output-dir "$folder/data"
argosy model init --preset nano --train-text "$folder/data/train.jsonl" --special-token-path "$folder/data/tokens.json" \
  --output-dir "$folder/base-model"

# fp32 and one compute thread a rank: the model is tiny, and the ranks share this machine's cores.
rm -f "$folder/metrics.jsonl"
argosy job submit -- argosy finetune \
  --model-name "$folder/base-model" --output-dir "$folder/checkpoints" --overwrite \
  --train-path "$folder/data/train.jsonl" --test-path "$folder/data/test.jsonl" \
  --special-token-path "$folder/data/tokens.json" --answer-marker '<START_A>' \
  --num-devices 3 --device cpu --threads 1 --trainer-resources '{"large_cpu_mem": 0.01}' \
  --zero-stage 3 --mx no --ctx-len 48 --batch-size-per-device 8 --num-epochs 20 \
  --lr 3e-3 --lr-scheduler cosine --warmup-steps 20 --weight-decay 0.01 \
  --num-checkpoints-to-keep 2 --exact-rows 500 --max-new-tokens 8 --metrics-path "$folder/metrics.jsonl"

read -r exact of < <(sed -n 's/.*"exact":\([0-9]*\),"exact_of":\([0-9]*\).*/\1 \2/p' "$folder/metrics.jsonl")
if [ "$((exact * 10))" -lt "$((of * 9))" ]; then
  echo "error: only $exact of $of held-out sums were answered exactly; at least 9 in 10 are expected" >&2
  exit 1
fi
