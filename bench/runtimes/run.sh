#!/bin/sh
# The same relay on warmfront's own drivers, tokio, monoio, glommio and compio in one run: one thread each,
# every reply byte verified. Prints tables and writes every sample as JSON. `bench/runtimes/run.sh --help`
# lists flags.
set -eu
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
cargo build --release -p runtimes --features comparators --locked >&2
exec "$target/release/runtimes" run "$@"
