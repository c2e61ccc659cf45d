//! The named counters of a shard. A new one is a new line of the list at the end of this file.

/// Makes [`Count`] and its tables from lines of
/// `"family", "help" [, "label"] => Variant [= "label value"], ...;`
macro_rules! counts {
    ($($family:literal, $help:literal $(, $label:literal)? => $($variant:ident $(= $value:literal)?),+;)+) => {
        /// What a shard counts. Families and label values are those of its metrics.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Count {
            $($(#[doc = concat!($help $(, " Here: ", $value, ".")?)] $variant,)+)+
        }

        impl Count {
            /// All of them; those of one family stand together.
            pub const ALL: &'static [Count] = &[$($(Count::$variant,)+)+];

            /// Family, help and label name (empty: no label).
            const fn line(self) -> (&'static str, &'static str, &'static str) {
                match self {
                    $($(Count::$variant)|+ => ($family, $help, concat!($($label)?)),)+
                }
            }

            /// Label value (empty: no label).
            const fn value(self) -> &'static str {
                match self {
                    $($(Count::$variant => concat!($($value)?),)+)+
                }
            }
        }
    };
}

impl Count {
    /// Metric family, without the front's prefix and without `_total`, which the exposition adds.
    pub fn family(self) -> &'static str {
        self.line().0
    }

    /// Help text of the family.
    pub fn help(self) -> &'static str {
        self.line().1
    }

    /// The label, if the family has one.
    pub fn label(self) -> Option<(&'static str, &'static str)> {
        let (.., name) = self.line();
        (!name.is_empty()).then_some((name, self.value()))
    }

    /// By its label, or by its family where that has none.
    pub fn name(self) -> &'static str {
        self.label().map_or(self.family(), |(_, value)| value)
    }

    /// A request answered by the front itself with an error, by its cause.
    pub fn refused(cause: &str) -> Count {
        Count::labelled(Count::RefusedOther, cause)
    }

    /// A body the scanner gave up on, by its kind.
    pub fn scan_failed(kind: &str) -> Count {
        Count::labelled(Count::ScanFailedOther, kind)
    }

    /// A client that left, by the phase of its exchange.
    pub fn aborted(phase: &str) -> Count {
        Count::labelled(Count::AbortedOther, phase)
    }

    /// A reply that broke or was broken off on the engine's side, by its kind.
    pub fn upstream_fault(kind: &str) -> Count {
        Count::labelled(Count::UpstreamFaultOther, kind)
    }

    /// The count of `other`'s family with this label value, else `other`. For what is rare: it compares strings.
    fn labelled(other: Count, value: &str) -> Count {
        let same = |count: &&Count| count.family() == other.family() && count.value() == value;
        Count::ALL.iter().find(same).copied().unwrap_or(other)
    }
}

