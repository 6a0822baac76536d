#!/usr/bin/env bash
# Fetches llama.cpp's Jinja evaluator and builds its static library, once for all build trees and clones of this user.
# Usage: get.sh fetch            the source, by pip and by hash, with limits.patch applied; prints its folder
#        get.sh build LIBRARY    LIBRARY, a path, from that source, with the C++ compiler in $CXX (default: c++)
# What is there already is left alone, and needs no network. Several may run at once: one works, the others wait.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tools=$here/../../grammar/xgrammar/tools.txt # what pip needs to read the metadata is the same

# By what is in it.
folder() {
  local cache=$here/../../../.cache
  if [[ -n ${XDG_CACHE_HOME:-} ]]; then
    cache=$XDG_CACHE_HOME/tramontane
  elif [[ -n ${HOME:-} ]]; then
    cache=$HOME/.cache/tramontane
  fi
  printf '%s/jinja-%.16s' "$cache" "$(cat "$here/source.txt" "$here/limits.patch" | sha256sum)"
}

# The folder has, of the 77 MB package: source/jinja, source/unicode.*, source/LICENSE, and templates/ for the tests.
fetch() {
  [[ -d source ]] && return
  rm -rf fetching templates
  mkdir -p fetching/all
  local pip=(env PIP_ROOT_USER_ACTION=ignore python3 -m pip --quiet --disable-pip-version-check --no-cache-dir)
  "${pip[@]}" install --target fetching/tools --no-deps --require-hashes --only-binary :all: --requirement "$tools"
  PYTHONPATH=$PWD/fetching/tools "${pip[@]}" download --no-deps --require-hashes --no-binary :all: --no-build-isolation \
    --dest fetching --requirement "$here/source.txt"
  tar --extract --gzip --strip-components 3 --directory fetching/all --file fetching/llama_cpp_python-*.tar.gz \
    --wildcards '*/vendor/llama.cpp/common/jinja' '*/vendor/llama.cpp/common/unicode.*' \
    '*/vendor/llama.cpp/models/templates' '*/vendor/llama.cpp/LICENSE'
  mkdir fetching/source
  mv fetching/all/common/* fetching/all/LICENSE fetching/source
  patch --quiet --strip 1 --directory fetching/source --input "$here/limits.patch"
  mv fetching/all/models/templates templates
  mv fetching/source source
  rm -rf fetching
}

# Signed overflow wraps: arithmetic in templates must not be undefined.
build() {
  local library=$1
  [[ -f $library ]] && return
  rm -rf building
  mkdir -p building "$(dirname "$library")"
  local compiler=("${CXX:-c++}")
  if command -v ccache >/dev/null; then
    compiler=(ccache "${compiler[@]}")
  fi
  "${compiler[@]}" -std=c++17 -O2 -DNDEBUG -fPIC -fwrapv -w -I"$here" -Isource -c "$here/library.cc" \
    -o building/library.o
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
