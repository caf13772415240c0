#!/usr/bin/env bash
# Usage: scripts/gpu_check.sh [--no-benchmark]
#
# On a machine with an NVIDIA GPU: builds the kernels, runs their tests on the GPU, again under
# compute-sanitizer where that works, then times each kernel against the bandwidth of a device copy
# and prints the table for kernels/README.md.
#
# Exit status: 0 all passed; 77 no GPU (one line "no GPU: ..." says why); 1 a test failed or the
# build did; 2 wrong words. Safe to run twice.
set -euo pipefail

usage() { sed -n 's/^# \(Usage: .*\)/\1/p' "$0"; }

benchmark=yes
for word in "$@"; do
  case $word in
    --no-benchmark) benchmark=no ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
done

cd "$(dirname "$0")/.."
readonly bin=build/release/bin
readonly no_gpu=77
readonly finding=86 # compute-sanitizer's status when it finds something

if ! command -v nvcc >/dev/null && [[ ! -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
  echo "no GPU: nvcc is not on PATH, under CUDA_HOME or in /usr/local/cuda/bin"
  exit "$no_gpu"
fi
if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1 && [[ ! -e /dev/dxg ]] &&
  ! { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }; then
  echo "no GPU: no NVIDIA device node and no working nvidia-smi"
  exit "$no_gpu"
fi

echo "== build"
cmake --preset release -DRELIBRA_CUDA=ON >/dev/null
cmake --build --preset release --target kernels_gpu_test kernels_gpu_benchmark

echo "== tests on the GPU"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$bin/kernels_gpu_test" --gtest_brief=1 | tee "$log"
if reason=$(grep -m 1 -o 'no GPU: .*' "$log"); then # a device, but no driver for this toolkit
  echo "$reason"
  exit "$no_gpu"
fi

# Exit status 86 is a finding; any other failure of the first, smallest run means that the tool itself
# does not work here (a container without the rights, a driver that is too new).
sanitize() { # TOOL FILTER
  compute-sanitizer --tool "$1" --error-exitcode "$finding" "$bin/kernels_gpu_test" \
    --gtest_brief=1 --gtest_filter="$2"
}

if ! command -v compute-sanitizer >/dev/null; then
  echo "== compute-sanitizer: skipped, not on PATH"
else
  status=0
  sanitize memcheck ChecksumTest.OverwritesTheResult >/dev/null 2>&1 || status=$?
  if ((status != 0 && status != finding)); then
    echo "== compute-sanitizer: skipped, it does not work here (status $status)"
  else
    for tool in memcheck racecheck synccheck; do
      echo "== compute-sanitizer $tool"
      sanitize "$tool" '*'
    done
  fi
fi

if [[ $benchmark == yes ]]; then
  echo "== benchmark"
  "$bin/kernels_gpu_benchmark"
fi
