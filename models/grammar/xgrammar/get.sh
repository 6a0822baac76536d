#!/usr/bin/env bash
# Fetches xgrammar's source and builds its static library, once for all build trees and clones of this user.
# Usage: get.sh fetch DIR    the source in DIR/source, by pip and by hash, with interruptible.patch applied
#        get.sh build DIR    DIR/lib/libxgrammar.a, with the C++ compiler in $CXX (default: c++)
# What is there already is left alone, and needs no network. Several may run at once: one works, the others wait.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

fetch() {
  [[ -d source ]] && return
  rm -rf fetching
  python3 -m venv fetching/python
  local pip=(fetching/python/bin/pip --quiet --disable-pip-version-check)
  "${pip[@]}" install --no-deps --require-hashes --only-binary :all: --requirement "$here/tools.txt"
  "${pip[@]}" download --no-deps --require-hashes --no-binary :all: --no-build-isolation --dest fetching \
    --requirement "$here/source.txt"
  mkdir fetching/source
  tar --extract --gzip --strip-components 1 --directory fetching/source --file fetching/xgrammar-*.tar.gz
  patch --quiet --strip 1 --directory fetching/source --input "$here/interruptible.patch"
  mv fetching/source source
  rm -rf fetching
}

# Its own options ask for link-time optimisation, which would be paid at every link of ours, and for Python.
build() {
  [[ -f lib/libxgrammar.a ]] && return
  rm -rf building
  mkdir building
  printf 'set(XGRAMMAR_BUILD_PYTHON_BINDINGS OFF)\nset(XGRAMMAR_ENABLE_CPPTRACE OFF)\n' >building/config.cmake
  local launcher=()
  if command -v ccache >/dev/null; then
    launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  cmake -G Ninja -S source -B building -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="${CXX:-c++}" \
    -DCMAKE_CXX_FLAGS="-fno-lto -w -Wno-error -DXGRAMMAR_LOG_CUSTOMIZE=1" -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" \
    "${launcher[@]}"
  ninja -C building -j2 xgrammar
  mkdir -p lib
  mv building/libxgrammar.a lib/libxgrammar.a
  rm -rf building
}

action=$1
mkdir -p "$2"
cd "$2"
exec 9>lock
flock 9
case $action in
  fetch) fetch ;;
  build) build ;;
  *) exit 2 ;;
esac
