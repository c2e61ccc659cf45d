#!/usr/bin/env bash
# warmfront before two real vLLM engines: the openai SDK, unchanged bytes, vLLM's own load generator, the
# hit rate under `prefix-hash` and `warm` against `random`, the simulated engine's beside theirs, Claude
# Code's prompts, clients and an engine that leave. Ends at the first failure.
#
#   MODEL=/path/to/model bench/real/run.sh DIR      DIR: a virtual environment with vLLM (or DIR/venv)
#
# starts two engines on ports BASE and BASE + 1, small enough to share a machine without a GPU, and stops
# them at the end. Any two vLLM servers of one model will do instead, started by you with
# VLLM_SERVER_DEV_MODE=1 (for POST /reset_prefix_cache) and a cache that holds two prefixes but not four:
#
#   ENGINES="URL URL" TOKENIZER=/path/or/name bench/real/run.sh DIR
#
# FRONT          warmfront to test                  (default: built from this checkout)
# SETS           of prefixes                        (default 7)
# PREFIX_TOKENS  length of a prefix                 (default 4096)
# KV_TOKENS      cache of an engine started here    (default 10240, 2.5 prefixes)
# BASE           port of the first of them          (default 9100)
# ENGINE_ARGS    further arguments for `vllm serve` (default: what suits a small model on a CPU)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; }
case ${1:-} in
    -h | --help) usage; exit 0 ;;
    '') usage >&2; exit 2 ;;
esac
dir=$(cd "$1" && pwd)
[ -x "$dir/bin/vllm" ] || dir=$dir/venv
[ -x "$dir/bin/vllm" ] || { echo "no vLLM in $1: neither bin/vllm nor venv/bin/vllm" >&2; exit 2; }

sets=${SETS:-7} prefix=${PREFIX_TOKENS:-4096} kv=${KV_TOKENS:-10240} base=${BASE:-9100} block=32
args=${ENGINE_ARGS:---dtype bfloat16 --enforce-eager --kv-cache-memory-bytes 1073741824}
work=$(mktemp -d "${TMPDIR:-/tmp}/warmfront-real.XXXXXX")
export VLLM_NO_USAGE_STATS=1 VLLM_SERVER_DEV_MODE=1
# Two engines share the cores as the kernel sees fit; of no meaning on a GPU.
export VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND:-nobind}
# A model on disk needs no hub.
[ ! -d "${MODEL:-${TOKENIZER:-}}" ] || export HF_HUB_OFFLINE=1

# Its pid goes to $work/pid-N; setsid makes it the leader of what it starts, to be ended with it.
start_engine() {
    # shellcheck disable=SC2086 # several arguments
    setsid "$dir/bin/vllm" serve "$MODEL" --served-model-name real --host 127.0.0.1 --port $((base + $1)) \
        --max-model-len $((kv * 4 / 5)) --block-size $block --num-gpu-blocks-override $((kv / block)) \
        --enable-prefix-caching --enable-auto-tool-choice --tool-call-parser hermes $args \
        >>"$work/engine-$1.log" 2>&1 </dev/null &
    echo $! >"$work/pid-$1"
}

healthy() {
    local pid; pid=$(cat "$work/pid-$1")
    for _ in $(seq 600); do
        curl -fsS -m 2 -o /dev/null "http://127.0.0.1:$((base + $1))/health" 2>/dev/null && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 1
    done
    tail -n 20 "$work/engine-$1.log" >&2
    echo "engine $1 did not get healthy" >&2
    return 1
}

stop() {
    [ -z "${restart:-}" ] || kill "$restart" 2>/dev/null || true
    for pid in $(cat "$work"/pid-* 2>/dev/null); do kill -TERM "$pid" 2>/dev/null || true; done
    for pid in $(cat "$work"/pid-* 2>/dev/null); do
        for _ in $(seq 30); do kill -0 "$pid" 2>/dev/null || break; sleep 1; done
        kill -KILL -- "-$pid" 2>/dev/null || true
    done
}
trap stop EXIT
trap 'exit 1' INT TERM

step() { printf '\n== %s\n' "$*"; }

if [ -z "${FRONT:-}" ]; then
    (cd "$root" && cargo build --release --bin warmfront)
    FRONT=${CARGO_TARGET_DIR:-$root/target}/release/warmfront
