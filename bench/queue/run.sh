#!/bin/sh
# The queue in front of the engines, over real sockets: what is lost, who waits how long, who goes first, what it costs.
# `bench/queue/run.sh [--quick] [--only lost,shards,told,idle,turns,burst]`; --help lists flags.
set -eu
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
cargo build --release -p queue --locked >&2
if [ -z "${WARMFRONT:-}" ]; then
    cargo build --release --bin warmfront --locked >&2
    WARMFRONT=$target/release/warmfront
    export WARMFRONT
fi
exec "$target/release/queue" "$@"
