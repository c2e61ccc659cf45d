#!/usr/bin/env bash
# The Debian package in a clean Debian, and the unit under a systemd of its own: installed, run, killed, wedged,
# upgraded under load, removed, purged. Ends at the first thing that is not as it should be; removes what it made.
#
#   sudo systemd/try/run.sh [STEP...]     all steps of supervised.py, or those named
#
# Wants root, debootstrap and systemd-nspawn (Debian: debootstrap, systemd-container), cargo-deb, and a mirror that apt
# is configured for. No network but a loopback of its own once Debian is there. Takes some five minutes.
#
# ROOT  a Debian made by `systemd/try/run.sh --root DIR`, copied instead of a new one
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
case ${1-} in --help | -h) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" && exit 0 ;; esac

say() { printf '\n== %s\n' "$*"; }
die() { echo "run.sh: $*" >&2 && exit 2; }
[[ $EUID -eq 0 ]] || die "wants root, for namespaces and a Debian root"
for tool in debootstrap systemd-nspawn nsenter; do
    command -v $tool >/dev/null || die "there is no $tool: apt-get install debootstrap systemd-container"
done

# The suite and mirror that apt uses here, without its updates.
debian() {
    local target
    target=$(apt-get indextargets --format '$(LABEL) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' 'Component: main' |
        awk '$1 == "Debian" && $2 !~ /-/ { print $2, $3; exit }')
    [[ $target ]] || die "apt is not configured for a Debian mirror here"
    # shellcheck disable=SC2086
    debootstrap --variant=minbase --include=systemd-sysv,dbus,python3 ${target% *} "$1" "${target#* }" >"$1.log" 2>&1 ||
        { tail -n 20 "$1.log" >&2 && die "debootstrap failed"; }
    rm -rf "$1.log" "$1"/var/cache/apt/archives/*.deb
}
if [[ ${1-} == --root ]]; then
    debian "${2:?which directory?}" && exit 0
fi
cargo deb --version >/dev/null 2>&1 || die "there is no cargo-deb: cargo install cargo-deb --locked"

work=$(mktemp -d "${TMPDIR:-/tmp}/warmfront-systemd.XXXXXX")
root=$work/debian boot=''
# A container is run by hand where no systemd runs this machine.
outside=()
[[ $(cat /proc/1/comm) == systemd ]] || outside=(--register=no --keep-unit)
cleanup() {
    local status=$? folder
    if [[ $boot ]] && kill -0 "$boot" 2>/dev/null; then
        kill -TERM "$boot" 2>/dev/null || true # nspawn has its systemd power off
        wait "$boot" 2>/dev/null || true
    fi
    rm -rf --one-file-system "$work"
    for folder in "${cgroups[@]}"; do
        [[ ! -d $folder ]] || find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    exit $status
}
# What nspawn makes for a container by hand and leaves behind.
cgroups=()
for folder in /sys/fs/cgroup{,/unified,/systemd}/{payload,supervisor}; do [[ -d $folder ]] || cgroups+=("$folder"); done
trap cleanup EXIT
trap 'exit 130' INT TERM

say "package"
cargo deb --locked --quiet -o "$work/warmfront.deb" >/dev/null
cargo deb --locked --quiet --no-build --deb-revision 2 -o "$work/newer.deb" >/dev/null
dpkg-deb --contents "$work/warmfront.deb" | awk '$1 !~ /^d/ { print $1, $3, $6 }'

say "a clean Debian"
if [[ ${ROOT-} ]]; then cp -a --reflink=auto "$ROOT" "$root"; else debian "$root"; fi
container=(systemd-nspawn --quiet --directory="$root" --machine=warmfront-try --private-network --bind-ro="$here:/try"
    --bind-ro="$work/warmfront.deb:/package.deb" --bind-ro="$work/newer.deb:/newer.deb" "${outside[@]}")

say "installed and purged where no systemd runs"
"${container[@]}" --pipe --as-pid2 /try/package.sh

say "under systemd"
"${container[@]}" --boot --console=pipe </dev/null >"$work/console" 2>&1 &
boot=$!
for _ in {1..100}; do
    init=$(pgrep --parent "$boot" --full 'lib/systemd/systemd' || true)
    [[ -z $init ]] || ! nsenter --target "$init" --all systemctl is-system-running --wait >/dev/null 2>&1 || break
    kill -0 "$boot" 2>/dev/null || break
    sleep 0.1
done
if ! nsenter --target "${init:-0}" --all systemctl is-system-running; then
    cat "$work/console" >&2 && die "systemd did not come up"
fi
nsenter --target "$init" --all env PYTHONDONTWRITEBYTECODE=1 python3 /try/supervised.py "$@"
say "all as it should be"
