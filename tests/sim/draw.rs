//! What a schedule is made of: how rough it is, limits, clients and their requests, the fleet.

use std::net::SocketAddr;
use std::sync::Arc;

use warmfront::config::Config;
use warmfront::exchange::QueueRules;
use warmfront::fleet::{Endpoint, EndpointId, Health};
use warmfront::index::{Capacity, Index};
use warmfront::limits::Limits;
use warmfront::policy::Settings;
use warmfront::ring::Ring;
use warmfront::snapshot::{Pool, PoolId, Snapshot};

use crate::client::{Client, Manners};
use crate::engine::Play;
use crate::network::Knobs;
use crate::pipe::End;
use crate::plan::{Plan, Style};
use crate::random::Random;

pub fn style(random: &mut Random) -> Style {
    let calm = random.chance(25);
    let storm = !calm && random.chance(10);
    let dead = random.chance(25);
    // What a busy engine refuses may have nowhere else to go.
    let busy = if calm && dead { 0 } else { random.pick(&[0, 0, 10, 60]) };
    Style {
        calm,
        faults: if calm || storm { 0 } else { random.pick(&[0, 2, 10, 40]) },
        sizes: if storm { 40 } else { random.pick(&[40, 40, 2_000, 2_000, 20_000]) },
        errors: random.pick(&[0, 5, 30, 80]),
        busy: if storm { 90 } else { busy },
        panics: if calm { 0 } else { random.pick(&[0, 0, 0, 0, 20, 200]) },
        dead,
        crowd: if storm { 30 } else { 0 },
        waits: random.chance(10),
        keys: if random.chance(30) { 1 + random.next() % (u64::MAX - 1) } else { 0 },
    }
}

pub fn knobs(style: Style, random: &mut Random) -> Knobs {
    Knobs {
        lease_max: random.pick(&[1, 7, 100, 4_096, 65_536]).max(style.sizes / 20),
        room_min: if style.calm { 8_192 } else { random.pick(&[0, 100, 4_096]).max(style.sizes / 10) },
        room_max: random.pick(&[100, 10_000, 200_000]),
        late: random.pick(&[0, 10, 50]),
        short: 20,
        refused: if style.calm { 0 } else { random.pick(&[0, 0, 5, 50]) },
        swallowed: if style.calm { 0 } else { random.pick(&[0, 0, 5, 30]) },
        scarce: 2,
        dead: Vec::new(),
        portless: None,
        connect: 100_000,
        turn: 200,
    }
}

/// As by default, but with deadlines and bounds that a schedule reaches.
pub fn limits(style: Style, random: &mut Random) -> Limits {
    let mut limits = Limits {
        // In a calm, longer than the slowest client takes to read what its window holds.
        keep_alive_timeout_ms: if style.calm { 75_000 } else { 20_000 },
        reply_head_timeout_ms: 60_000,
        first_token_timeout_ms: 60_000,
        inter_chunk_timeout_ms: 30_000,
        client_stall_timeout_ms: 30_000,
        tunnel_idle_timeout_ms: 60_000,
        drain_timeout_ms: 40_000,
        ..Limits::default()
    };
    limits.read_ahead_bytes = random.pick(&[0, 100, 2_000, 16 << 10]);
    limits.hold_bytes = random.pick(&[100, 5_000, 1 << 20]);
    limits.head_bytes_max = random.pick(&[1_000, 32 << 10]);
    limits.idle_upstreams_max = random.pick(&[1, 256]);
    limits.connections_max = random.pick(&[2, 65_536]);
    limits.splice_bytes_min = random.pick(&[1, 100, 3_000, 64 << 10]);
    limits.retry_percent = random.pick(&[0, 10, 10, 50]);
    limits.deserted_timeout_ms = random.pick(&[100, 5_000, 20_000]);
    limits.deserted_head_timeout_ms = random.pick(&[100, 5_000, 30_000]);
    limits.failed_charge_ms = random.pick(&[1, 100, 1_000, 5_000]);
    if !style.calm {
        limits.body_bytes_max = random.pick(&[5_000, 64 << 20]);
        limits.budget_bytes = random.pick(&[10_000, 256 << 20]);
        limits.linger_bytes_max = random.pick(&[100, 64 << 10]);
    }
    limits
}

