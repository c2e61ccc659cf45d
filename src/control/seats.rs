//! Connections of the admin listener: few at once, and none of them for a long time, since they take descriptors that
//! shards need as well.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::bout::Bout;

/// Most at once; further ones wait in the kernel.
const CONNECTIONS_MAX: usize = 64;
/// Longest wait for a head, also for the next one on a connection that is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest life of a connection, so that bodies and answers that never end leave room as well.
const LIFE_MAX: Duration = Duration::from_secs(300);
/// An answer under way by then may take that much longer.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// Pause before another try if there is no descriptor left.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Serves until it is dropped; connections that are open then are still answered.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut want = Bout::default();
    // It fails only if the semaphore is closed, which never happens.
    while let Ok(seat) = Arc::clone(&seats).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if want.over() {
                    tracing::info!("the admin listener takes connections again");
                }
                let router = router.clone().layer(Extension(ConnectInfo(peer)));
                tokio::spawn(async move {
                    answer(stream, router).await;
                    drop(seat);
                });
            }
            // The client has left already.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                if want.troubled(Instant::now()) {
                    tracing::error!(%error, "the admin listener takes no connection; it tries again");
                }
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Errors of a connection are not reported: its client sees them.
async fn answer(stream: TcpStream, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    if timeout(LIFE_MAX, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LAST_ANSWER, connection).await;
    }
}