counts! {
    "connections_accepted", "Client connections accepted." => Accepted;
    "connections_closed", "Client connections closed." => Closed;
    "upstreams_opened", "Connections opened to engines." => UpstreamOpened;
    "upstreams_reused", "Requests sent on a kept connection." => UpstreamReused;
    "connect_failures", "Connects to engines that failed." => ConnectFailed;
    "retries", "Requests sent once more, to a further endpoint or by a new connection, by what failed before.", "after" =>
        RetriedConnect = "connect", RetriedStale = "stale_connection", RetriedFault = "fault", RetriedBusy = "busy",
        RetriedNotHere = "not_here";
    "retries_withheld", "Requests not sent a second time because too many were, or retry_percent is 0." => RetryWithheld;
    "back_pressure", "Requests that an engine refused for load (429, 503)." => BackPressure;
    "endpoints_barred", "Endpoints that requests found failing, kept out of choices at once." => Barred;
    "choices_repeated", "Choices made again because another shard took the slot." => ChoiceRepeated;
    "spilled", "Requests sent past a home at its bound." => Spilled;
    "admitted_over_bound", "Requests admitted over a bound after repeated choices." => AdmittedOverBound;
    "index_busy", "Times that a prompt was not noted in the index, or what was noted of it not taken back, because another thread was writing for the same engine; up to two for a prompt." => IndexBusy;
    "prompts_rendered", "Prompts looked up as their engine writes them, with each try again." => Rendered;
    "prompts_not_rendered", "Prompts of a model whose form is known that it does not cover: looked up by what was sent where, with each try again.", "why" =>
        NotRenderedTools = "tools", NotRenderedToolset = "toolset", NotRenderedCall = "call", NotRenderedTemplate = "template", NotRenderedField = "field", NotRenderedRole = "role",
        NotRenderedMessage = "message", NotRenderedContent = "content", NotRenderedMedia = "media", NotRenderedApi = "api",
        NotRenderedHeld = "not_held", NotRenderedOther = "other";
    "index_strangers", "Times that a prompt was not noted in the index because it has no place for its engine, or that was taken out this moment; up to two for a prompt." => IndexStranger;
    "queued", "Requests that had to wait for room in an engine's cache." => Queued;
    "queue_ends", "How the wait for room ended, where the client did not leave (unserved: no engine was left, or the front ended), and full: requests that could not begin it, and are not among those queued.", "end" =>
        QueueReleased = "released", QueuePushedOut = "pushed_out", QueueTimedOut = "timed_out", QueueFull = "full", QueueUnserved = "unserved";
    "clients_held_back", "Times that no more was read of a client that had sent requests ahead of the reply to the one before." => HeldBack;
    "tunnels", "Connections that became tunnels." => Tunnel;
    "client_bytes_in", "Bytes received from clients." => BytesIn;
    "client_bytes_out", "Bytes sent to clients." => BytesOut;
    "spliced_bytes", "Bytes of long opaque replies that passed inside the kernel." => BytesSpliced;
    "receive_buffers_out", "Times that bytes waited a turn because no receive buffer was left." => BuffersOut;
    "completion_overflows", "Times that the ring's queue of completions was full, and the kernel was asked once more for those behind." => CompletionsOver;
    "accept_stalls", "Times that accepting was put off because descriptors or memory are scarce or the kernel refuses, or that there was no room to watch a client (fs.epoll.max_user_watches)." => AcceptStalled;
    "accept_pauses", "Times that a shard had as many clients as it may (connections_max): further ones wait in the kernel's queue." => AcceptPaused;
    "standstills", "Times that a shard turned more than 1.5 s later than it was to: it was not let run, or the whole process was stopped, or its machine." => StoodStill;
    "connects_wanting", "Connects to engines that no descriptor, port or memory was left for." => ConnectWanting;
    "upstream_bytes_in", "Bytes received from engines." => UpstreamBytesIn;
    "upstream_bytes_out", "Bytes sent to engines." => UpstreamBytesOut;
    "answered_here", "Requests that pages of the front's own answered (/health, also where it says 503, /v1/models); what else it answered with an error is refused." => AnsweredHere;
    "client_stalls", "Clients that took none of their reply for too long." => ClientStalled;
    "accounts_differ", "Times that what a shard counted was not what it held." => AccountsDiffer;
    "access_records_dropped", "Requests missing from the access log, or while that is off among the receipts, because they ended faster than they were taken up." => RecordDropped;
    "exchange_panics", "Requests ended by a fault of the front." => Panicked;
    "streams_told", "Streams that ended with an event of ours saying why." => ToldInStream;
    "streams_cut", "Replies broken off after their head, visibly to the client." => StreamCut;
    "shadowed_fields", "Bodies with a repeated field that routing looks at." => DuplicateField;
    "scan_failures", "Bodies the scanner gave up on: routed by load where a policy would have read them; where several models are served and theirs was not read, to default_model or answered 400.", "kind" =>
        ScanFailedEmpty = "empty", ScanFailedNotObject = "not_object", ScanFailedSyntax = "syntax",
        ScanFailedControlCharacter = "control_character", ScanFailedEscape = "escape",
        ScanFailedTrailing = "trailing", ScanFailedTruncated = "truncated",
        ScanFailedCompressed = "compressed", ScanFailedOther = "other";
    "client_aborts", "Clients that left, by the phase of their exchange.", "phase" =>
        AbortedReadBody = "read_body", AbortedQueue = "queue", AbortedConnect = "connect", AbortedSend = "send",
        AbortedAwait = "await", AbortedRelay = "relay", AbortedTunnel = "tunnel", AbortedOther = "other";
    "refused", "Requests the front answered itself with an error, by cause.", "cause" =>
        RefusedBadHead = "bad_head", RefusedOtherProtocol = "other_protocol", RefusedBadTarget = "bad_target", RefusedBadHost = "bad_host",
        RefusedBadVersion = "bad_version", RefusedHeadTooLarge = "head_too_large",
        RefusedBadFraming = "bad_framing", RefusedBadField = "bad_field", RefusedBadChunk = "bad_chunk",
        RefusedBadTrailers = "bad_trailers", RefusedBodyTooLarge = "body_too_large",
        RefusedEarlyEnd = "early_end", RefusedBadSwitch = "bad_switch",
        RefusedClientTimeout = "client_timeout", RefusedEngineTimeout = "engine_timeout",
        RefusedUnreachable = "unreachable", RefusedUnknownModel = "unknown_model", RefusedShed = "shed",
        RefusedAllAtCap = "all_at_cap", RefusedOverBudget = "over_budget", RefusedNoDescriptor = "no_descriptor", RefusedOther = "other";
    "strangers_unknown_models", "Requests for a model that nobody is known to serve, with which no key was shown that is known to be let in: an engine was asked, and did not keep them out." =>
        StrangersUnknownModel;
    "upstream_faults", "Replies that broke, were broken off, told of an error, or were left by a client behind a long silence (left_waiting), by kind; of these error_reply and error_event may be the client's doing (endpoint_faults has what counts against engines).", "kind" =>
        UpstreamFaultBadHead = "bad_head", UpstreamFaultBadFraming = "bad_framing",
        UpstreamFaultBadField = "bad_field", UpstreamFaultBadChunk = "bad_chunk",
        UpstreamFaultBadTrailers = "bad_trailers", UpstreamFaultHeadTooLarge = "head_too_large",
        UpstreamFaultBadSwitch = "bad_switch", UpstreamFaultEarlyEnd = "early_end",
        UpstreamFaultReset = "reset", UpstreamFaultHeadTimeout = "head_timeout",
        UpstreamFaultFirstTokenTimeout = "first_token_timeout",
        UpstreamFaultChunkTimeout = "inter_chunk_timeout", UpstreamFaultErrorReply = "error_reply", UpstreamFaultErrorEvent = "error_event",
        UpstreamFaultSilent = "silent", UpstreamFaultLeftWaiting = "left_waiting", UpstreamFaultOther = "other";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_and_series_are_unique() {
        let mut series = HashSet::new();
        for (number, &count) in Count::ALL.iter().enumerate() {
            assert_eq!(count as usize, number);
            assert!(series.insert((count.family(), count.label())), "{count:?} twice");
            assert!(count.label().is_none_or(|(_, value)| !value.is_empty()), "{count:?} has no label value");
        }
        let families: HashSet<_> = Count::ALL.iter().map(|count| count.family()).collect();
        assert_eq!(Count::ALL.chunk_by(|a, b| a.family() == b.family()).count(), families.len());
    }

    #[test]
    fn unknown_labels_are_other() {
        assert_eq!(Count::refused("bad_head"), Count::RefusedBadHead);
        for cause in crate::http::Cause::ALL {
            assert_ne!(Count::refused(cause.as_str()), Count::RefusedOther, "{cause:?} has no counter");
        }
        for fault in crate::scan::Fault::ALL {
            assert_ne!(Count::scan_failed(fault.as_str()), Count::ScanFailedOther, "{fault:?} has no counter");
        }
        assert_eq!(Count::refused("never heard of"), Count::RefusedOther);
        assert_eq!(Count::aborted("relay"), Count::AbortedRelay);
        assert_eq!(Count::scan_failed("relay"), Count::ScanFailedOther);
    }
}
