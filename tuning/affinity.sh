#!/usr/bin/env bash
# Spreads the queues of a network card over the CPUs that warmfront's shards run on.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: tuning/affinity.sh [--cpus LIST] [--apply] [--help] INTERFACE...

Prints what it would write, with the value there now; writes it only with --apply (as root).

  INTERFACE    network card, such as eth0
  --cpus LIST  the shards' CPUs, such as 0-3,8; default: one of each physical core of the machine. Name them if
               CPUAffinity=, a cpuset or `shards` leaves fewer; `warmfront check` prints them ("cores")
  --apply      write

What, and why:
  interrupts   those of receive and transmit queues are dealt to the CPUs in turn, so that no core takes in the
               packets of all shards. Default: by driver or irqbalance. irqbalance moves them back: stop it, or ban
               these interrupts (IRQBALANCE_BANNED_CPULIST). See: watch -d 'grep INTERFACE /proc/interrupts'
  XPS          each CPU sends on a queue of its own, so that shards do not wait for a queue's lock.
               Default: by driver. See: tc -s qdisc show dev INTERFACE
  RPS, RFS     only if the card has fewer receive queues than there are CPUs: packets are passed on to the CPU
               whose shard reads their connection. Costs an interrupt between CPUs for each batch; with enough
               queues the card does better alone, and both are switched off. Default: off.
               See: column 10 of /proc/net/softnet_stat (packets passed on, hexadecimal)

Nothing survives a reboot: run it from a unit ordered before warmfront.service.
TEXT
}

die() {
    echo "affinity.sh: $*" >&2
    exit 2
}

