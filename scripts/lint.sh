#!/usr/bin/env bash
# Usage: scripts/lint.sh [--fast]        (--fast: without clang-tidy)
# Every linter over every tracked file: shellcheck, ruff, mypy, clang-format, clang-tidy. Looks at all
# of them and fails at the end when there was a finding. Needs scripts/setup.sh; builds the release
# first, as clang-tidy reads generated sources and the record of what each source includes.
# clang-tidy's clean sources are remembered in build/tidy, see scripts/tidy_keys.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t cpp < <(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
mapfile -t units < <(git ls-files '*.cc')
mapfile -t shell < <(git ls-files '*.sh' .ci/run deploy/slurm 'deploy/debian/p*' 'deploy/completions/*.bash')
mapfile -t python < <(git ls-files '*.py')
findings=()
check() { # NAME COMMAND…
  local name=$1
  shift
  echo "lint: $name"
  "$@" || findings+=("$name")
}

check "shellcheck over ${#shell[@]} files" shellcheck "${shell[@]}"
check "ruff over ${#python[@]} files" build/venv/bin/ruff check "${python[@]}"
check "ruff format" build/venv/bin/ruff format --check "${python[@]}"
check "mypy" build/venv/bin/mypy --config-file python/pyproject.toml python/relibra
check "clang-format over ${#cpp[@]} files" clang-format-14 --dry-run --Werror "${cpp[@]}"

tidy_one() { # KEY UNIT
  local report=build/tidy/report.$$
  if clang-tidy-14 --quiet --extra-arg=-Wno-unknown-warning-option -p build/tidy "$2" \
    >"$report" 2>"$report.err"; then
    touch "build/tidy/$1"
  else
    cat "$report"
    grep -E 'error' "$report.err" || true
    return 1
  fi
  rm -f "$report" "$report.err"
}
export -f tidy_one
tidy_all() {
  python3 scripts/tidy_keys.py build/release build/tidy/compile_commands.json "${units[@]}" \
    >build/tidy/keys || return
  while read -r key unit; do
    [[ -f "build/tidy/$key" ]] || echo "$key $unit"
  done <build/tidy/keys >build/tidy/unknown
  echo "lint: clang-tidy must look at $(wc -l <build/tidy/unknown) of them"
  xargs -a build/tidy/unknown -r -P "$(nproc)" -L 1 bash -c 'tidy_one "$@"' tidy_one
}
if [[ "${1:-}" != --fast ]]; then
  mkdir -p build/tidy
  scripts/build.sh release >build/tidy/build.log || { cat build/tidy/build.log && exit 1; }
  check "clang-tidy over ${#units[@]} files" tidy_all
fi

if ((${#findings[@]})); then
  printf 'lint: findings of %s\n' "${findings[@]}" >&2
  exit 1
fi
echo "lint: clean"
