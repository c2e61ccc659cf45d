//! What the process is and holds: its version, its shards, their connections.

use std::fmt::Error;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{Collected, Family};
use crate::control::admin::State;
use crate::control::{stalls, upgrade};
use crate::counters::stats::Gauge;
use crate::scan;
use crate::snapshot::Snapshot;

impl Collected {
    pub(super) fn process(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), Error> {
        let State { stats, process, began, counters, .. } = &self.0;
        let version = vec![("version", env!("CARGO_PKG_VERSION")), ("scan", scan::kernel_name())];
        Family::new(out, "build_info", "The version that runs, and what it scans bodies with", MetricType::Gauge)?
            .gauge(version, 1.0)?;
        let uptime = began.elapsed().as_secs_f64();
        Family::new(out, "uptime_seconds", "Since the start", MetricType::Gauge)?.gauge(vec![], uptime)?;
        let help = "How late control's thread woke at worst in the last 10 to 20 s";
        Family::new(out, "control_late_seconds", help, MetricType::Gauge)?
            .gauge(vec![], stalls::late().as_secs_f64())?;
        let draining = f64::from(u8::from(process.is_ending()));
        let help = "1 since the front was told to end, or another process is in its place: no new connections are taken, or none behind drain_delay_ms";
        Family::new(out, "draining", help, MetricType::Gauge)?.gauge(vec![], draining)?;
        let epoch = snapshot.epoch as f64;
        let help = "The number of the fleet's last publication, as /endpoints has it";
        Family::new(out, "snapshot_epoch", help, MetricType::Gauge)?.gauge(vec![], epoch)?;
        let mut family = Family::new(out, "shard_driver", "How each shard moves bytes", MetricType::Gauge)?;
        for (index, shard) in process.shards().iter().enumerate() {
            let (index, (driver, why)) = (index.to_string(), shard.driver());
            family.gauge(vec![("shard", &index), ("driver", driver), ("why", why)], 1.0)?;
        }
        let mut family = Family::new(out, "shard_turns", "Turns of each shard's loop", MetricType::Counter)?;
        for shard in 0..stats.shards() {
            family.counter(vec![("shard", &shard.to_string())], stats.shard(shard).turns())?;
        }
        let help = "Times a shard stood still: in the middle of a turn for some 50 ms, or asleep for 3 s where it wakes each second";
        let mut family = Family::new(out, "shard_stalls", help, MetricType::Counter)?;
        for (shard, state) in self.0.process.shards().iter().enumerate() {
            family.counter(vec![("shard", &shard.to_string())], state.stalls())?;
        }
        let help = "Client connections of each shard: how evenly they are spread";
        let mut family = Family::new(out, "shard_client_connections", help, MetricType::Gauge)?;
        for shard in 0..stats.shards() {
            let open = stats.shard(shard).gauge(Gauge::Connections);
            family.gauge(vec![("shard", &shard.to_string())], open as f64)?;
        }
        let most = self.0.keeper.config().limits.connections_max as f64;
        Family::new(out, "shard_client_connections_max", "Most client connections of a shard", MetricType::Gauge)?
            .gauge(vec![], most)?;
        for (gauge, name, help) in [
            (Gauge::Connections, "client_connections", "Client connections"),
            (Gauge::Upstreams, "upstream_connections", "Connections to engines, busy or idle"),
            (
                Gauge::HeldBytes,
                "held_bytes",
                "Memory of bodies held while a choice waits and of the scanners that read them, of heads that have not come whole, of what is read ahead of clients, and of what is kept of prompts while they wait in the queue or until their engine has let them in",
            ),
            (Gauge::HeldBytesMax, "held_bytes_max", "Most of these for all shards (budget_bytes of each)"),
            (
                Gauge::InFlight,
                "counted_in_flight",
                "Requests that shards hold as in flight: the sum of endpoint_in_flight",
            ),
        ] {
            Family::new(out, name, help, MetricType::Gauge)?.gauge(vec![], stats.gauge(gauge) as f64)?;
        }
        let waiting = f64::from(counters.queue().waiting());
        Family::new(out, "queue_waiting", "Requests that wait for room in an engine's cache", MetricType::Gauge)?
            .gauge(vec![], waiting)?;
        let most = f64::from(self.0.keeper.config().queue.waiting_max);
        Family::new(out, "queue_waiting_max", "Most that may wait so (waiting_max)", MetricType::Gauge)?
            .gauge(vec![], most)?;
        Family::new(out, "release_underflows", "Releases without a request, always 0", MetricType::Counter)?
            .counter(vec![], counters.underflow())
    }

    /// The state of the configuration, under the names that Prometheus uses for its own.
    pub(super) fn configuration(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let reloads = self.0.keeper.reloads();
        let taken = f64::from(u8::from(reloads.was_taken()));
        for (name, help, value) in [
            ("config_last_reload_successful", "0 where the configuration was refused when it was read last", taken),
            (
                "config_last_reload_success_timestamp_seconds",
                "When the configuration in use was read, since 1970",
                reloads.read() as f64,
            ),
            (
                "config_reloads_under_way",
                "Readings of the configuration that have not ended: where that lasts, a disk or a name server does not answer",
                reloads.under_way() as f64,
            ),
            (
                "config_restart_wanted",
                "Keys of the configuration that stay as they were until a restart",
                reloads.restart_wanted() as f64,
            ),
            (
                "host_names_unfollowed",
                "Host names with each_address whose engines stay as they were, since name servers tell no address that can be taken",
                self.0.keeper.unfollowed_names() as f64,
            ),
        ] {
            Family::new(out, name, help, MetricType::Gauge)?.gauge(vec![], value)?;
        }
        let help = "Times that the configuration was to be read anew";
        Family::new(out, "config_reloads", help, MetricType::Counter)?.counter(vec![], reloads.begun())?;
        let help = "Times that another process was to take this one's place (SIGUSR2), and none did";
        Family::new(out, "upgrade_failures", help, MetricType::Counter)?.counter(vec![], upgrade::failures())
    }
}
