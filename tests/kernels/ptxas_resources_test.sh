#!/usr/bin/env bash
# Usage: ptxas_resources_test.sh NVCC SOURCE_DIR ARCHITECTURES OPTIONS FILE.cu...
#
# Compiles each file as the build does and reads what ptxas says of each of our kernels: fails when
# one spills registers or has a stack frame, naming it. CUB's own kernels are not judged.
# ARCHITECTURES and OPTIONS are lists separated by semicolons, e.g. "80-real;90a-real".
set -euo pipefail
if (($# < 5)); then
  echo "usage: $0 NVCC SOURCE_DIR ARCHITECTURES OPTIONS FILE.cu..." >&2
  exit 2
fi
nvcc=$1
source_dir=$2
IFS=';' read -ra architectures <<<"$3"
IFS=';' read -ra options <<<"$4"
shift 4

codes=()
for architecture in "${architectures[@]}"; do
  number=${architecture%-real}
  codes+=("--generate-code=arch=compute_$number,code=sm_$number")
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export nvcc source_dir work
compile() { # FILE OPTION...: ptxas's report into a log of its own
  local file=$1
  shift
  "$nvcc" -I"$source_dir" -O3 -DNDEBUG -std=c++20 -Xcompiler=-fPIC "$@" -Xptxas=-v -x cu -c "$file" \
    -o "$work/$(basename "$file").o" >"$work/$(basename "$file").log" 2>&1 || {
    cat "$work/$(basename "$file").log"
    return 1
  }
}
export -f compile
# A file a processor at a time; xargs fails when a compilation does.
printf '%s\0' "$@" |
  xargs -0 -P "$(nproc)" -I{} bash -c 'compile "$@"' compile {} "${options[@]}" "${codes[@]}"

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
  }' expected="${#architectures[@]}" "$work"/*.log
