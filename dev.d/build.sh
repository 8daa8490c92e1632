# shellcheck shell=bash
# ./dev build, and what other commands build. Read by ./dev.

# configure NAME OPTION…: sets build/NAME up, once.
configure() {
  local directory=$root/build/$1
  shift
  if [[ ! -f $directory/build.ninja ]]; then
    say "configuring ${directory#"$root"/}: meson setup $*"
    meson setup "$directory" "$root" "$@" >&2
  fi
}

compile() {
  local directory=$root/build/$1
  shift
  say "building ${directory#"$root"/}"
  meson compile -C "$directory" "$@" >&2
}

# Architectures of the GPUs in this machine, as 80 or 80,90; nothing where there is none.
gpus_here() {
  have nvidia-smi || return 0
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    tr -d '. ' | sort -un | paste -sd , || true
}

# release PART…: sets build/release up with these parts of the project beside the libraries and the
# demo, and installs what they need. Parts are tests and benchmarks; those that are there stay.
release() {
  local directory=$root/build/release part options=() gpus python
  need build "$@"
  gpus=$(gpus_here)
  configure release --buildtype=release -Dtests=false -Dbenchmarks=false -Dtool=false \
    -Dmpi=disabled -Dnccl=disabled ${gpus:+"-Dgpu_architectures=$gpus"}
  for part in "$@"; do
    grep -qsxF "$part" "$directory/parts" && continue
    options+=("-D$part=true")
    if [[ $part == tests ]]; then
      options+=(-Dtool=true -Dmpi=auto -Dnccl=auto)
      python=$(package_python)
      [[ -z $python ]] || options+=(-Dpython=build "-Dpython_interpreter=$python")
    fi
  done
  if ((${#options[@]})); then
    meson configure "$directory" "${options[@]}" >&2
    printf '%s\n' "$@" >>"$directory/parts"
  fi
}

# Each file is compiled by itself in the debug build, as its author wrote it.
debug() {
  need build tests benchmarks
  configure debug --buildtype=debug --unity=off -Db_pch=false
}

build() {
  local type=release
  case ${1:-} in
    release | debug)
      type=$1
      shift
      ;;
  esac
  case $type in
    release) release tests benchmarks ;;
    debug) debug ;;
  esac
  compile "$type" "$@"
}