# 0-3,8 -> 0 1 2 3 8
expand() {
    local part first last
    for part in ${1//,/ }; do
        [[ $part =~ ^[0-9]+(-[0-9]+)?$ ]] || die "\"$part\" is no CPU or range of CPUs; write for example 0-3,8"
        first=${part%-*} last=${part#*-}
        [[ $first -le $last ]] || die "\"$part\" runs backwards"
        seq "$first" "$last"
    done
}

# One CPU of each physical core that is online: the first one named in its list of siblings.
physical() {
    local directory cpu file
    for directory in "$sys"/devices/system/cpu/cpu[0-9]*; do
        cpu=${directory##*/cpu}
        for file in core_cpus_list thread_siblings_list; do
            if [[ -r $directory/topology/$file ]]; then
                [[ $(expand "$(<"$directory/topology/$file")" | head -n 1) != "$cpu" ]] || echo "$cpu"
                break
            fi
        done
    done | sort -n
}

# CPUs -> the kernel's mask: hexadecimal, a comma between groups of 32.
mask() {
    local -a words=(0)
    local cpu word text
    for cpu in "$@"; do
        while ((${#words[@]} <= cpu / 32)); do words+=(0); done
        words[cpu / 32]=$((words[cpu / 32] | 1 << (cpu % 32)))
    done
    text=$(printf '%x' "${words[-1]}")
    for ((word = ${#words[@]} - 2; word >= 0; word--)); do
        text+=$(printf ',%08x' "${words[word]}")
    done
    echo "$text"
}

# A value without what the kernel pads it with: 00000000,00000003 -> 3.
plain() {
    local text=$1
    # Lists of CPUs have commas, too, but no groups of eight digits.
    if [[ $text =~ ^[0-9a-f]{1,8}(,[0-9a-f]{8})*$ ]]; then
        text=${text//,/}
        while [[ $text == 0?* ]]; do text=${text#0}; done
    fi
    echo "$text"
}

# put FILE VALUE WHY: prints what differs, and writes it with --apply.
put() {
    local now
    [[ -e $1 ]] || return 0
    now=$(cat "$1" 2>/dev/null || echo "?")
    [[ $(plain "$now") != "$(plain "$2")" ]] || return 0
    printf '%-58s %s -> %s    # %s\n' "$1" "${now:-none}" "$2" "$3"
    [[ -z $apply ]] || echo "$2" >"$1" || echo "  not taken by the kernel: $1 stays ${now:-none}" >&2
}

# Interrupts of the card's queues; those for configuration and errors stay where they are.
queue_interrupts() {
    local directory interrupt name
    # Cards of virtual machines hang below their PCI device.
    for directory in "$1/device/msi_irqs" "$1/device/../msi_irqs"; do
        [[ -d $directory ]] || continue
        for interrupt in $(find "$directory" -mindepth 1 -printf '%f\n' | sort -n); do
            for name in "$proc/irq/$interrupt"/*/; do
                case ${name,,} in
                    *rx* | *tx* | *input* | *output* | *comp* | *ntfy*) echo "$interrupt" ;;
                esac
            done
        done
        return
    done
}

tune() {
    local interface=$1 card="$sys/class/net/$1" interrupt queue cpu
    [[ -d $card ]] || die "there is no interface $interface; \`ip -br link\` lists them"
    local -a receive=("$card"/queues/rx-*) transmit=("$card"/queues/tx-*) interrupts
    mapfile -t interrupts < <(queue_interrupts "$card")
    echo "# $interface: ${#receive[@]} receive and ${#transmit[@]} transmit queues, ${#interrupts[@]} interrupts"
    # Receive and transmit queues often have interrupts of their own, side by side or in two blocks: each kind
    # goes round by itself, so that queue 0 of both meets on the first CPU.
    local -A turn=()
    local kind
    for interrupt in "${interrupts[@]}"; do
        kind=$(find "$proc/irq/$interrupt" -mindepth 1 -type d -printf '%f' | tr -d '0-9')
        cpu=${cpus[${turn[$kind]:-0} % ${#cpus[@]}]}
        turn[$kind]=$((${turn[$kind]:-0} + 1))
        put "$proc/irq/$interrupt/smp_affinity_list" "$cpu" "interrupt of a queue"
    done
    for ((queue = 0; queue < ${#transmit[@]}; queue++)); do
        local -a senders=()
        for ((cpu = queue; cpu < ${#cpus[@]}; cpu += ${#transmit[@]})); do senders+=("${cpus[cpu]}"); done
        ((${#transmit[@]} > 1)) || break
        put "$card/queues/tx-$queue/xps_cpus" "$(mask "${senders[@]}")" "XPS: CPUs that send on this queue"
    done
    local spread=0 flows=0
    if ((${#receive[@]} < ${#cpus[@]})); then
        spread=$(mask "${cpus[@]}") flows=1
        # As the kernel rounds it: up to a power of two.
        while ((flows * ${#receive[@]} < flow_entries)); do ((flows *= 2)); done
        put "$proc/sys/net/core/rps_sock_flow_entries" "$flow_entries" "RFS: connections remembered in all"
    fi
    for queue in "${receive[@]}"; do
        put "$queue/rps_cpus" "$spread" "RPS: CPUs that handle packets of this queue; 0: the one of its interrupt"
        put "$queue/rps_flow_cnt" "$flows" "RFS: connections remembered for this queue"
    done
}

# Another root shows what would be done on a machine described by files.
sys=${WARMFRONT_SYS:-/sys} proc=${WARMFRONT_PROC:-/proc}
flow_entries=32768 apply='' list='' interfaces=()
while (($#)); do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --apply) apply=yes ;;
        --cpus)
            [[ -n ${2-} ]] || die "--cpus wants a list such as 0-3,8"
            list=$2
            shift
            ;;
        --cpus=*) list=${1#*=} ;;
        -*) die "there is no option $1; see --help" ;;
        *) interfaces+=("$1") ;;
    esac
    shift
done
((${#interfaces[@]})) || die "which network card? \`ip -br link\` lists them; see --help"
cpus=()
numbers=$(if [[ -n $list ]]; then expand "$list"; else physical; fi)
for cpu in $numbers; do
    [[ -d $sys/devices/system/cpu/cpu$cpu ]] || die "this machine has no CPU $cpu"
    cpus+=("$cpu")
done
((${#cpus[@]})) || die "$sys does not say which CPUs there are: name them with --cpus"
if [[ -n $apply && $EUID -ne 0 ]]; then
    die "--apply writes to $sys and $proc, which only root may: run it with sudo, or without --apply to look"
fi
echo "# shards' CPUs: ${cpus[*]}"
for interface in "${interfaces[@]}"; do tune "$interface"; done
[[ -n $apply ]] || echo "# nothing was written; --apply does"
