# shellcheck shell=bash
# ./dev emulate: the tests of the device `cuda` without a GPU. Read by ./dev.

# The emulator stands beside the checkout, or it is not there.
# shellcheck disable=SC2154  # set by ./dev
emulator=$root/../shared/emulated_gpu
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)

emulate_usage() {
  cat <<'TEXT'
Usage: ./dev emulate [SEED…]          the tests on `cuda`, once for each seed (1 and 2)
       ./dev emulate coverage         which instructions of the library's kernels the differential
                                      tests execute
       ./dev emulate mutants FROM TO  change one instruction in each run of the differential tests,
                                      and say which changes they did not notice

Needs ../shared/emulated_gpu, which runs nvcc's PTX, and nvcc.
MOETAP_DIFFERENTIAL_CASES: of the differential tests (150; 1500 for coverage).
TEXT
}

can_emulate() { [[ -f $emulator/rt.cc && -x $nvcc ]]; }

# Makes a CUDA root of the emulator and what it lacks, and builds the tests on it.
build_emulated() {
  local cuda to=$root/build/emulated.root runtime
  local missing=$root/test/gpu/emulated/missing_calls.cc
  cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  runtime=$to/lib64/libcudart_static.so
  mkdir -p "$to/lib64"
  if [[ ! $runtime -nt $missing || ! $runtime -nt $emulator/rt.cc ]]; then
    local flags=(-std=c++20 -O2 -fPIC -pthread "-I$cuda/include")
    "${CXX:-c++}" "${flags[@]}" -DcudaStreamGetCaptureInfo=emulated_capture_info -c \
      -o "$to/rt.o" "$emulator/rt.cc"
    "${CXX:-c++}" "${flags[@]}" -shared -o "$runtime" "$to/rt.o" "$missing" -ldl
  fi
  "$emulator/emulated-gpu" root "$to"
  PATH=$to/bin:$PATH configure emulated --buildtype=release -Dcuda=enabled -Dnccl=disabled \
    -Dmpi=disabled -Dbenchmarks=false -Dtool=false -Dexamples=false
  PATH=$to/bin:$PATH compile emulated test/gpu/gpu_tests
}

run_emulated() {
  "$root/build/emulated/test/gpu/gpu_tests" --gtest_brief=1 "$@"
}

# The emulator knows no legacy stream.
emulated_tests() {
  local seed status=0
  for seed in "$@"; do
    say "emulated GPU, seed $seed"
    EMU_SEED=$seed EMU_DEVICES=2 EMU_JITTER=$((seed % 4 * 3)) EMU_REPORT=$root/build/emulated/report-$seed.txt \
      MOETAP_DIFFERENTIAL_CASES=${MOETAP_DIFFERENTIAL_CASES:-150} \
      run_emulated --gtest_filter='*cuda*:Cuda.*-Cuda.RefusesWorkOnTheLegacyStream*' || status=1
  done
  return "$status"
}

emulated_coverage() {
  local report=$root/build/emulated/coverage.txt
  rm -f "$report"
  EMU_SEED=1 EMU_COVERAGE=1 EMU_REPORT=$report \
    MOETAP_DIFFERENTIAL_CASES=${MOETAP_DIFFERENTIAL_CASES:-1500} \
    run_emulated --gtest_filter='*Differential*cuda*'
  python3 "$root/test/gpu/emulated/coverage.py" "$report"
}

emulated_mutants() {
  local n report=$root/build/emulated/mutant.txt
  for ((n = $1; n <= $2; ++n)); do
    local noticed=noticed
    rm -f "$report"
    if EMU_SEED=1 EMU_MUTANT=$n EMU_REPORT=$report \
      MOETAP_DIFFERENTIAL_CASES=${MOETAP_DIFFERENTIAL_CASES:-150} \
      timeout 300 "$root/build/emulated/test/gpu/gpu_tests" --gtest_brief=1 \
      --gtest_filter='*Differential*cuda*' >/dev/null 2>&1; then
      noticed=unnoticed
    fi
    # The report is missing where the program was ended.
    printf '%s\t%s\t%s\n' "$n" "$noticed" "$(grep -ahP '^M\t' "$report" 2>/dev/null || echo 'no report')"
  done
}

emulate() {
  can_emulate || die "emulate: needs $emulator and nvcc; neither is part of moetap"
  need build tests
  build_emulated
  case ${1:-} in
    coverage) emulated_coverage ;;
    mutants) emulated_mutants "${2:-1}" "${3:-20}" ;;
    *)
      (($#)) || set -- 1 2
      emulated_tests "$@"
      ;;
  esac
}
