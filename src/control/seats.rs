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
                    answer(stream, router, LIFE_MAX, LAST_ANSWER).await;
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
async fn answer(stream: TcpStream, router: Router, life_max: Duration, last_answer: Duration) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    if timeout(life_max, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(last_answer, connection).await;
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use axum::routing::post;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Else a body that never ends would keep one of few places for ever.
    #[tokio::test]
    async fn a_body_that_drips_ends_with_its_connections_life() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let router = Router::new().route("/reload", post(|body: Bytes| async move { body.len().to_string() }));
        let each = Duration::from_millis(200);
        let served = tokio::spawn(answer(stream, router, each, each));
        client.write_all(b"POST /reload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n").await.unwrap();
        let begun = Instant::now();
        while !served.is_finished() {
            assert!(begun.elapsed() < Duration::from_secs(5), "it may take as long as it likes");
            let _ = client.write_all(b"x").await;
            sleep(Duration::from_millis(20)).await;
        }
        assert!(begun.elapsed() >= each, "{:?}", begun.elapsed());
        assert!(!matches!(client.read(&mut [0; 99]).await, Ok(1..)), "it was answered");
    }
}
