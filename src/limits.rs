//! The limits and deadlines of the data plane that an operator may set, each a key of `[limits]`, with its unit at the
//! end of its name; what several rooms go by, and the bounds on what is read from outside. What is set elsewhere stands
//! in `config`: who waits for room (`[queue]`), probes and scrapes (`[health]`, `[control]`), an engine's
//! `concurrency_max`, how many receipts are kept. What else is fixed and one room's own is a constant beside its use.

use serde::{Deserialize, Serialize};

/// The bounds of one front. Defaults are those of a front at the edge of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Longest head (start line and fields) of a request; beyond it 431. Of a reply at least [`REPLY_HEAD_BYTES_MAX`];
    /// beyond it 502.
    pub head_bytes_max: usize,
    /// Most fields in one head; beyond it 431 or 502.
    pub head_fields_max: usize,
    /// Longest request body; beyond it 413, before it is read where its length is announced.
    pub body_bytes_max: u64,
    /// Most body bytes held while a choice waits; beyond it the choice is made with what is known.
    pub hold_bytes: usize,
    /// Reading stops once this many bytes lie ahead of the request in progress (pipelining); the read that
    /// reaches it may bring up to one receive buffer more.
    pub read_ahead_bytes: usize,
    /// Bytes all held bodies of one shard may take together, with their heads, the scanners that read them (17 KiB for
    /// each that is waited for, also before any of it came), what has come of heads and what is read ahead; beyond it
    /// 503 with `Retry-After`, where 16 KiB of half a head have come too, and 502 where as much of a reply's. 0: the
    /// shards share a quarter of the memory that the machine, or this process's cgroup, has. What `connections_max`
    /// bounds is not among it: 2 KiB for each, and a receive buffer, 64 KiB, where a client takes no reply.
    pub budget_bytes: usize,
    /// Memory of the prefix index, which all shards share; taken at the start if a pool's policy is `warm`. 73 bytes
    /// for each 64 tokens of the engines' caches, 90 beyond 32 engines, 124 beyond 64, 192 beyond 128, 328 beyond 256
    /// ("precise": four times 81, 98, 132, 200, 336). With less, caches are known up to a size that is the same for
    /// all. 0: none.
    pub index_bytes: usize,
    /// Most client connections of one shard; further ones wait in the kernel's queue.
    pub connections_max: usize,
    /// Most idle upstream connections kept by one shard for one endpoint.
    pub idle_upstreams_max: usize,
    /// Most endpoints tried before a request fails because none can be connected to.
    pub connect_tries_max: u32,
    /// How many of a hundred requests may be sent a second time (and ten at any time): those of which the engine
    /// certainly saw nothing, and those that it was too busy for.
    pub retry_percent: u32,
    /// Replies with at least this many bytes to come, of known length and neither JSON nor a stream, pass inside
    /// the kernel (splice), unseen.
    pub splice_bytes_min: u64,
    /// Most interim (1xx) replies passed on for one request.
    pub interim_replies_max: u32,

    /// From the first byte of a request head to its last.
    pub head_timeout_ms: u64,
    /// Between two reads of a request body.
    pub body_stall_timeout_ms: u64,
    /// An upload is judged by its rate only after this long.
    pub upload_grace_ms: u64,
    /// Slowest upload that is accepted after the grace; below it 408.
    pub upload_bytes_per_second_min: u64,
    /// From a request's head to the last byte of its body, whatever its rate; below it 408. While the front holds the
    /// client back, time stands still.
    pub upload_timeout_ms: u64,
    /// A client connection without a request.
    pub keep_alive_timeout_ms: u64,
    /// An upstream connection without a request. Engines on uvicorn close theirs after 5 s.
    pub upstream_idle_timeout_ms: u64,
    /// One attempt to connect to one endpoint.
    pub connect_timeout_ms: u64,
    /// From the last byte sent to the engine to the end of its reply head.
    pub reply_head_timeout_ms: u64,
    /// From the reply head of a stream to its first data event: engines answer the head before the
    /// request leaves their queue.
    pub first_token_timeout_ms: u64,
    /// Between two reads of a reply after its first token. As long as for that: engines compute the call of a tool, or
    /// a thought that nobody asked to see, without writing a byte.
    pub inter_chunk_timeout_ms: u64,
    /// Silence of an engine whose kernel refused two probes in a row.
    pub deserted_timeout_ms: u64,
    /// The same before the head of its reply: an answer that is no stream is silent while it is computed, and an engine
    /// that is to end may let it finish.
    pub deserted_head_timeout_ms: u64,
    /// How long a client may take none of the bytes that wait for it; then it is reset. The kernel is told the same of
    /// clients that are gone, a change with the next start. One that takes some in that time is not ended for it,
    /// however few: what it is owed is finite, or its engine's to end.
    pub client_stall_timeout_ms: u64,
    /// A tunnel (after 101) without a byte in either direction.
    pub tunnel_idle_timeout_ms: u64,
    /// How long a request that its engine failed, or refused for load or though others let it in, stays charged to it.
    pub failed_charge_ms: u64,
    /// After a connection's last reply: surplus request bytes are read and dropped, so that the reply reaches a client
    /// that reads only once it has written all, until none came for this long, and for ten times as long in all.
    pub linger_timeout_ms: u64,
    /// And up to so many bytes: twice what a body may have, so that who sends somewhat more is told as well. They cost
    /// less than those of a body, which any client may send as often.
    pub linger_bytes_max: usize,
    /// On SIGTERM: how long all are served as before, while readiness is denied already, before the listeners close.
    pub drain_delay_ms: u64,
    /// From then on: how long streams may finish before they are cut visibly.
    pub drain_timeout_ms: u64,
}

