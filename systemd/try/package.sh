#!/bin/bash
# Installs, removes and purges the package in a Debian without a running systemd, as in an image that is being built.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

die() { echo "package.sh: $*" >&2 && exit 1; }

# Every path but those of the kernel and of this trial; files with a checksum. Left out: what apt, dpkg and ld keep for
# themselves (logs, caches, their own state), which a package neither makes nor can remove.
state() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /try -o -path '/*.deb' \
        -o -path '/var/log/*' -o -path '/var/cache/*' -o -path '/var/lib/apt/*' -o -path '/var/lib/dpkg/*-old' \
        -o -path /var/lib/dpkg/status \) -prune -o \( -type f -exec sha256sum {} + -o -printf '%y %m %U:%G %p %l\n' \) |
        LC_ALL=C sort
}

state >/tmp/before
apt-get install -qq -y /package.deb >/tmp/apt 2>&1 || { cat /tmp/apt && die "it cannot be installed"; }
echo "installed: $(dpkg-query -W -f '${Package} ${Version}, ${db:Status-Status}' warmfront)"
[[ ! -e /etc/systemd/system/multi-user.target.wants/warmfront.service ]] || die "it was enabled without being asked for"
[[ $(dpkg-query -W -f '${Conffiles}' warmfront) == *"/etc/warmfront/warmfront.toml "* ]] || die "no conffile"

status=0
warmfront check --config /etc/warmfront/warmfront.toml >/tmp/said 2>&1 || status=$?
[[ $status -eq 78 ]] && grep -q 'no engine to forward to' /tmp/said || { cat /tmp/said && die "check of no engines: $status"; }
echo "check before engines are named: status $status, \"$(grep -o 'no engine to forward to' /tmp/said)\""
warmfront check --no-engines --config /usr/share/doc/warmfront/examples/warmfront.toml >/tmp/said ||
    { cat /tmp/said && die "check of the example: $?"; }
echo "check of the example: $(tail -n 1 /tmp/said)"

mkdir -p /etc/warmfront && echo key >/etc/warmfront/gpu-1.key
apt-get remove -qq -y warmfront >/tmp/apt 2>&1 || { cat /tmp/apt && die "it cannot be removed"; }
[[ ! -e /usr/bin/warmfront && ! -e /usr/lib/systemd/system/warmfront.service ]] || die "it was removed and is there"
[[ -e /etc/warmfront/warmfront.toml && -e /etc/warmfront/gpu-1.key ]] || die "removal took the configuration"
echo "removed: the configuration stays"
apt-get purge -qq -y warmfront >/tmp/apt 2>&1 || { cat /tmp/apt && die "it cannot be purged"; }
state >/tmp/after
diff /tmp/before /tmp/after || die "purged, and this is left (>) or gone (<)"
! grep -i warmfront /var/lib/dpkg/status || die "purged, and dpkg still knows it"
echo "purged: $(wc -l </tmp/after) paths and checksums are what they were before, nothing is left"
rm -f /tmp/before /tmp/after /tmp/apt /tmp/said
