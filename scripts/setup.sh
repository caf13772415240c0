#!/usr/bin/env bash
# Usage: scripts/setup.sh
# Installs what building and testing need on Debian 12: packages from Debian, Python tools from PyPI
# into build/venv. Needs root (or sudo) only while a package is missing. Safe to run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  # compilers and build
  g++ clang-14 cmake ninja-build ccache git pkg-config
  # libraries, see the README's table of dependencies
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev libucx-dev
  prometheus-cpp-dev libspdlog-dev libzip-dev libeigen3-dev libcli11-dev nlohmann-json3-dev
  libsqlitecpp-dev libsqlite3-dev
  # deployment: packages, units, Slurm
  dpkg-dev file openssl systemd slurm-wlm munge
  # tests and lint
  libgtest-dev libgmock-dev libbenchmark-dev prometheus curl procps
  chromium fonts-dejavu-core
  clang-format-14 clang-tidy-14 shellcheck python3 python3-venv
)

missing=()
for package in "${packages[@]}"; do
  if [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
    missing+=("$package")
  fi
done
if ((${#missing[@]})); then
  echo "setup: installing ${#missing[@]} Debian packages: ${missing[*]}"
  as_root=()
  if ((EUID != 0)); then as_root=(sudo); fi
  "${as_root[@]}" apt-get update -qq
  # Debian starts a Prometheus server with its package; the tests start their own.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
  echo "setup: all ${#packages[@]} Debian packages are there"
fi

requirements=scripts/requirements.txt
stamp=build/venv/.requirements.sha256
wanted=$(sha256sum <"$requirements")
if [[ ! -f "$stamp" || "$(cat "$stamp")" != "$wanted" ]]; then
  echo "setup: Python tools of $requirements into build/venv"
  python3 -m venv build/venv
  build/venv/bin/python -m pip install -q --disable-pip-version-check -r "$requirements"
  echo "$wanted" >"$stamp"
else
  echo "setup: build/venv holds the tools of $requirements"
fi