fi
if [ -n "${ENGINES:-}" ]; then
    read -ra engines <<<"$ENGINES"
    tokenizer=${TOKENIZER:?the tokenizer of these engines, a path or a name}
else
    : "${MODEL:?a model, as a path or a name}"
    [ ! -d "$MODEL" ] || MODEL=$(cd "$MODEL" && pwd)
    tokenizer=$MODEL engines=("http://127.0.0.1:$base" "http://127.0.0.1:$((base + 1))")
    step "two engines of $kv tokens; logs in $work"
    start_engine 0; start_engine 1
    healthy 0; healthy 1
fi

step "the same bytes"
for policy in prefix-hash random; do
    echo "-- $policy"
    python3 "$here/same.py" --front-binary "$FRONT" --engine "${engines[0]}" --policy "$policy"
done

step "the openai SDK"
sdk=$dir/bin/python
if ! "$sdk" -c 'import openai' 2>/dev/null; then
    python3 -m venv "$work/sdk" && "$work/sdk/bin/pip" install -q openai
    sdk=$work/sdk/bin/python
fi
python3 "$here/front.py" --front-binary "$FRONT" --engines "${engines[@]}" -- "$sdk" "$here/sdk.py" URL

step "vllm bench serve"
# NAME, BACKEND, ENDPOINT and the data set's arguments; each must complete all of its prompts.
bench() {
    local name=$1 backend=$2 endpoint=$3; shift 3
    python3 "$here/front.py" --front-binary "$FRONT" --engines "${engines[@]}" -- \
        "$dir/bin/vllm" bench serve --base-url URL --model MODEL --tokenizer "$tokenizer" --backend "$backend" \
        --endpoint "$endpoint" --ignore-eos --num-prompts 32 --max-concurrency 4 --disable-tqdm \
        --save-result --result-dir "$work" --result-filename "$name.json" "$@" >"$work/$name.log" 2>&1 ||
        { tail -n 20 "$work/$name.log" >&2; return 1; }
    python3 - "$name" "$work/$name.json" <<'PY'
import json, sys
name, path = sys.argv[1:]
got = json.load(open(path))
print(f"{name:<28} {got['completed']} of {got['num_prompts']} completed, {got.get('failed', 0)} failed, "
      f"TTFT mean {got['mean_ttft_ms']:.0f} ms, TPOT mean {got['mean_tpot_ms']:.1f} ms")
sys.exit(got["completed"] != got["num_prompts"] or got.get("failed", 0) != 0)
PY
}
short=(--dataset-name random --random-input-len 256 --random-output-len 16)
repeated=(--dataset-name prefix_repetition --prefix-repetition-prefix-len 2048 --prefix-repetition-suffix-len 64
    --prefix-repetition-num-prefixes 4 --prefix-repetition-output-len 8)
bench completions-random openai /v1/completions "${short[@]}"
bench completions-repeated openai /v1/completions "${repeated[@]}"
bench chat-random openai-chat /v1/chat/completions "${short[@]}"
bench chat-repeated openai-chat /v1/chat/completions "${repeated[@]}"

step "prefix-hash and warm against random"
python3 "$here/prefix.py" --front-binary "$FRONT" --engines "${engines[@]}" --sets "$sets" --prefix-tokens "$prefix"

step "the simulated engine beside them"
python3 "$here/simulated.py" --front-binary "$FRONT" --engines "${engines[@]}" --sets 2 --prefix-tokens "$prefix"

step "prompts of /v1/messages behind what Claude Code puts before them"
python3 "$here/messages.py" --front-binary "$FRONT" --engines "${engines[@]}"

step "clients that leave"
python3 "$here/leave.py" --front-binary "$FRONT" --engines "${engines[@]}"

# Only with engines of our own: one is stopped, and started again.
if [ -z "${ENGINES:-}" ]; then
    step "an engine that leaves and returns"
    pid=$(cat "$work/pid-0")
    (while kill -0 "$pid" 2>/dev/null; do sleep 1; done; sleep 8; start_engine 0) &
    restart=$!
    python3 "$here/leave.py" --front-binary "$FRONT" --engines "${engines[@]}" --stop-pid "$pid"
fi
step "all of it passed"
