//! [`Limits`] are the limits and deadlines of the data plane that an operator may set, each a key of `[limits]` with
//! its unit at the end of its name. The constants are fixed limits that several rooms use, and bounds on what is read
//! from outside; those of one room are beside their use. Other limits to be set are in `config`: of the queue
//! (`[queue]`), of probes and scrapes (`[health]`, `[control]`), an engine's `concurrency_max`, the number of receipts.

use serde::{Deserialize, Serialize};

/// The bounds of one front. Defaults are those of a front at the edge of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Longest head (start line and fields) of a request; beyond it 431. A reply's may have at least
    /// [`REPLY_HEAD_BYTES_MAX`]; beyond it 502.
    pub head_bytes_max: usize,
    /// Most fields in one head; beyond it 431 for a request, 502 for a reply.
    pub head_fields_max: usize,
    /// Longest request body; beyond it 413, before any of it is read if its length is announced.
    pub body_bytes_max: u64,
    /// Most body bytes held while a choice waits; beyond it the choice is made with what is known.
    pub hold_bytes: usize,
    /// Reading stops once this many bytes lie ahead of the request in progress (pipelining); the read that
    /// reaches it may bring up to one receive buffer more.
    pub read_ahead_bytes: usize,
    /// Bytes that all held bodies of one shard may take together, with their heads, the scanners that read them (17 KiB
    /// for each that is waited for, also before any of it came), unfinished heads, and bytes read ahead. Beyond it 503
    /// with `Retry-After`, also for an unfinished head of which 16 KiB have come, and 502 for such a head of a reply.
    /// 0: the shards share a quarter of the memory that the machine, or this process's cgroup, has. Not counted are, as
    /// `connections_max` bounds them, 2 KiB for each connection and 64 KiB for each client that takes no reply.
    pub budget_bytes: usize,
    /// Memory of the prefix index, which all shards share; taken at the start if a pool's policy is `warm`. It needs 73
    /// bytes for each 64 tokens of the engines' caches, 90 beyond 32 engines, 124 beyond 64, 192 beyond 128, 328 beyond
    /// 256 ("precise": four times 81, 98, 132, 200, 336). With less, each cache is known up to the same size. 0: no
    /// index.
    pub index_bytes: usize,
    /// Most client connections of one shard; further ones wait in the kernel's queue.
    pub connections_max: usize,
    /// Most idle upstream connections kept by one shard for one endpoint.
    pub idle_upstreams_max: usize,
    /// Most endpoints that a request is tried at before it fails because none can be connected to.
    pub connect_tries_max: u32,
    /// How many of a hundred requests may be sent a second time (and ten at any time): requests that the engine
    /// certainly saw nothing of, or was too busy for.
    pub retry_percent: u32,
    /// Replies with at least this many bytes to come, of known length and neither JSON nor a stream, pass inside
    /// the kernel (splice), unseen.
    pub splice_bytes_min: u64,
    /// Most interim (1xx) replies passed on for one request.
    pub interim_replies_max: u32,

    /// Longest time from the first byte of a request head to its last.
    pub head_timeout_ms: u64,
    /// Longest time between two reads of a request body.
    pub body_stall_timeout_ms: u64,
    /// An upload is judged by its rate only after this long.
    pub upload_grace_ms: u64,
    /// Slowest upload that is accepted after the grace; below it 408.
    pub upload_bytes_per_second_min: u64,
    /// Longest time from a request's head to the last byte of its body, whatever its rate; beyond it 408. Time for
    /// which the front holds the client back does not count.
    pub upload_timeout_ms: u64,
    /// How long a client connection is kept without a request.
    pub keep_alive_timeout_ms: u64,
    /// How long an upstream connection is kept without a request. Engines on uvicorn close theirs after 5 s.
    pub upstream_idle_timeout_ms: u64,
    /// Longest attempt to connect to one endpoint.
    pub connect_timeout_ms: u64,
    /// Longest time from the last byte sent to the engine to the end of its reply head.
    pub reply_head_timeout_ms: u64,
    /// Longest time from the reply head of a stream to its first data event: engines answer the head before the request
    /// leaves their queue.
    pub first_token_timeout_ms: u64,
    /// Longest time between two reads of a reply after its first token. As long as the time to the first token: engines
    /// compute a tool call, or a thought that the client did not ask to see, without writing a byte.
    pub inter_chunk_timeout_ms: u64,
    /// Longest silence of an engine whose kernel refused two probes in a row.
    pub deserted_timeout_ms: u64,
    /// The same before the head of its reply: an engine is silent while it computes an answer that is no stream, and an
    /// engine that is about to end may let it finish.
    pub deserted_head_timeout_ms: u64,
    /// How long a client may take none of the bytes that wait for it; then it is reset. The kernel gets the same time
    /// for clients that are gone, a changed one at the next start. A client that takes some bytes in that time, however
    /// few, is not reset: what it is owed is finite, or ends with its engine.
    pub client_stall_timeout_ms: u64,
    /// Longest time that a tunnel (after 101) goes without a byte in either direction.
    pub tunnel_idle_timeout_ms: u64,
    /// How long a request stays charged to an engine that failed it, or refused it for load or though others let it in.
    pub failed_charge_ms: u64,
    /// After a connection's last reply, surplus request bytes are read and dropped, so that the reply reaches a client
    /// that reads only once it has written everything. This ends when none came for this long, and after ten times as
    /// long in all.
    pub linger_timeout_ms: u64,
    /// It also ends after so many bytes: twice what a body may have, so that a client that sends somewhat more gets its
    /// answer as well. Reading them costs less than reading as many of a body, which any client may send as often.
    pub linger_bytes_max: usize,
    /// On SIGTERM: how long all are served as before, though readiness is denied already, before the listeners close.
    pub drain_delay_ms: u64,
    /// After `drain_delay_ms`: how long streams may finish before they are cut visibly.
    pub drain_timeout_ms: u64,
}

