# shellcheck shell=bash
# What ./dev needs, and how it comes here. Read by ./dev.

at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

have_meson() { have meson && at_least "$meson_minimum" "$(meson --version)"; }
have_library() { have pkg-config && pkg-config --exists "$1"; }
have_boost() {
  "${CXX:-c++}" -x c++ -fsyntax-only - 2>/dev/null <<'CODE'
#include <boost/interprocess/mapped_region.hpp>
#include <boost/version.hpp>
static_assert(BOOST_VERSION >= 107400);
CODE
}

# A Python that can run the script's imports: the first on PATH need not be the system's.
python_with() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c "import $1" 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  return 1
}

# Prints the Debian packages that are missing for the given purposes.
missing_packages() {
  local purpose
  for purpose in "$@"; do
    case $purpose in
      build)
        have "${CXX:-c++}" || echo g++
        have_meson || echo meson
        have ninja || echo ninja-build
        have pkg-config || echo pkg-config
        have_boost || echo libboost-dev
        have_library fmt || echo libfmt-dev
        have_library nlohmann_json || echo nlohmann-json3-dev
        have_library CLI11 || echo libcli11-dev
        ;;
      tests)
        have_library gtest_main || echo libgtest-dev
        have_library mpi-cxx || echo libopenmpi-dev
        have mpirun || echo openmpi-bin
        ;;
      benchmarks) have_library benchmark || echo libbenchmark-dev ;;
      figures) python_with 'numpy, matplotlib' >/dev/null || printf '%s\n' python3-numpy python3-matplotlib ;;
      fuzz) have "${FUZZ_CXX:-clang++}" || echo clang ;;
      format)
        have clang-format || echo clang-format
        have shellcheck || echo shellcheck
        ;;
      tidy) have clang-tidy || echo clang-tidy ;;
      python)
        have python3 || echo python3
        python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
        python3 -c 'import os, sysconfig
assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || echo python3-dev
        ;;
      docs) have doxygen || echo doxygen ;;
      engines) ldconfig -p | grep -q libtcmalloc || echo libtcmalloc-minimal4 ;;
    esac
  done
}

need() {
  local packages=() as_root=()
  mapfile -t packages < <(missing_packages "$@")
  if ((${#packages[@]})); then
    ((EUID == 0)) || as_root=(sudo -n)
    if ! have apt-get; then
      say "no apt here; Meson fetches missing libraries. Missing, by Debian names: ${packages[*]}"
    elif ! apt_install; then
      say "going on without; to install them: sudo apt-get install ${packages[*]}"
    fi
  fi
  [[ " $* " != *' build '* ]] || have_meson || venv_meson
}

# Installs need's `packages`, asking nothing (a sudo that wants a password fails).
apt_install() {
  say "installing with apt: ${packages[*]}"
  "${as_root[@]}" apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2
}

# For systems whose Meson is older than ours.
venv_meson() {
  have python3 || die "needs Meson $meson_minimum or newer; install it, or Python 3 with venv"
  if [[ ! -x $root/build/tools/bin/meson ]]; then
    say "no Meson >= $meson_minimum here; installing it with pip into build/tools"
    python3 -m venv "$root/build/tools"
    "$root/build/tools/bin/pip" install --quiet 'meson>=1.0' ninja
  fi
  PATH=$root/build/tools/bin:$PATH
}

# environment NAME PACKAGE…: a virtual environment in build/tools/NAME with these packages of PyPI, made
# once. Prints its Python; fails where it cannot be made.
environment() {
  local directory=$root/build/tools/$1
  shift
  if [[ ! -f $directory/complete ]]; then
    say "setting up ${directory#"$root"/}: $*"
    { python3 -m venv "$directory" &&
      "$directory/bin/pip" install --quiet --disable-pip-version-check "$@" &&
      touch "$directory/complete"; } >&2 || return
  fi
  echo "$directory/bin/python"
}

# Prints the Python that the package is built for and tested with, in an environment of its own;
# nothing where that cannot be made.
package_python() {
  [[ -f $root/build/tools/python/complete ]] || need python >&2
  { python3 -c 'import sys; assert sys.version_info >= (3, 10)' >&2 &&
    environment python 'nanobind>=3.1,<4' numpy pytest mypy; } ||
    say 'going on without the Python package: it needs Python 3.10, and pip with an index'
}
