//! What schedules came to: shows that they reach what they are for.

use clap::ValueEnum;
use warmfront::counters::stats::{Count, Shadowed, Stats, Timing};
use warmfront::policy::Policy;

macro_rules! tally {
    ($($field:ident: $kind:ty),+) => {
        #[derive(Clone, Copy, Default, Debug)]
        pub struct Tally {
            $(pub $field: $kind,)+
        }

        impl std::ops::AddAssign for Tally {
            fn add_assign(&mut self, more: Tally) {
                $(self.$field += more.$field;)+
            }
        }

        impl std::ops::Sub for Tally {
            type Output = Tally;

            fn sub(self, less: Tally) -> Tally {
                Tally { $($field: self.$field - less.$field,)+ }
            }
        }
    };
}

tally!(
    turns: usize, requests: usize, executed: usize, replies: usize, by_engines: usize, tunnelled: usize, told: usize,
    spliced: u64, retried_busy: u64, retried_untouched: u64, withheld: u64, barred: u64, error_replies: u64,
    error_events: u64, cut: u64, panicked: u64, finished: u64,
    handed_over: usize, handed_over_late: usize, accepted_last: usize,
    queue_released: u64, queue_full: u64, queue_pushed_out: u64, queue_timed_out: u64, queue_left: u64,
    shadow_agreed: u64, shadow_differed: u64, shadow_nobody: u64,
    held: u64, pushed_out: u64, taken_back: u64, sent_to_nobodys: u64, slots_given: u64,
    accounts_differ: u64, faults: u64, told_whole: usize, records_dropped: u64
);

impl Tally {
    pub fn of_stats(stats: &Stats) -> Tally {
        Tally {
            spliced: stats.total(Count::BytesSpliced),
            retried_busy: stats.total(Count::RetriedBusy),
            retried_untouched: stats.total(Count::RetriedStale) + stats.total(Count::RetriedFault),
            withheld: stats.total(Count::RetryWithheld),
            barred: stats.total(Count::Barred),
            error_replies: stats.total(Count::UpstreamFaultErrorReply),
            error_events: stats.total(Count::UpstreamFaultErrorEvent),
            cut: stats.total(Count::StreamCut),
            panicked: stats.total(Count::Panicked),
            queue_released: stats.total(Count::QueueReleased),
            queue_full: stats.total(Count::QueueFull),
            queue_pushed_out: stats.total(Count::QueuePushedOut),
            queue_timed_out: stats.total(Count::QueueTimedOut),
            queue_left: stats.total(Count::AbortedQueue),
            shadow_agreed: shadowed(stats, Shadowed::Agreed),
            shadow_differed: shadowed(stats, Shadowed::Differed),
            shadow_nobody: shadowed(stats, Shadowed::Nobody),
            sent_to_nobodys: stats.total(Count::IndexStranger),
            accounts_differ: stats.total(Count::AccountsDiffer),
            // The only pool there is.
            finished: stats.timing(0, Timing::Total).count(),
            faults: crate::schedule::faults(),
            records_dropped: stats.total(Count::RecordDropped),
            ..Tally::default()
        }
    }

    /// What none of many schedules came to.
    pub fn missing(&self) -> Vec<&'static str> {
        let all = [
            ("tunnelled", self.tunnelled as u64),
            ("told", self.told as u64),
            ("spliced", self.spliced),
            ("retried_busy", self.retried_busy),
            ("retried_untouched", self.retried_untouched),
            ("withheld", self.withheld),
            ("barred", self.barred),
            ("error_replies", self.error_replies),
            ("error_events", self.error_events),
            ("cut", self.cut),
            ("panicked", self.panicked),
            ("handed_over", self.handed_over as u64),
            ("handed_over_late", self.handed_over_late as u64),
            ("accepted_last", self.accepted_last as u64),
            ("queue_released", self.queue_released),
            ("queue_full", self.queue_full),
            ("queue_pushed_out", self.queue_pushed_out),
            ("queue_timed_out", self.queue_timed_out),
            ("queue_left", self.queue_left),
            ("shadow_agreed", self.shadow_agreed),
            ("shadow_differed", self.shadow_differed),
            ("held", self.held),
            ("pushed_out", self.pushed_out),
            ("taken_back", self.taken_back),
            ("sent_to_nobodys", self.sent_to_nobodys),
            ("slots_given", self.slots_given),
            ("told_whole", self.told_whole as u64),
        ];
        all.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }
}

/// In the only pool there is, by whatever policy looks on.
fn shadowed(stats: &Stats, what: Shadowed) -> u64 {
    Policy::value_variants().iter().map(|policy| stats.shadowed(0, *policy as u8, what)).sum()
}
