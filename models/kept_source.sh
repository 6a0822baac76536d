# Sourced by the get.sh of another project's library: its source is fetched by pip and by hash, patched, and built, once
# for all build trees and clones of this user. Ran as
#   get.sh fetch            the source; prints its folder
#   get.sh build LIBRARY    LIBRARY, a path, from that source, with the C++ compiler in $CXX (default: c++)
# What is there already is left alone, and needs no network. Several may run at once: one works, the others wait.
#
# The caller gives, before it calls kept_source "$@":
#   here             its folder: source.txt (the package and its hash) and library.cc (the sources, compiled as one)
#   name, changes    of the folder that is kept, and the patch
#   unpack PACKAGE   a function: puts the source into fetching/source, and may leave more in fetching/beside
#   compile          an array: what the compiler is told besides

# By what is in it and how it got there.
kept_source_folder() {
  local cache=$here/../../../.cache
  if [[ -n ${XDG_CACHE_HOME:-} ]]; then
    cache=$XDG_CACHE_HOME/tramontane
  elif [[ -n ${HOME:-} ]]; then
    cache=$HOME/.cache/tramontane
  fi
  printf '%s/%s-%.16s' "$cache" "$name" "$(cat "$here/source.txt" "$changes" "$here/get.sh" | sha256sum)"
}

kept_source_fetch() {
  [[ -d source ]] && return
  rm -rf fetching beside
  mkdir -p fetching/source fetching/beside
  local pip=(env PIP_ROOT_USER_ACTION=ignore python3 -m pip --quiet --disable-pip-version-check --no-cache-dir)
  # What pip needs to read a package's metadata; nothing of it is built in.
  "${pip[@]}" install --target fetching/tools --no-deps --require-hashes --only-binary :all: \
    --requirement "$here/../../kept_source_tools.txt"
  PYTHONPATH=$PWD/fetching/tools "${pip[@]}" download --no-deps --require-hashes --no-binary :all: --no-build-isolation \
    --dest fetching --requirement "$here/source.txt"
  unpack fetching/*.tar.gz
  patch --quiet --strip 1 --directory fetching/source --input "$changes"
  mv fetching/beside beside
  mv fetching/source source
  rm -rf fetching
}

kept_source_build() {
  local library=$1
  [[ -f $library ]] && return
  rm -rf building
  mkdir -p building "$(dirname "$library")"
  local compiler=("${CXX:-c++}")
  if command -v ccache >/dev/null; then
    compiler=(ccache "${compiler[@]}")
  fi
  "${compiler[@]}" -std=c++17 -O2 -DNDEBUG -fPIC -w "${compile[@]}" -c "$here/library.cc" -o building/library.o
  ar rcs building/library.a building/library.o
  mv building/library.a "$library"
  rm -rf building
}

kept_source() {
  local folder
  folder=$(kept_source_folder)
  mkdir -p "$folder"
  cd "$folder" || return
  exec 9>lock
  flock 9
  case $1 in
    fetch)
      kept_source_fetch >&2
      printf '%s\n' "$folder"
      ;;
    build) kept_source_build "$2" ;;
    *) return 2 ;;
  esac
}
