#!/usr/bin/env bash
# Usage: scripts/test.sh [--quick]
# Sets up, builds and runs every test and lint on a bare Debian 12. --quick leaves out lint and the
# sanitizer builds. Ends with "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=false
case "${1:-}" in
  "") ;;
  --quick) quick=true ;;
  *)
    echo "usage: scripts/test.sh [--quick]" >&2
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
if ! $quick; then
  step "lint"
  scripts/lint.sh
fi
step "unit and integration tests (release)"
tests release
if ! $quick; then
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
