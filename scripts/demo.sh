#!/usr/bin/env bash
# Usage: scripts/demo.sh
# Sets up, builds, and runs ReLibra's main job on this machine, no GPU needed: a planner and eight
# worker agents (2 nodes x 4 GPUs) train a small MoE layer for three steps. The routing that rollout
# records streams into the planner, its plans move experts between the agents over UCX, and every
# output, gradient and weight is compared with a single process that knows no placement. Then plans a
# batch of the size that training has. Ends with a table.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

nodes=2 gpus=4 steps=3 seed=1
ranks=$((nodes * gpus))
scripts/setup.sh
scripts/build.sh release
bin=build/release/bin

run=$(mktemp -d)
planner=
agents=()
cleanup() {
  for pid in "${agents[@]}" $planner; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$run"
}
trap cleanup EXIT

"$bin/relibra-planner" --listen 127.0.0.1:0 --metrics-address 127.0.0.1:0 \
  --port-file "$run/ports" >"$run/planner.log" 2>&1 &
planner=$!
for ((i = 0; i < 100; ++i)); do
  if [[ -s "$run/ports" ]]; then break; fi
  sleep 0.1
done
address=127.0.0.1:$(awk '/^grpc/ {print $2}' "$run/ports")
metrics=http://127.0.0.1:$(awk '/^metrics/ {print $2}' "$run/ports")/metrics
echo "demo: planner serves $address, metrics at $metrics"

echo "demo: $ranks agents train $steps steps of a small MoE model, routing replayed"
for ((rank = 0; rank < ranks; ++rank)); do
  "$bin/relibra-agent" selftest --planner "$address" --job demo --rank "$rank" --nodes "$nodes" \
    --gpus-per-node "$gpus" --steps "$steps" --seed "$seed" \
    >"$run/agent$rank.json" 2>"$run/agent$rank.log" &
  agents+=($!)
done
failed=0
for pid in "${agents[@]}"; do wait "$pid" || failed=1; done
agents=()
if ((failed)); then
  echo "demo: an agent failed; what the agents said last:" >&2
  tail -n 3 "$run"/agent*.log >&2
  exit 1
fi

echo "demo: the loads of each step, as the planner recorded them, under every policy"
for ((step = 0; step < steps; ++step)); do
  "$bin/relibra" trace fetch --planner "$address" --job demo --step "$step" -o "$run/step$step.npz"
  "$bin/relibra" simulate --trace "$run/step$step.npz" --nodes "$nodes" --gpus-per-node "$gpus" \
    --format json >"$run/policies$step.json"
done
"$bin/relibra" status --planner "$address"
curl -sf "$metrics" >"$run/metrics"

echo "demo: a batch of the size that training has: 2 x 8 GPUs, 128 experts, 16 micro-batches, 6 layers"
"$bin/relibra" trace generate --nodes 2 --gpus-per-node 8 --experts 128 --micro-batches 16 \
  --layers 6 --seed "$seed" -o "$run/batch.npz"
"$bin/relibra" plan --trace "$run/batch.npz" --nodes 2 --gpus-per-node 8 --verify \
  -o "$run/plan.json"
"$bin/relibra" simulate --trace "$run/batch.npz" --nodes 2 --gpus-per-node 8

build/venv/bin/python scripts/demo_table.py "$run" "$steps" "$ranks"
echo "metrics         $(grep -c '^relibra_' "$run/metrics") samples were at $metrics"