/// Long waits and many places in a calm: every request is to be answered.
pub fn queue(style: Style, random: &mut Random) -> QueueRules {
    let mut config = Config::default();
    config.queue.waiting_max = if style.calm { 4_096 } else { random.pick(&[1, 3, 1_024]) };
    config.queue.timeout_ms = if style.calm { 10_000_000 } else { random.pick(&[1, 300, 30_000]) };
    QueueRules::from(&config)
}

pub fn client(play: &mut Play, style: Style, half_close_leaves: bool, random: &mut Random) -> Client {
    let count = if style.crowd > 0 { 1 + random.below(2) } else { random.small(6) };
    let first = play.plans.len();
    for number in 0..count {
        let id = format!("r{}", play.plans.len());
        play.plans.push(Plan::draw(id, number + 1 == count, style, random));
        play.executed.push(0);
        play.seen.push(0);
        play.refused.push(0);
        play.seen_at.push(None);
        play.begun.push(false);
    }
    let plans: Vec<usize> = (first..play.plans.len()).collect();
    let bytes: usize = plans.iter().map(|&plan| play.plans[plan].wire.len()).sum();
    let leaves = (random.chance(style.faults))
        .then(|| (random.pick(&[End::Fin, End::Reset]), random.below(bytes + 1), random.below(2_000_000) as u64));
    let manners = Manners {
        pipelines: random.chance(30),
        pace: random.pick(&if style.calm { [1, 1_000, 50_000] } else { [1, 10_000, 2_000_000] }),
        read_pace: random.pick(&if style.calm { [1, 1_000, 900_000] } else { [1, 300_000, 10_000_000] }),
        leaves,
        half_closes: !(style.calm && half_close_leaves) && random.chance(15),
        calm: style.calm,
    };
    Client::new(plans, manners, 1_000_000 + random.below(3_000_000) as u64, play)
}

/// Every tenant of a slot has an address of its own.
pub fn endpoint(slot: usize, generation: u32) -> Endpoint {
    let id = EndpointId { slot: slot as u16, generation };
    let address = SocketAddr::from(([10, (generation >> 8) as u8, generation as u8, slot as u8], 8_000));
    Endpoint { health: Health::Up, ..Endpoint::new(id, format!("engine-{slot}-{generation}").into(), address) }
}

/// One whose engine has told how many tokens its cache holds, none of them in use.
pub fn with_cache(mut endpoint: Endpoint, tokens: Option<u64>) -> Endpoint {
    endpoint.engine.kv_capacity_tokens = tokens;
    endpoint.engine.kv_use = tokens.map(|_| 0.0);
    endpoint
}

/// With an index of its own.
pub fn snapshot(endpoints: &[Option<Endpoint>], settings: &Arc<Settings>) -> Snapshot {
    let index = settings.counts_tokens().then(|| {
        let index = index(64, 1 << 10);
        endpoints.iter().flatten().for_each(|endpoint| assert!(index.assign(endpoint.id, None).is_ok()));
        index
    });
    snapshot_over(endpoints, settings, index)
}

/// Over an index that outlives it.
pub fn snapshot_over(endpoints: &[Option<Endpoint>], settings: &Arc<Settings>, index: Option<Arc<Index>>) -> Snapshot {
    let there: Vec<&Endpoint> = endpoints.iter().flatten().collect();
    let members: Vec<u16> = there.iter().map(|endpoint| endpoint.id.slot).collect();
    let entries: Vec<_> = there.iter().map(|endpoint| (endpoint.id.slot, &*endpoint.name, 1)).collect();
    let ring = Arc::new(Ring::build(&entries, settings.replication));
    let pool = Pool::new(PoolId(0), "m".into(), members.into(), ring, Arc::clone(settings));
    Snapshot {
        endpoints: endpoints.to_vec(),
        pools: vec![pool],
        index,
        plan: Arc::new(settings.plan()),
        models_complete: true,
        session_headers: settings.session_headers.iter().map(|name| name.as_str().into()).collect(),
        ..Snapshot::default()
    }
}

/// A small index.
pub fn index(endpoints: usize, blocks: usize) -> Arc<Index> {
    Arc::new(Index::new(Capacity { endpoints, blocks, lengths: false }).expect("a sensible size"))
}
