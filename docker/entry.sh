#!/bin/sh
# What the image starts: `tramontane serve` on every address of the container, with API keys. Without a file of keys only
# where somebody says that everybody may ask.
set -eu
keys=${TRAMONTANE_KEYS:-/etc/tramontane/keys.json}
if [ -e "$keys" ]; then
  set -- --api-keys "$keys" "$@"
elif [ "${TRAMONTANE_OPEN:-}" != 1 ]; then
  echo "tramontane: no API keys at $keys: mount a file of them there (tramontane keys new NAME prints an entry), or" \
    "set TRAMONTANE_OPEN=1 to let everybody ask who reaches the port" >&2
  exit 1
fi
exec tramontane serve --grpc-address 0.0.0.0:50051 --http-address 0.0.0.0:8000 "$@"
