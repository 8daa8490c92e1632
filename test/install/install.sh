#!/usr/bin/env bash
# Installs into an empty folder, builds a worker and a scheduler against nothing but what is there,
# with pkg-config, and runs the two.
# Arguments: the build directory, the source directory of this test, the C++ compiler and its words.
set -euo pipefail
build=$1
sources=$2
shift 2
compiler=("$@")

stage=$(mktemp -d)
worker=
trap '[[ -z $worker ]] || kill "$worker" 2>/dev/null; rm -rf "$stage"' EXIT

meson install -C "$build" --no-rebuild --quiet --tags devel,runtime --destdir "$stage"

pc=$(find "$stage" -name moetap.pc)
prefix=$stage$(sed -n 's/^prefix=//p' "$pc")
export PKG_CONFIG_PATH=${pc%/*}
libraries=$(dirname "${pc%/*}")

# The reader must not need the worker's library, and neither library a GPU's.
if readelf -d "$libraries"/libmoetap.so "$libraries"/libmoetap-gpu.so | grep -iE 'NEEDED.*(cuda|nccl)' ||
  readelf -d "$libraries"/libmoetap.so | grep 'NEEDED.*moetap-gpu'; then
  echo 'a library depends on what it must not depend on' >&2
  exit 1
fi

# Another release that may be incompatible must not be taken for this one.
release=$(pkg-config --modversion moetap)
for library in "$libraries"/libmoetap*.so; do
  name=$(basename "$library")
  readelf -d "$library" | grep -F "soname: [$name.${release%.*}]" >/dev/null || {
    echo "$name has not the SONAME of release $release" >&2
    exit 1
  }
done

# Users need no headers but ours and the system's. (Those of MPI and CUDA are for who uses them.)
find "$prefix/include/moetap" -name '*.h' -printf '#include <moetap/%f>\n' |
  grep -vE 'mpi|cuda_kernel' >"$stage/all.cc"
"${compiler[@]}" -std=c++20 -I"$prefix/include" -M "$stage/all.cc" >"$stage/included"
if grep -oE '[^ ]*/(boost|fmt|nlohmann)/[^ ]*' "$stage/included"; then
  echo 'an installed header includes a library that users need not have' >&2
  exit 1
fi

# user_build PROGRAM PACKAGE
user_build() {
  local flags
  read -ra flags <<<"$(pkg-config --define-variable=prefix="$prefix" --cflags --libs "$2")"
  "${compiler[@]}" -std=c++20 -Wall -Wextra "$sources/$1.cc" -o "$stage/$1" "${flags[@]}"
}
user_build capturer moetap-gpu
user_build reader moetap

export LD_LIBRARY_PATH=$libraries
instance=install-test-$$
mkfifo "$stage/until-read"
"$stage/capturer" "$instance" <"$stage/until-read" &
worker=$!
exec 3>"$stage/until-read" # the worker ends when this closes
"$stage/reader" "$instance"
exec 3>&-
wait "$worker"
worker=
