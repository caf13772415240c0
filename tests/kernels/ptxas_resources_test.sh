#!/usr/bin/env bash
# Usage: ptxas_resources_test.sh GPU_COUNT OBJECT.cu.o...
#
# Reads what ptxas said of each of our kernels when the build compiled it (OBJECT.ptxas, see
# kernels/keep_ptxas_report.sh), for GPU_COUNT architectures: fails when one spills registers or has a
# stack frame, naming it. CUB's own kernels are not judged.
set -euo pipefail
if (($# < 2)); then
  echo "usage: $0 GPU_COUNT OBJECT.cu.o..." >&2
  exit 2
fi
gpus=$1
shift
reports=("${@/%/.ptxas}")

awk '
  /Compiling entry function/ { split($0, quoted, "\x27"); name = quoted[2]; gpu = quoted[4] }
  /bytes stack frame/ && name ~ /^_ZN7relibra/ {
    ++kernels[gpu]
    for (i = 2; i <= NF; ++i) {
      if ($i != "bytes") continue
      if ($(i - 1) + 0 > 0) { bad[gpu " " name] = $0 }
    }
    name = ""
  }
  END {
    for (gpu in kernels) { printf "%s: %d kernels\n", gpu, kernels[gpu]; ++gpus }
    for (kernel in bad) { printf "FAILED %s: %s\n", kernel, bad[kernel]; failed = 1 }
    if (gpus != expected) { printf "FAILED found kernels for %d of %d GPUs\n", gpus, expected; failed = 1 }
    exit failed
  }' expected="$gpus" "${reports[@]}"
