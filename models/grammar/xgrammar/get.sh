#!/usr/bin/env bash
# Fetches xgrammar's source and builds its static library, once for all build trees and clones of this user.
# Usage: get.sh fetch            the source, by pip and by hash, with interruptible.patch applied; prints its folder
#        get.sh build LIBRARY    LIBRARY, a path, from that source, with the C++ compiler in $CXX (default: c++)
# What is there already is left alone, and needs no network. Several may run at once: one works, the others wait.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

# By what is in it.
folder() {
  local cache=$here/../../../.cache
  if [[ -n ${XDG_CACHE_HOME:-} ]]; then
    cache=$XDG_CACHE_HOME/tramontane
  elif [[ -n ${HOME:-} ]]; then
    cache=$HOME/.cache/tramontane
  fi
  printf '%s/xgrammar-%.16s' "$cache" "$(cat "$here/source.txt" "$here/interruptible.patch" | sha256sum)"
}

fetch() {
  [[ -d source ]] && return
  rm -rf fetching
  mkdir -p fetching/source
  local pip=(env PIP_ROOT_USER_ACTION=ignore python3 -m pip --quiet --disable-pip-version-check --no-cache-dir)
  "${pip[@]}" install --target fetching/tools --no-deps --require-hashes --only-binary :all: \
    --requirement "$here/tools.txt"
  PYTHONPATH=$PWD/fetching/tools "${pip[@]}" download --no-deps --require-hashes --no-binary :all: --no-build-isolation \
    --dest fetching --requirement "$here/source.txt"
  tar --extract --gzip --strip-components 1 --directory fetching/source --file fetching/xgrammar-*.tar.gz
  patch --quiet --strip 1 --directory fetching/source --input "$here/interruptible.patch"
  mv fetching/source source
  rm -rf fetching
}

# Without its own CMake files: they ask for link-time optimisation, which would be paid at every link of ours.
build() {
  local library=$1
  [[ -f $library ]] && return
  rm -rf building
  mkdir -p building "$(dirname "$library")"
  local compiler=("${CXX:-c++}")
  if command -v ccache >/dev/null; then
    compiler=(ccache "${compiler[@]}")
  fi
  "${compiler[@]}" -std=c++17 -O2 -DNDEBUG -fPIC -w -DXGRAMMAR_LOG_CUSTOMIZE=1 -DXGRAMMAR_ENABLE_CPPTRACE=0 \
    -Isource/cpp -Isource/include -Isource/3rdparty/picojson -Isource/3rdparty/dlpack/include \
    -c "$here/library.cc" -o building/library.o
  ar rcs building/library.a building/library.o
  mv building/library.a "$library"
  rm -rf building
}

folder=$(folder)
mkdir -p "$folder"
cd "$folder"
exec 9>lock
flock 9
case $1 in
  fetch)
    fetch >&2
    printf '%s\n' "$folder"
    ;;
  build) build "$2" ;;
  *) exit 2 ;;
esac
