# shellcheck shell=bash
# ./dev lint. Read by ./dev.

# Includes that reach into a room of another module: what modules share is in their include/ and
# internal/ folders. Tests of a module see all of it; lib knows no other module, ipc only lib.
foreign_includes() {
  git grep -oE '^#include "[^"]+"' -- '*.cc' '*.h' '*.cu' '*.cuh' | awk -F '[:"]' '
    { split($1, from, "/"); split($3, to, "/")
      module = from[1] == "test" ? from[2] : from[1]
      whole = from[1] == "test" && module !~ /^(lib|ipc|gpu|tool)$/
      if (to[2] == "" || from[1] == to[1] || module == to[1] || whole) next  # beside it, or its own
      if (to[2] != "internal" || module == "lib" || (module == "ipc" && to[1] != "lib"))
        print $1 ": " $3 " is of another module" }'
}

# The commit that work is compared with: where it left origin's main branch, or on that branch the
# commit before. Nothing in a clone that is too shallow to have either.
commit_before() {
  local commit
  commit=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [[ -z $commit || $commit == "$(git rev-parse HEAD)" ]]; then
    commit=$(git rev-parse --quiet --verify HEAD~1 || true)
  fi
  echo "$commit"
}

# Prints the sources that differ from a commit, and for each header that does one that includes it.
changed_sources() {
  local header
  git diff --name-only --diff-filter=d "$1" -- '*.cc'
  git diff --name-only --diff-filter=d "$1" -- '*.h' | while read -r header; do
    git grep -lF -e "\"$header\"" -e "<${header#*include/}>" -e "\"${header##*/}\"" -- '*.cc' |
      sed -n 1p || true
  done
}

readonly quick_sources=8

# Sets `changed` to what a quick run chooses from, and `since` to why these.
find_changes() {
  local commit
  commit=$(commit_before)
  if [[ -n $commit ]]; then
    mapfile -t changed < <(changed_sources "$commit" | sort -u)
    since="that changed since $(git rev-parse --short "$commit"), or include what did"
  else
    mapfile -t changed < <(git ls-files '*.cc')
    since='there are; this clone has no commit to compare with'
  fi
}

# tidy LIMIT SOURCE…: clang-tidy on those that are built here (the CUDA device's are not where there is
# no toolkit), at most so many of them; for one commit these are always the same. A quick run leaves
# out the analyzer, which is most of the work.
tidy() {
  local limit=$1 built=() checks=() headers=()
  shift
  need tidy
  debug || return
  [[ -s build/debug/compile_commands.json ]] || die 'lint: build/debug has no compile_commands.json'
  mapfile -t headers < <(sed -n 's,^build \([^ :]*\.h\): CUSTOM_COMMAND.*,\1,p' build/debug/build.ninja)
  ((${#headers[@]} == 0)) || ninja -C build/debug "${headers[@]}" >&2
  mapfile -t built < <(comm -12 <(printf '%s\n' "$@" | sort -u) \
    <(grep -oP '"file": "\.\./\.\./\K[^"]+' build/debug/compile_commands.json | sort -u) |
    shuf -n "$limit" --random-source=<(yes "$(git rev-parse HEAD)" 2>/dev/null))
  ! $quick || checks=(--checks='-clang-analyzer-*')
  say "clang-tidy ${checks[*]}: ${#built[@]} of $# sources $since"
  ((${#built[@]})) || return 0
  ! $quick || printf '   %s\n' "${built[@]}" >&2
  # Warnings of the compiler's own are the build's business; clang knows other names for some.
  printf '%s\0' "${built[@]}" | xargs -0 -n 1 -P "$(nproc)" \
    clang-tidy -p build/debug --quiet --extra-arg=-Wno-unknown-warning-option "${checks[@]}" \
    2> >(grep -v ' warnings generated' >&2) && return
  # May be in a file that only includes what changed, so it does not fail a quick run.
  $quick && say 'clang-tidy: see above; a quick run does not fail for that'
}

lint() {
  local foreign sources=() scripts=() changed=() since='' limit=$quick_sources quick=false status=0
  case $* in
    '') ;;
    --quick) quick=true ;;
    *) die "lint: no option '$*'" ;;
  esac
  cd "$root"
  need format
  mapfile -t sources < <(git ls-files '*.cc' '*.h' '*.cu' '*.cuh')
  mapfile -t scripts < <(git grep -lE '^#!.*\b(ba)?sh\b')
  ((${#sources[@]} && ${#scripts[@]})) || die 'lint: git knows of no sources here'
  say "clang-format, shellcheck, includes: ${#sources[@]} sources, ${#scripts[@]} scripts"
  clang-format --dry-run -Werror "${sources[@]}" || status=1
  shellcheck --external-sources --check-sourced "${scripts[@]}" || status=1
  foreign=$(foreign_includes)
  [[ -z $foreign ]] || { printf '%s\n' "$foreign" >&2; status=1; }
  if $quick; then
    find_changes
  else
    mapfile -t changed < <(git ls-files '*.cc')
    since='there are'
    limit=${#changed[@]}
  fi
  if ((${#changed[@]})); then
    # What a quick run finds is shown, and fails nothing: it may be in a file that only includes what
    # changed.
    tidy "$limit" "${changed[@]}" || $quick || status=1
  else
    say "clang-tidy: no sources $since"
  fi
  ((status == 0)) || die 'lint: see above'
  say 'lint: clean'
}
