#!/usr/bin/env bash
# Fetches llama.cpp's Jinja evaluator, with limits.patch applied, and builds its static library. Usage:
# ../../kept_source.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../../kept_source.sh"

name=jinja
changes=$here/limits.patch
# Of the 77 MB package: source/jinja, source/unicode.*, source/LICENSE, and beside/templates for the tests.
unpack() {
  mkdir fetching/all
  tar --extract --gzip --strip-components 3 --directory fetching/all --file "$1" \
    --wildcards '*/vendor/llama.cpp/common/jinja' '*/vendor/llama.cpp/common/unicode.*' \
    '*/vendor/llama.cpp/models/templates' '*/vendor/llama.cpp/LICENSE'
  mv fetching/all/common/* fetching/all/LICENSE fetching/source
  mv fetching/all/models/templates fetching/beside
}
# Signed overflow wraps: arithmetic in templates must not be undefined.
compile=(-fwrapv "-I$here" -Isource)
kept_source "$@"
