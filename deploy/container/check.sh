#!/usr/bin/env bash
# Usage: deploy/container/check.sh FOLDER
# Runs what build.sh put into FOLDER, as a container would: the planner from its root file system, not
# as root, the file system read-only but for its volume; against it two agents from theirs. Needs root.
set -euo pipefail

if (($# != 1)) || [[ ! -d $1/planner || ! -d $1/agent ]]; then
  sed -n 's/^# //; 2,4p' "$0"
  exit 2
fi
folder=$(realpath "$1")
run=$(mktemp -d)
chmod 755 "$run"
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$run"
}
trap cleanup EXIT
fail() {
  echo "container: $*" >&2
  tail -n 20 "$run"/*.log >&2 || true
  exit 1
}

for image in planner agent; do
  python3 - "$folder/$image.json" "relibra-$image" <<'PYTHON'
import json, sys
config = json.load(open(sys.argv[1]))["OCIv1"]["config"]
assert config["User"] == "65532:65532", config
assert config["Entrypoint"] == [f"/usr/bin/{sys.argv[2]}"], config
PYTHON
done

# inside IMAGE COMMAND…: in a mount namespace of its own; the volume is a folder of this run.
inside() {
  local image=$1
  shift
  mkdir -p "$run/volume" && chown 65532:65532 "$run/volume"
  # shellcheck disable=SC2016 # expanded by the inner shell
  exec unshare --mount bash -euc '
    root=$1 volume=$2
    shift 2
    mount --bind "$root" "$root"
    mount --bind -o remount,ro "$root"
    if [[ -d $root/var/lib/relibra-planner ]]; then
      mount --bind "$volume" "$root/var/lib/relibra-planner"
    fi
    mount --bind /dev "$root/dev"
    mount --bind /proc "$root/proc"
    mount --bind /sys "$root/sys"
    exec chroot --userspec=65532:65532 "$root" "$@"' inside "$folder/$image" "$run/volume" "$@"
}

# shellcheck disable=SC2016 # expanded inside
(inside planner sh -c '! touch /usr/x 2>/dev/null && test "$(id -u)" = 65532') ||
  fail "the file system can be written, or the user is wrong"
(inside planner relibra-planner --listen 127.0.0.1:0 --metrics-address 127.0.0.1:0 \
  --state-file /var/lib/relibra-planner/planner.sqlite \
  --port-file /var/lib/relibra-planner/ports) >"$run/planner.log" 2>&1 &
planner=$!
pids+=("$planner")
for ((i = 0; i < 100; ++i)); do
  [[ -s $run/volume/ports ]] && break
  kill -0 "$planner" 2>/dev/null || fail "the planner ended"
  sleep 0.1
done
address=127.0.0.1:$(awk '/^grpc/ {print $2}' "$run/volume/ports")
(inside planner relibra status --planner "$address") | head -n 1

agents=()
for rank in 0 1; do
  (inside agent relibra-agent selftest --planner "$address" --rank "$rank" --nodes 1 \
    --gpus-per-node 2 --hidden 16 --intermediate 24 --transports tcp,self) \
    >"$run/agent$rank.log" 2>&1 &
  agents+=($!)
  pids+=($!)
done
for pid in "${agents[@]}"; do wait "$pid" || fail "an agent failed"; done
kill "$planner"
wait "$planner" || fail "the planner did not drain"
pids=()
echo "container: the planner served, two agents trained three steps, and it drained"
