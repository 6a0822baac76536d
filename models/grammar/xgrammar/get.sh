#!/usr/bin/env bash
# Fetches xgrammar's source, with changes.patch applied, and builds its static library. Usage: ../../kept_source.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../../kept_source.sh"

name=xgrammar
changes=$here/changes.patch
unpack() {
  tar --extract --gzip --strip-components 1 --directory fetching/source --file "$1"
}
# Without its own CMake files: they ask for link-time optimisation, which would be paid at every link of ours.
compile=(-DXGRAMMAR_LOG_CUSTOMIZE=1 -DXGRAMMAR_ENABLE_CPPTRACE=0
  "-I$here" -Isource/cpp -Isource/include -Isource/3rdparty/picojson -Isource/3rdparty/dlpack/include)
kept_source "$@"
