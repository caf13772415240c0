#!/usr/bin/env bash
# Usage: deploy/container/build.sh FOLDER [planner|agent]…
# Builds images where no container engine runs: a Debian base by debootstrap, the Debian packages of
# build/release, and the stages of Dockerfile by buildah with chroot isolation. For each image, FOLDER
# gets its root file system (IMAGE/) and the image as an OCI archive (IMAGE.tar).
# Needs root, `apt-get install buildah debootstrap`, and scripts/build.sh release. Takes some
# minutes, so it is no part of scripts/test.sh; check.sh runs what it made.
set -euo pipefail

if (($# == 0)) || [[ $1 == -* ]]; then
  sed -n 's/^# //; 2,8p' "$0"
  exit 2
fi
folder=$(realpath -m "$1")
shift
targets=("$@")
if ((${#targets[@]} == 0)); then targets=(planner agent); fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mirror=${RELIBRA_DEBIAN_MIRROR:-http://deb.debian.org/debian}
version=$(sed -n 's/^project(relibra VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

work=$(mktemp -d)
# Storage of our own: nothing of the machine's images is touched.
buildah() { command buildah --root "$work/images" --runroot "$work/run" --storage-driver vfs "$@"; }
cleanup() {
  buildah rm --all >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT
mkdir -p "$folder"

echo "container: Debian packages of build/release"
cpack --config build/release/CPackConfig.cmake -B "$work/packages" >/dev/null

echo "container: Debian base from $mirror"
debootstrap --variant=minbase bookworm "$work/base" "$mirror" >"$work/debootstrap.log" ||
  { tail -n 20 "$work/debootstrap.log" >&2; exit 1; }
rm -rf "$work"/base/var/cache/apt/archives/*.deb "$work"/base/var/lib/apt/lists/*
from_nothing=$(buildah from scratch)
buildah add --quiet "$from_nothing" "$work/base" / >/dev/null
buildah commit --quiet "$from_nothing" relibra-base >/dev/null
buildah rm "$from_nothing" >/dev/null
rm -rf "$work/base"

for target in "${targets[@]}"; do
  echo "container: image relibra-$target:$version"
  buildah build --quiet --isolation chroot --pull-never --file deploy/container/Dockerfile \
    --build-arg BASE=localhost/relibra-base --build-context "packages=$work/packages" \
    --target "$target" --tag "relibra-$target:$version" .
  rm -rf "${folder:?}/$target" "$folder/$target.tar"
  buildah push --quiet "relibra-$target:$version" "oci-archive:$folder/$target.tar:relibra-$target:$version"
  container=$(buildah from "relibra-$target:$version")
  cp -a "$(buildah mount "$container")" "$folder/$target"
  buildah inspect --type image "relibra-$target:$version" >"$folder/$target.json"
  buildah rm "$container" >/dev/null
done
echo "container: in $folder: ${targets[*]}"
