#!/usr/bin/env bash
# Usage: keep_ptxas_report.sh NVCC ARGUMENT... -o OBJECT ...
# CMake's launcher for CUDA: runs the compiler, and keeps in OBJECT.ptxas what it says, which with
# -Xptxas=-v are each kernel's registers, spills and stack frame. Shown only when it fails.
set -euo pipefail

object=
for ((i = 1; i < $#; ++i)); do
  if [[ "${!i}" == -o ]]; then
    next=$((i + 1))
    object=${!next}
  fi
done
if [[ -z "$object" ]]; then exec "$@"; fi
if ! "$@" >"$object.ptxas" 2>&1; then
  cat "$object.ptxas" >&2
  exit 1
fi