impl Limits {
    /// Returns for how long surplus bytes that keep coming are dropped.
    pub fn linger_in_all_ms(&self) -> u64 {
        self.linger_timeout_ms.saturating_mul(10)
    }

    /// Returns the time between two looks at whether a client takes any bytes.
    pub fn client_look_ms(&self) -> u64 {
        (self.client_stall_timeout_ms / 16).max(1)
    }

    /// Returns the bytes that one shard may hold. `share`: of the machine's memory, which counts if `budget_bytes` is
    /// 0.
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
/// Most data-parallel ranks behind one port that are chosen one by one: no machine has as many.
pub const RANKS_MAX: u32 = 64;
/// Most pools; engines that make up ids without end get no further ones.
pub const POOLS_MAX: usize = 4_096;
/// Most served model ids with statistics of their own; further ones are counted as `unknown`.
pub const LABELLED_POOLS_MAX: usize = 64;
/// How many requests in a row that fail by their endpoint's fault eject it.
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
/// Longest head of a reply, unless `head_bytes_max` is larger: if a client asks for embeddings in bytes, vLLM writes
/// into the head where each of them begins, some 120 bytes for each text.
pub const REPLY_HEAD_BYTES_MAX: usize = 256 << 10;

/// Canonical bytes of a prompt in a block of its chain: some 64 tokens, four blocks of an engine.
pub const BLOCK_BYTES: usize = 256;
/// Canonical bytes of a step: if engines say what they hold, matches are told to so many. A KV block has 30 to 100.
pub const STEP_BYTES: usize = 64;
const _: () = assert!(BLOCK_BYTES.is_multiple_of(STEP_BYTES), "a block is whole steps");
/// Canonical bytes of a prompt for each hash in the access log: some 128 tokens. What follows a prompt's last hash is
/// lost to a replay; with 2,048 bytes that were 11 % of chats and agents of 2,300 tokens, and hit rates 15 to 20 points
/// too low.
pub const LOGGED_CHAIN_BYTES: usize = 2 * BLOCK_BYTES;
/// Longest chain, in links: what follows the first MiB of a prompt counts as new.
pub const LINKS_MAX: usize = 4_096;

/// Longest arguments of a tool's call that a prompt is rendered with, as the body writes them.
pub const ARGUMENTS_BYTES_MAX: usize = 256 << 10;
/// Deepest nesting of objects and lists in a call's arguments.
pub const ARGUMENTS_DEPTH_MAX: usize = 32;
/// Most keys of open objects in a call's arguments. They are compared, since engines drop the first of equal ones.
pub const ARGUMENTS_KEYS_MAX: usize = 128;

/// Most tokens that estimates count for one prompt.
pub const TOKENS_MAX: u32 = 1 << 24;

/// Longest message of an engine's KV events, all frames together. 16 MiB are 3 million tokens, or 100,000 blocks of one
/// page.
pub const KV_MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Most events of one message. This and the next two bound what a message takes once it is read: 30 + 8 + 16 MiB, 4
/// more for where each block's keys end, and its names and keys, as long as they are in the message.
pub const KV_EVENTS_MAX: usize = 1 << 18;
/// Most block hashes in one message.
pub const KV_HASHES_MAX: usize = 1 << 20;
/// Most token ids in one message.
pub const KV_TOKENS_MAX: usize = 1 << 22;
/// Largest buffer for messages, in bytes, that is kept after a longer message.
pub const KV_BYTES_KEPT: usize = 256 << 10;
/// Most data-parallel ranks behind one engine's socket; messages of further ones are refused.
pub const KV_RANKS_MAX: usize = RANKS_MAX as usize;
/// Most strangers that are reported while an engine is to connect to the front: peers at addresses not known as the
/// engine's. Further ones are turned away and counted.
pub const KV_STRANGERS_MAX: usize = 8;

/// Most blocks of one engine that are known, all its ranks together, however many it tells of: 67 million tokens in
/// blocks of 16. A mirror of so many takes 3.0 GiB as it fills, and 96 MiB at once.
pub const MIRROR_BLOCKS_MAX: u32 = 1 << 22;
/// Steps of text for which a mirror has room, for each block on average: 256 bytes, or 32 tokens of 8 each.
pub const MIRROR_LINKS_PER_BLOCK: u32 = 4;
/// Longest `tokenizer.json`: one with 256,000 tokens has 35 MB.
pub const TOKENIZER_BYTES_MAX: usize = 64 << 20;
/// Largest token id. It bounds the table of tokens' texts to 16 MiB, 64 while it is made.
pub const TOKEN_ID_MAX: u64 = 1 << 22;
/// Longest text of one token; the longest of known models has 256 bytes.
pub const TOKEN_BYTES_MAX: usize = 4 << 10;

/// Longest chat template; the longest of known models has 20 KB.
pub const TEMPLATE_BYTES_MAX: usize = 256 << 10;
/// Longest `tokenizer_config.json`, which may list all added tokens and contain the template.
pub const TOKENIZER_CONFIG_BYTES_MAX: usize = 8 << 20;
/// Most instructions that a template may use for one prompt of some messages: those of known models use some thousands.
pub const TEMPLATE_FUEL: u64 = 200_000;
/// Most instructions for all prompts that are tried with one template: at most two seconds in a release build.
pub const TEMPLATE_FUEL_ALL: u64 = 32_000_000;
/// Longest prompt that a template may write.
pub const TEMPLATE_OUTPUT_BYTES_MAX: usize = 1 << 20;
/// How many bytes of a prompt count as one instruction.
pub const TEMPLATE_BYTES_PER_FUEL: u64 = 64;
/// Longest set of tools that a chat is tried with; those of agents have 10 to 50 KB.
pub const TEMPLATE_TOOLS_BYTES_MAX: usize = 64 << 10;
/// Deepest nesting of tools, and of a call's arguments, that a template is given.
pub const TEMPLATE_JSON_DEPTH_MAX: usize = 64;
/// Most sets of tools that are known of a model at once.
pub const TOOLSETS_MAX: usize = 64;

/// Most points of a ring, 8 bytes each: more make shares no more even and take seconds to build.
pub const RING_POINTS_MAX: u32 = 1 << 20;
/// Largest weight of an endpoint; larger ones count as this, so that a ring's size is bounded.
pub const WEIGHT_MAX: u32 = 100;
/// Largest weight of a tenant of the queue.
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
