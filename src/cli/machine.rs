//! What a front needs of its machine: `serve` holds itself to it, `check` tells it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;
use crate::shard::memory;

/// Descriptors besides those of connections: listeners, rings, logs, control's own; those of one shard included.
const OTHER_DESCRIPTORS: u64 = 64;
/// Descriptors of a shard beside its listeners.
const SHARD_DESCRIPTORS: u64 = 3;
/// One of so many parts of the memory is kept from the prefix index: as much as held bodies may take.
const INDEX_LEAVES: u64 = 4;

/// Raises the soft limit of descriptors to the hard one; returns how many are allowed now.
pub(super) fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if raised.is_ok() { hard } else { limit.current.unwrap_or(u64::MAX) }
}

/// Descriptors needed before the first client. A shard has a driver, a bell and a duplicate of the bell; and for each
/// address a listener and a duplicate of that, which is kept to be handed on.
pub(super) fn descriptors_needed(config: &Config, shards: usize) -> u64 {
    let each = SHARD_DESCRIPTORS + 2 * config.serve.listen.len() as u64;
    OTHER_DESCRIPTORS + each.saturating_mul((shards as u64).saturating_sub(1))
}

/// Descriptors that `shards` full shards have open: each client may have an engine's connection.
pub(super) fn descriptors_wanted(config: &Config, shards: usize) -> u64 {
    let clients = (shards as u64).saturating_mul(config.limits.connections_max as u64);
    clients.saturating_mul(2).saturating_add(descriptors_needed(config, shards))
}

/// Why the prefix index does not fit into memory, in words: it is taken whole, and a process without memory for it is
/// killed.
pub(super) fn index_fault(config: &Config) -> Option<String> {
    let asked = config.limits.index_bytes;
    // The least of what machine and cgroups leave, and of `ulimit -v`.
    let may = getrlimit(Resource::As).current.unwrap_or(u64::MAX).min(memory::bytes());
    let most = may - may / INDEX_LEAVES;
    (config.counts_tokens() && asked as u64 > most).then(|| {
        format!(
            "index_bytes = {asked} in [limits] does not fit into the memory of {may} bytes that this process may have; \
             give it at most {most}"
        )
    })
}
