# shellcheck shell=bash
# ./dev fuzz. Read by ./dev.

fuzz_usage() {
  cat <<TEXT
Usage: ./dev fuzz [TARGET…] [--seconds N] [--merge]

Builds with clang, libFuzzer and the address and undefined-behaviour sanitizers, and feeds made-up
input to each target for N seconds (60), beginning with what lies in test/fuzz/corpus; --merge adds
to that what reached new code. Ends at the first target that fails, and says where its input lies.
TARGET, all if none is given:
$(cd "$root/test/fuzz/corpus" && printf '  %s\n' *)
  python  alone: calls the Python package, built with the address sanitizer, with arguments of all kinds
TEXT
}

fuzz() {
  local seconds=60 merge=false targets=() target corpus found directory=$root/build/fuzz
  while (($#)); do
    case $1 in
      --seconds)
        [[ ${2:-} =~ ^[0-9]+$ ]] || die '--seconds needs a whole number'
        seconds=$2
        shift
        ;;
      --merge) merge=true ;;
      -*)
        fuzz_usage >&2
        die "fuzz: no option '$1'"
        ;;
      *) targets+=("$1") ;;
    esac
    shift
  done
  if [[ ${targets[*]} == python ]]; then
    fuzz_python "$seconds"
    return
  fi
  need build tests fuzz
  CXX=${FUZZ_CXX:-clang++} configure fuzz --buildtype=debugoptimized -Dfuzz=true -Dbenchmarks=false \
    -Db_sanitize=address,undefined -Db_lundef=false -Dcpp_args=-fsanitize=fuzzer-no-link
  ((${#targets[@]})) || mapfile -t targets < <(ls "$root/test/fuzz/corpus")
  say "building ${directory#"$root"/}"
  ninja -C "$directory" "${targets[@]/#/test/fuzz/fuzz_}" >&2
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
  for target in "${targets[@]}"; do
    corpus=$root/test/fuzz/corpus/$target
    found=$directory/found/$target
    mkdir -p "$found/corpus"
    say "fuzzing $target for $seconds s"
    "$directory/test/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 -max_len=4096 \
      -print_final_stats=1 -artifact_prefix="$found/" "$found/corpus" "$corpus" 2>"$found/log" ||
      { tail -n 40 "$found/log" >&2; die "fuzz: $target failed; its input lies in ${found#"$root"/}"; }
    printf '%s: %s inputs run\n' "$target" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$found/log")"
    if $merge; then
      "$directory/test/fuzz/fuzz_$target" -merge=1 -use_counters=0 -max_len=4096 "$corpus" "$found/corpus" 2>>"$found/log"
    fi
  done
}

# Calls everything in the package for so many seconds.
fuzz_python() {
  local seconds=$1 python modules=() library preload=() directory=$root/build/fuzz-python
  need build
  python=$(package_python)
  [[ -n $python ]] || die 'fuzz: the Python package cannot be built here'
  configure fuzz-python --buildtype=debug -Doptimization=1 -Db_sanitize=address -Db_lundef=false \
    -Dpython=build "-Dpython_interpreter=$python" -Dtests=false -Dbenchmarks=false -Dexamples=false \
    -Dtool=false -Dmpi=disabled -Dnccl=disabled
  # Not the stubs, for which Python would load the package without the sanitizer's library.
  say "building ${directory#"$root"/}"
  mapfile -t modules < <(sed -n 's,^build \(python/moetap/[^ :]*\(\.so\|\.py\)\):.*,\1,p' "$directory/build.ninja")
  ninja -C "$directory" "${modules[@]}" >&2
  for library in libasan.so libstdc++.so; do
    preload+=("$("${CXX:-c++}" -print-file-name="$library")")
  done
  say "fuzzing the Python package for $seconds s"
  env LD_PRELOAD="${preload[*]}" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=256 PYTHONPATH="$directory/python" \
    PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore \
    "$python" "$root/test/python/fuzz.py" --seconds "$seconds" || die 'fuzz: see above; the last seed is that of the failure'
}
