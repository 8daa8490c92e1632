# shellcheck shell=bash
# ./dev test and ./dev sanitize. Read by ./dev.

# Prints 'N passed, N failed, N skipped', test cases counted, from the log of the last run in a
# build directory. A program that failed beside its cases (a crash, a leak at its end) is a failure.
summary() {
  python3 - "$1/meson-logs/testlog.junit.xml" "$2" <<'PYTHON'
import sys
import xml.etree.ElementTree as et

try:
    cases = et.parse(sys.argv[1]).getroot().findall(".//testcase")
except FileNotFoundError:
    cases = []
failed = sum(1 for c in cases if c.find("failure") is not None or c.find("error") is not None)
skipped = sum(1 for c in cases if c.find("skipped") is not None or c.get("status") == "notrun")
passed = len(cases) - failed - skipped
if sys.argv[2] != "0" and failed == 0:
    failed = 1
print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(1 if failed or not passed else 0)
PYTHON
}

# run_tests DIRECTORY PREFIX… -- ARGUMENT…: runs the tests, started through PREFIX, then sets
# `outcome` to their summary. Fails if one failed.
run_tests() {
  local directory=$1 prefix=() arguments=() argument status=0
  shift
  while [[ $1 != -- ]]; do
    prefix+=("$1")
    shift
  done
  shift
  for argument in "$@"; do
    [[ $argument == --gtest_* ]] && argument=--test-args=$argument
    arguments+=("$argument")
  done
  # GoogleTest's reports of an earlier run must not stand in for a program that crashes in this one.
  rm -f "$directory"/*.xml "$directory"/meson-logs/testlog.junit.xml
  "${prefix[@]}" meson test -C "$directory" --no-rebuild --print-errorlogs "${arguments[@]}" || status=$?
  outcome=$(summary "$directory" "$status")
}

# The last line is the outcome alone: continuous integration reads it.
tests() {
  local outcome status=0
  run_tests "$root/build/release" -- "$@" || status=1
  echo "$outcome"
  return "$status"
}

# ThreadSanitizer needs its shadow's addresses free; kernels that randomise more than 28 bits may
# take them, so ask for no randomisation where that is allowed.
without_randomisation() {
  local bits=/proc/sys/vm/mmap_rnd_bits
  if [[ -r $bits ]] && (($(<"$bits") <= 28)); then
    return
  fi
  if setarch "$(uname -m)" -R true 2>/dev/null; then
    printf '%s\n' setarch "$(uname -m)" -R
  else
    say 'this kernel may place memory where ThreadSanitizer cannot work; if so: sysctl vm.mmap_rnd_bits=28'
  fi
}

sanitize() {
  local name directory prefix outcome failures=()
  (($#)) || set -- 'address,undefined' thread
  for name in "$@"; do
    case $name in
      address | undefined | address,undefined | thread | leak) ;;
      *) die "sanitize: no sanitizer '$name'; there are address, undefined, address,undefined, thread and leak" ;;
    esac
  done
  need build tests
  export ASAN_OPTIONS=${ASAN_OPTIONS:-halt_on_error=1:detect_leaks=1}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
  export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
  for name in "$@"; do
    directory=sanitize-${name//,/-}
    prefix=()
    configure "$directory" --buildtype=debugoptimized "-Db_sanitize=$name" -Db_lundef=false \
      -Dbenchmarks=false
    compile "$directory"
    [[ $name != *thread* ]] || mapfile -t prefix < <(without_randomisation)
    say "tests under -fsanitize=$name"
    run_tests "$root/build/$directory" "${prefix[@]}" -- || failures+=("$name")
    say "-fsanitize=$name: $outcome"
  done
  ((${#failures[@]} == 0)) || die "failed under: ${failures[*]}"
}