impl Limits {
    /// How long surplus bytes that keep coming are dropped for.
    pub fn linger_in_all_ms(&self) -> u64 {
        self.linger_timeout_ms.saturating_mul(10)
    }

    /// How often it is looked whether a client takes any.
    pub fn client_look_ms(&self) -> u64 {
        (self.client_stall_timeout_ms / 16).max(1)
    }

    /// What the bodies held by one shard may take together; `share`: of the machine, where that is left to it.
    pub fn budget_of(&self, share: usize) -> usize {
        if self.budget_bytes == 0 { share.max(self.hold_bytes) } else { self.budget_bytes }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head_bytes_max: 32 << 10,
            head_fields_max: 100,
            body_bytes_max: 64 << 20,
            hold_bytes: 1 << 20,
            read_ahead_bytes: 16 << 10,
            budget_bytes: 0,
            index_bytes: 64 << 20,
            connections_max: 65_536,
            idle_upstreams_max: 256,
            connect_tries_max: 4,
            retry_percent: 10,
            splice_bytes_min: 64 << 10,
            interim_replies_max: 8,
            head_timeout_ms: 5_000,
            body_stall_timeout_ms: 10_000,
            upload_grace_ms: 10_000,
            upload_bytes_per_second_min: 1_024,
            upload_timeout_ms: 300_000,
            keep_alive_timeout_ms: 75_000,
            upstream_idle_timeout_ms: 3_000,
            connect_timeout_ms: 500,
            reply_head_timeout_ms: 600_000,
            first_token_timeout_ms: 600_000,
            inter_chunk_timeout_ms: 600_000,
            deserted_timeout_ms: 5_000,
            deserted_head_timeout_ms: 30_000,
            client_stall_timeout_ms: 120_000,
            tunnel_idle_timeout_ms: 3_600_000,
            failed_charge_ms: 1_000,
            linger_timeout_ms: 1_000,
            linger_bytes_max: 128 << 20,
            drain_delay_ms: 0,
            drain_timeout_ms: 300_000,
        }
    }
}

/// Most endpoints of one fleet; counters are allocated for all of them at start.
pub const ENDPOINTS_MAX: usize = if cfg!(feature = "modelled") { 4 } else { 1_024 };
/// Most data-parallel ranks behind one port that are chosen by themselves: no machine has as many.
pub const RANKS_MAX: u32 = 64;
/// Most pools; engines that make up ids without end get no further ones.
pub const POOLS_MAX: usize = 4_096;
/// Most served model ids with statistics of their own; further ones are counted as `unknown`.
pub const LABELLED_POOLS_MAX: usize = 64;
/// So many requests in a row that fail by their endpoint's fault eject it.
pub const FAULTS_IN_A_ROW_MAX: u32 = 3;
/// Most finished requests of one shard that wait for access log and receipts, at most 488 bytes each: 1.91 MiB, kept
/// once as many waited. Read every 50 ms, this is 80,000 requests a second, more than a shard relays.
pub const RECORDS_MAX: usize = 4 << 10;
/// Most receipts that may be asked for, some 560 bytes each: 35 MiB.
pub const RECEIPTS_MAX: usize = 64 << 10;
/// Most requests that wait in front of the engines, whatever is configured: 24 bytes for each, taken at the start.
pub const QUEUE_MAX: usize = if cfg!(feature = "modelled") { 2 } else { 4 << 10 };
/// Size of the buffer one read may fill.
pub const RECEIVE_BYTES: usize = 64 << 10;
/// Longest head of a reply, unless those of requests may be longer: where a client asks for embeddings in bytes, vLLM
/// writes into it where each of them begins, some 120 bytes for each text.
pub const REPLY_HEAD_BYTES_MAX: usize = 256 << 10;

/// Canonical bytes of a prompt in a block of its chain: some 64 tokens, four blocks of an engine.
pub const BLOCK_BYTES: usize = 256;
/// Where engines say what they hold, matches are told to so many bytes: a KV block has 30 to 100.
pub const STEP_BYTES: usize = 64;
const _: () = assert!(BLOCK_BYTES.is_multiple_of(STEP_BYTES), "a block is whole steps");
/// The access log has one link of so many bytes: some 128 tokens. What lies behind a prompt's last link is lost to a
/// replay; with 2,048 bytes that were 11 % of chats and agents of 2,300 tokens, and hit rates 15 to 20 points too low.
pub const LOGGED_CHAIN_BYTES: usize = 2 * BLOCK_BYTES;
/// Longest chain: what of a prompt lies behind its first MiB is taken for new.
pub const LINKS_MAX: usize = 4_096;

