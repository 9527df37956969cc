#!/usr/bin/env bash
# Installs what is needed, builds, and runs every test: layers and style (tests/tidy), unit, scenario, property and cluster tests (ctest),
# acceptance and page tests (pytest), and the runtime's tests again under the address and thread sanitizers.
#
#   ./test.sh              everything
#   ./test.sh PART...      some of: tidy unit acceptance asan tsan

. "$(dirname "${BASH_SOURCE[0]}")/deploy/setup.sh"

parts=${*:-tidy unit acceptance asan tsan}
for part in $parts; do
  case $part in tidy|unit|acceptance|asan|tsan) ;; *) die "unknown part '$part': want some of tidy unit acceptance asan tsan" ;; esac
done
wants() { case " $parts " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

# A test must not find another cluster of this user, nor leave files in the user's home.
test_home=$(mktemp -d "${TMPDIR:-/tmp}/argosy-test.XXXXXX")
cleanup() { rm -rf "$test_home"; }
trap cleanup EXIT
export ARGOSY_SESSIONS_DIR=$test_home/sessions

passed=0 failed=0 failures=""
run_part() {
  local name=$1; shift
  step "test: $name"
  if "$@"; then passed=$((passed + 1)); step_done
  else failed=$((failed + 1)); failures="$failures\n  $name"; say "    FAILED: $name"
  fi
}

# shellcheck disable=SC2086
install_system_packages $TEST_PACKAGES
install_python_packages "libtorch (the torch wheel)" "$ARGOSY_ROOT/deploy/requirements.txt"
install_python_packages "what the tests compare with" "$ARGOSY_ROOT/deploy/requirements-test.txt"
wants acceptance && build_web_page
if wants unit || wants acceptance; then
  build_targets "everything, with tests" -DARGOSY_TESTS=ON -- all
fi

wants tidy && run_part "layers and style" "$VENV/bin/python" -m pytest -q "$ARGOSY_ROOT/tests/tidy"
wants unit && run_part "unit, scenario, property and cluster tests" \
  ctest --test-dir "$BUILD_DIR" --output-on-failure --no-tests=error -j 2
wants acceptance && run_part "acceptance and page tests" \
  env ARGOSY_BUILD_DIR="$BUILD_DIR" "$VENV/bin/python" -m pytest -q --timeout 600 --maxfail 10 --durations 5 "$ARGOSY_ROOT/tests/acceptance" "$ARGOSY_ROOT/tests/web"

sanitized() {
  local preset=$1 build=$ARGOSY_ROOT/build/$1
  quietly "configure $preset" cmake -S "$ARGOSY_ROOT" --preset "$preset" -B "$build" -DARGOSY_UNITY=ON &&
  quietly "compile $preset" env NINJA_STATUS='[%f/%t] ' cmake --build "$build" -j "$(build_jobs)" &&
  ctest --test-dir "$build" --output-on-failure --no-tests=error -j 2
}
wants asan && run_part "address and undefined-behaviour sanitizers" sanitized asan
wants tsan && run_part "thread sanitizer" sanitized tsan

say ""
[ "$failed" -eq 0 ] || printf 'failed:%b\n' "$failures"
say "$passed passed, $failed failed"
exit $((failed > 0))
