#!/bin/sh
# A front laid out by a profile of its own work: built once with counters, driven for a minute by the loads of bench/peers
# on both drivers, then built anew as target/guided/release/warmfront. About eight minutes on two cores.
#
#   bench/guided.sh
#
# It does the same as any other build; only which code stands together and which calls are inlined differs. What the loads do
# not run is laid out as what never runs: build on a CPU with the vector instructions of the one that it is for.
set -eu
cd "$(dirname "$0")/.."

case "${1:-}" in
-h | --help)
    sed -n '2,/^set -eu/{/^set/d;s/^# \{0,1\}//p;}' "$0"
    exit 0
    ;;
?*)
    echo "guided.sh takes no arguments, and was given: $1" >&2
    exit 2
    ;;
esac

profdata() {
    echo "$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/llvm-profdata"
}
[ -x "$(profdata)" ] || rustup component add llvm-tools >&2 || {
    echo "llvm-profdata is missing, which sums the counters up: rustup component add llvm-tools" >&2
    exit 1
}

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/guided
profiles=$target/profiles
export CARGO_TARGET_DIR="$target"
flags=${RUSTFLAGS:-}

# Who drives is built as ever: its own time is no concern.
cargo build --release --locked -p peers >&2
RUSTFLAGS="$flags -Cprofile-generate=$profiles" cargo build --release --locked --bin warmfront >&2

# Build scripts have counted as well. The benches of kernels and rendering are left out on purpose: with their counts in the
# sum most of the gain went, weighted or not, for a reason not found (bench/README.md has the figures).
rm -rf "$profiles"
cp "$target/release/warmfront" "$target/counting"
"$target/release/peers" run --only plain,stream,prompt,speech,idle --idle-streams 500 --rounds 1 --seconds 1 --json "$target/peers.json" \
    --fronts warmfront,warmfront-uring,warmfront-warm,warmfront-uring-warm --warmfront "$target/counting" >&2

"$(profdata)" merge -o "$target/profile.profdata" "$profiles"
export RUSTFLAGS="$flags -Cprofile-use=$target/profile.profdata"
exec cargo build --release --locked --bin warmfront
