#!/usr/bin/env bash
# Usage: scripts/lint.sh [--fast]        (--fast: without clang-tidy)
# clang-format, clang-tidy, ruff, mypy and shellcheck over every tracked file; any finding fails.
# Needs scripts/setup.sh, and build/release configured and its generated sources built.
# clang-tidy remembers clean files in build/tidy, by the hash of what they include.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t cpp < <(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
mapfile -t units < <(git ls-files '*.cc')
mapfile -t shell < <(git ls-files '*.sh' .ci/run deploy/slurm 'deploy/debian/p*' 'deploy/completions/*.bash')
mapfile -t python < <(git ls-files '*.py')

echo "lint: shellcheck over ${#shell[@]} files"
shellcheck "${shell[@]}"
if ((${#python[@]})); then
  echo "lint: ruff and mypy over ${#python[@]} files"
  build/venv/bin/ruff check "${python[@]}"
  build/venv/bin/ruff format --check "${python[@]}"
  if [[ -f python/pyproject.toml ]]; then
    build/venv/bin/mypy --config-file python/pyproject.toml python/relibra
  fi
fi
echo "lint: clang-format over ${#cpp[@]} files"
clang-format-14 --dry-run --Werror "${cpp[@]}"

if [[ "${1:-}" == --fast ]]; then
  echo "lint: clean, clang-tidy left out"
  exit 0
fi

echo "lint: clang-tidy over ${#units[@]} files"
mkdir -p build/tidy
tidy_one() {
  local unit=$1 key
  # What the preprocessor sees of our own files decides whether the unit must be looked at again.
  key=build/tidy/$( (cat .clang-tidy "$unit" && clang-14 -MM -MG -std=c++20 -I. -Ibuild/release/proto "$unit" |
    tr -d '\134' | tr ' ' '\n' | grep -v -e ':$' -e '^$' | sort -u |
    xargs -r sha256sum 2>/dev/null) | sha256sum | cut -c1-32)
  [[ -f "$key" ]] && return 0
  if clang-tidy-14 --quiet --extra-arg=-Wno-unknown-warning-option -p build/release "$unit" 2>build/tidy/stderr.$$ >build/tidy/stdout.$$; then
    touch "$key"
  else
    cat build/tidy/stdout.$$
    grep -E 'error' build/tidy/stderr.$$ || true
    return 1
  fi
}
export -f tidy_one
printf '%s\0' "${units[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c 'tidy_one {}'
echo "lint: clean"
