#!/bin/sh
# nginx, HAProxy, a bare relay and warmfront side by side in one run: one worker each, every reply
# byte verified. Prints tables and writes every sample as JSON. `bench/peers/run.sh --help` lists flags.
set -eu
cd "$(dirname "$0")/../.."

# Debian starts a service when it installs one; a policy of 101 forbids it for as long as we install.
install() {
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 1' INT TERM
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        ours=yes
    fi
    apt-get install -y --no-install-recommends "$@" >&2 ||
        { apt-get update >&2 && apt-get install -y --no-install-recommends "$@" >&2; } ||
        echo "could not install $*: goes on without" >&2
    if [ "${ours:-}" ]; then
        rm -f "$policy"
        trap - EXIT INT TERM
    fi
}

missing=
[ -x /usr/sbin/nginx ] || missing="$missing nginx-light"
[ -x /usr/sbin/haproxy ] || missing="$missing haproxy"
if [ "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        # shellcheck disable=SC2086 # two words are two packages
        install $missing
    else
        echo "not installed:$missing (apt-get install$missing); goes on without" >&2
    fi
fi

target=${CARGO_TARGET_DIR:-target}
# warmfront may be named instead: --warmfront PATH or $WARMFRONT.
cargo build --release -p peers >&2
if [ -z "${WARMFRONT:-}" ]; then
    cargo build --release --bin warmfront >&2
    WARMFRONT=$target/release/warmfront
    export WARMFRONT
fi
exec "$target/release/peers" run "$@"
