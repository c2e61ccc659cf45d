//! Asks a front for its metrics.

use std::net::SocketAddr;
use std::time::Duration;

use super::reading::Reading;
use crate::cli::unanswered;
use crate::control::client::{Call, Client};

/// Longest wait for an answer: a front under load answers within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Longest answer: a thousand endpoints' are about 4 MiB.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// The admin listener of a front that runs, or should.
#[derive(Clone, Debug)]
pub(super) struct Front {
    address: SocketAddr,
    client: Client,
}

impl Front {
    pub(super) fn at(address: SocketAddr) -> Front {
        // On a kept connection a front that was replaced and still finishes its requests would go on answering.
        Front { address, client: Client::connecting_anew() }
    }

    /// Reads its metrics once.
    ///
    /// # Errors
    /// Why that was not possible, in words.
    pub(super) async fn read(&self) -> Result<Reading, String> {
        let authority = self.address.to_string();
        let call = Call {
            address: self.address,
            authority: &authority,
            path: "/metrics",
            key: None,
            timeout: TIMEOUT,
            bytes_max: ANSWER_BYTES_MAX,
        };
        let answer = self.client.get(&call).await.map_err(|error| unanswered(&error))?;
        if answer.status != 200 {
            return Err(format!(
                "{authority} answers /metrics with {}: is it a front's admin listener?",
                answer.status
            ));
        }
        let reading = Reading::of(&answer.body);
        if reading.uptime.is_none() {
            return Err(format!(
                "what {authority} answers has no warmfront_uptime_seconds: is it a front's admin listener?"
            ));
        }
        Ok(reading)
    }
}
