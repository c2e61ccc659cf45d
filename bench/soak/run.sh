#!/bin/sh
# A front under load and faults: every reply verified, every failure explained, nothing left behind.
# `bench/soak/run.sh [--minutes 30] [--driver epoll|uring] [--json FILE]`, or with --upgrades; --help lists flags.
set -eu
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
cargo build --release -p soak --locked >&2
if [ -z "${WARMFRONT:-}" ]; then
    cargo build --release --bin warmfront --locked >&2
    WARMFRONT=$target/release/warmfront
    export WARMFRONT
fi
exec "$target/release/soak" run "$@"