/// Longest arguments of a tool's call that prompts are written with, as the text that the body has of them.
pub const ARGUMENTS_BYTES_MAX: usize = 256 << 10;
/// Deepest nesting of objects and lists in them.
pub const ARGUMENTS_DEPTH_MAX: usize = 32;
/// Most keys of objects that are open at once, which are compared with each other: engines leave out the first of equal
/// ones.
pub const ARGUMENTS_KEYS_MAX: usize = 128;

/// Longest prompt as estimates count it.
pub const TOKENS_MAX: u32 = 1 << 24;

/// Longest message of an engine's KV events, all frames together. 16 MiB are 3 million tokens, or 100,000 blocks of one
/// page.
pub const KV_MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Most events of one message. With the next two: what one message may take once it is read, 30 + 8 + 16 MiB, 4 more
/// for where each block's keys end, and its names and keys as long as they are in it.
pub const KV_EVENTS_MAX: usize = 1 << 18;
/// Most block hashes in one message.
pub const KV_HASHES_MAX: usize = 1 << 20;
/// Most token ids in one message.
pub const KV_TOKENS_MAX: usize = 1 << 22;
/// Bytes of a buffer for messages that are kept once a longer one is done with.
pub const KV_BYTES_KEPT: usize = 256 << 10;
/// Most data-parallel ranks behind one engine's socket; messages of further ones are refused.
pub const KV_RANKS_MAX: usize = RANKS_MAX as usize;
/// Most strangers that are told of where an engine is to connect; further ones are turned away and counted.
pub const KV_STRANGERS_MAX: usize = 8;

/// Most blocks of one engine that are known, all its ranks together, whatever it says: 67 million tokens in blocks of
/// 16. What is kept of so many takes 3.0 GiB as it fills, and 96 MiB at once.
pub const MIRROR_BLOCKS_MAX: u32 = 1 << 22;
/// Steps of a block's text that there is room for, in the mean: 256 bytes, or 32 tokens of 8 each.
pub const MIRROR_LINKS_PER_BLOCK: u32 = 4;
/// Longest `tokenizer.json`: those of 256,000 tokens have 35 MB.
pub const TOKENIZER_BYTES_MAX: usize = 64 << 20;
/// Largest token id, so that the table of their texts is bounded: 16 MiB, and 64 while it is made.
pub const TOKEN_ID_MAX: u64 = 1 << 22;
/// Longest text of one token; the longest of known models has 256 bytes.
pub const TOKEN_BYTES_MAX: usize = 4 << 10;

/// Longest chat template; the longest of known models has 20 KB.
pub const TEMPLATE_BYTES_MAX: usize = 256 << 10;
/// Longest configuration of a tokenizer, which may list all added tokens and have the template in it.
pub const TOKENIZER_CONFIG_BYTES_MAX: usize = 8 << 20;
/// Most instructions of a template for one prompt of some messages: those of known models take some thousands.
pub const TEMPLATE_FUEL: u64 = 200_000;
/// And for all prompts that are tried with it: two seconds at most where the program is optimized.
pub const TEMPLATE_FUEL_ALL: u64 = 32_000_000;
/// Longest prompt of those that are tried.
pub const TEMPLATE_OUTPUT_BYTES_MAX: usize = 1 << 20;
/// So many bytes of a prompt count as one instruction.
pub const TEMPLATE_BYTES_PER_FUEL: u64 = 64;
/// Longest set of tools of which a chat is made; those of agents have 10 to 50 KB.
pub const TEMPLATE_TOOLS_BYTES_MAX: usize = 64 << 10;
/// Deepest nesting of tools, and of arguments of a call.
pub const TEMPLATE_JSON_DEPTH_MAX: usize = 64;
/// Sets of tools that are known of a model at once.
pub const TOOLSETS_MAX: usize = 64;

/// Most points of a ring, 8 bytes each: beyond it they make shares no more even, and seconds of building.
pub const RING_POINTS_MAX: u32 = 1 << 20;
/// Heaviest endpoint; larger weights count as this, so that a ring's size is bounded.
pub const WEIGHT_MAX: u32 = 100;
/// Heaviest tenant of the queue.
pub const TENANT_WEIGHT_MAX: u32 = 1_000;
/// Most ring points per endpoint and unit of weight; larger settings count as this.
pub const REPLICATION_MAX: u32 = 1_024;

const _: () = assert!(ENDPOINTS_MAX <= u16::MAX as usize, "an endpoint's slot is a u16");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_never_at_once() {
        let look = |client_stall_timeout_ms| Limits { client_stall_timeout_ms, ..Limits::default() }.client_look_ms();
        assert_eq!([1, 15, 16, 120_000].map(look), [1, 1, 1, 7_500]);
    }
}
