#!/usr/bin/env bash
# Usage: scripts/test.sh [--all]
# Sets up, builds, lints and runs every test on a bare Debian 12. --all adds what takes long: clang-tidy,
# and the unit tests under the address, undefined-behaviour and thread sanitizers. Ends with
# "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=false
case "${1:-}" in
  "") ;;
  --all) all=true ;;
  *)
    echo "usage: scripts/test.sh [--all]" >&2
    exit 2
    ;;
esac

started=$SECONDS
step() { echo "test: [$((SECONDS - started)) s] $*"; }
passed=0 failed=0 skipped=0
tests() { # PRESET [ctest arguments…]: runs CTest, prints failures, adds to the totals
  local preset=$1 log=build/test-$1.xml
  shift
  ctest --test-dir "build/$preset" --output-on-failure --output-junit "$PWD/$log" \
    --no-tests=error --parallel "$(nproc)" "$@" || true
  read -r total bad not_run < <(python3 -c '
import sys, xml.etree.ElementTree as tree
suite = tree.parse(sys.argv[1]).getroot().attrib
print(suite["tests"], suite["failures"], int(suite["skipped"]) + int(suite["disabled"]))' "$log")
  passed=$((passed + total - bad - not_run)) failed=$((failed + bad)) skipped=$((skipped + not_run))
}

step "setting up"
scripts/setup.sh
step "building (release)"
scripts/build.sh release
step "lint"
if $all; then scripts/lint.sh; else scripts/lint.sh --fast; fi
step "unit and integration tests (release)"
tests release
if $all; then
  for preset in asan tsan; do
    step "building ($preset)"
    scripts/build.sh "$preset" relibra_unit_tests
    step "unit tests ($preset)"
    tests "$preset" -L unit
  done
fi
step "done"
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
