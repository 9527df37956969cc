#!/usr/bin/env bash
# From an empty machine to a fine-tuned checkpoint: installs what is needed, builds, starts a local cluster of unequal nodes, and fine-tunes
# a small Llama on sums, as a job on that cluster. Safe to run again: what is done is skipped, and a running cluster is used.
#
#   ./quickstart.sh
#
# Ends with the dashboard's URL, the checkpoint's folder and how to stop the cluster. Its exit status tells whether all went well.

. "$(dirname "${BASH_SOURCE[0]}")/deploy/setup.sh"

RUN_DIR=${ARGOSY_QUICKSTART_DIR:-$ARGOSY_ROOT/quickstart-run}
BIN=$BUILD_DIR/bin
export PATH=$BIN:$PATH

install_system_packages
install_python_packages "libtorch (the torch wheel)" "$ARGOSY_ROOT/deploy/requirements.txt"
build_web_page
build_targets "runtime, command line, training library, examples" -DARGOSY_TESTS=OFF -- \
  argosy argosy-finetune argosy-prepare argosy_testing hello_task actor

step "the argosy command"
link=/usr/local/bin/argosy
if [ "$(id -u)" -ne 0 ] && [ ! -w /usr/local/bin ]; then link=$HOME/.local/bin/argosy; mkdir -p "$HOME/.local/bin"; fi
ln -sf "$BIN/argosy" "$link"
case ":$PATH:" in *":$(dirname "$link"):"*) ;; *) say "    $(dirname "$link") is not in PATH: add it, or call $BIN/argosy" ;; esac
step_done "$link"

step "a local cluster: a head, two nodes of a gpu-group, one node with a lot of memory"
# Each worker node has one GPU slot; no GPU is used: --device cpu computes on its CPU.
status=$(argosy status --json 2>/dev/null || true)
if [ -n "$status" ]; then
  for name in gpu-group-0 gpu-group-1 large-memory; do
    case $status in *"\"$name\""*) ;; *) die "another cluster is running here, without a node $name: end it with 'argosy stop' first" ;; esac
  done
  step_done "already running"
else
  argosy start --head --num-cpus 0 --node-name head
  address=127.0.0.1:6379
  argosy start --address "$address" --node-name gpu-group-0 --num-cpus 1 --num-gpus 1 --labels group=gpu-group --object-store-memory 200000000
  argosy start --address "$address" --node-name gpu-group-1 --num-cpus 1 --num-gpus 1 --labels group=gpu-group --object-store-memory 200000000
  argosy start --address "$address" --node-name large-memory --num-cpus 1 --num-gpus 1 --labels group=memory --resources '{"large_cpu_mem": 1}' --object-store-memory 200000000
  step_done
fi
argosy status

step "data, base model, and fine-tuning as a job: three ranks, one a GPU slot, rank 0 on the node with large_cpu_mem"
"$ARGOSY_ROOT/deploy/main_job.sh" "$RUN_DIR"
step_done

checkpoint=$(ls -d "$RUN_DIR"/checkpoints/epoch-* | sort -V | tail -n 1)
step "the fine-tuned model answers"
prompt='<START_Q>48+27<END_Q><START_C><END_C><START_A>'
say "    argosy generate --model $checkpoint --prompt '$prompt' --max-new-tokens 4"
argosy generate --model "$checkpoint" --prompt "$prompt" --max-new-tokens 4
step_done

say ""
say "token:     $HOME/.argosy/token (the dashboard asks for it)"
say "dashboard: http://127.0.0.1:8265"
say "checkpoint: $checkpoint"
say "stop with: argosy stop"
