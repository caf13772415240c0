#!/usr/bin/env bash
# Usage: scripts/build.sh [PRESET [TARGET…]]        (dev, release, asan, tsan; default release)
# Configures and builds one preset, all of it or the targets named; the programs stand in
# build/PRESET/bin afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:-release}
shift || true
# Let checkouts in different folders share compiled objects.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
echo "build: configuring preset $preset"
mkdir -p build
if ! cmake --preset "$preset" >"build/configure-$preset.log" 2>&1; then
  cat "build/configure-$preset.log" >&2
  exit 1
fi
echo "build: compiling preset $preset with $(nproc) jobs"
targets=()
for target in "$@"; do targets+=(--target "$target"); done
cmake --build --preset "$preset" --parallel "$(nproc)" "${targets[@]}"
