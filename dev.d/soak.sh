# shellcheck shell=bash
# ./dev soak. Read by ./dev.

soak_usage() {
  cat <<'TEXT'
Usage: ./dev soak [--seeds N] [--first N]
       ./dev soak crash [KILLS]
       ./dev soak load [SECONDS]
       ./dev soak python [SEEDS]

Runs the simulation of a scheduler, its workers, their device and the channels between them from
--seeds numbers (1,000,000) on, beginning with --first (1), on all cores; each checks every row that
was read. Ends at the first seed that fails, and says how to replay it:
build/release/test/simulation/simulation --seed N

crash: at each point of each side and transport as many (2000) processes are killed, with random
seeds; a failure names the seed that replays it. load: 8 readers and 2 workers of shm for so long
(600), and on top for a sixth of it each: the same with readers that stall for a little, and for
longer than the timeout; 2 readers and 2 workers of device, and those with readers that stall. Says
what publish() cost in each. python: makes the calls of so many (500) simulated histories through the
Python package, and compares what comes of each.
TEXT
}

soak() {
  case ${1:-} in
    crash | load | python)
      "soak_$1" "${2:-}"
      return
      ;;
  esac
  local seeds=1000000 first=1
  while (($#)); do
    case $1 in
      --seeds | --first)
        [[ ${2:-} =~ ^[1-9][0-9]{0,17}$ ]] || die "soak: $1 needs a number from 1 on"
        [[ $1 == --seeds ]] && seeds=$2 || first=$2
        shift 2
        ;;
      *)
        soak_usage >&2
        die "soak: no option '$1'"
        ;;
    esac
  done
  release tests
  compile release simulation
  soak_shards "$root/build/release/test/simulation/simulation" "$first" "$seeds" "$(nproc)"
}

soak_load() {
  local seconds=${1:-600}
  build_crash_tests "$seconds"
  MOETAP_LOAD_SECONDS=$seconds "$crash_tests" --gtest_brief=1 --gtest_filter='Load.*'
}

soak_python() {
  local seeds=${1:-500} python
  [[ $seeds =~ ^[1-9][0-9]{0,8}$ ]] || die "soak: '$seeds' is no number from 1 on"
  python=$(package_python)
  [[ -n $python ]] || die 'soak: the Python package cannot be built here'
  release tests
  compile release simulation python_reader_stub python_capturer_stub
  PYTHONPATH=$root/build/release/python PYTHONDONTWRITEBYTECODE=1 MOETAP_SEEDS=$seeds \
    MOETAP_SIMULATION=$root/build/release/test/simulation/simulation \
    "$python" -m pytest -q -p no:cacheprovider "$root/test/python/test_simulation.py"
}

# Most of a kill is waiting until the other side notices it, so there is room for several at once.
soak_crash() {
  local kills=${1:-2000} started=$SECONDS
  build_crash_tests "$kills"
  "$crash_tests" --gtest_list_tests --gtest_filter='EachPoint/*' |
    awk '/^[^ ]/ { suite = $1; next } { print suite $1 }' |
    MOETAP_CRASH_KILLS=$kills xargs -P $((4 * $(nproc))) -I '{}' \
      "$crash_tests" --gtest_brief=1 '--gtest_filter={}' |
    awk '/^(Running main|Note: |\[=+\]|\[  PASSED  \])/ { next }
         { print }
         / kills, / { kills += $(NF - 8); rows += $(NF - 6); if ($(NF - 1) > ms) ms = $(NF - 1) }
         END { printf "%d kills, %d rows verified, noticed within %d ms\n", kills, rows, ms }' ||
    die "soak: failed after $((SECONDS - started)) s"
  echo "$kills kills at each point: all right, in $((SECONDS - started)) s"
}

# build_crash_tests NUMBER: builds $crash_tests, if the number is one.
build_crash_tests() {
  [[ $1 =~ ^[1-9][0-9]{0,8}$ ]] || die "soak: '$1' is no number from 1 on"
  release tests
  compile release crash_tests
  crash_tests=$root/build/release/test/crash/crash_tests
}

# soak_shards PROGRAM FIRST SEEDS JOBS: a part of the seeds in each of as many processes.
soak_shards() {
  local program=$1 first=$2 seeds=$3 jobs=$4 job count outputs pids=() status=0 started=$SECONDS
  outputs=$(mktemp -d)
  # shellcheck disable=SC2064  # what they are now
  trap "rm -r '$outputs'" EXIT
  ((jobs <= seeds)) || jobs=$seeds
  say "$seeds seeds from $first on, in $jobs processes"
  for ((job = 0; job < jobs; ++job)); do
    count=$((seeds * (job + 1) / jobs - seeds * job / jobs))
    "$program" --first "$first" --seeds "$count" >"$outputs/$job" &
    pids+=("$!")
    first=$((first + count))
  done
  for ((job = 0; job < jobs && status == 0; ++job)); do
    wait -n || status=1
  done
  if ((status)); then
    kill "${pids[@]}" 2>/dev/null || true
    wait || true
    grep -h -A 1 '^seed ' "$outputs"/* || true
    die "soak: failed after $((SECONDS - started)) s"
  fi
  awk '/^ +[0-9]/ { n = $1; $1 = ""; if (!($0 in sum)) names[++kinds] = $0; sum[$0] += n }
       END { for (i = 1; i <= kinds; ++i) printf "  %16d%s\n", sum[names[i]], names[i] }' "$outputs"/*
  echo "$seeds seeds: all right, in $((SECONDS - started)) s"
}
