//! The body of a streamed reply: one event a token, one chunk an event.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::time::{Instant, Sleep};

use super::pump::{Answering, Event};
use super::reply::{Shape, Usage};
use super::request::Request;

const DONE: &[u8] = b"data: [DONE]\n\n";
const COMMENT: &[u8] = b": keep-alive\n\n";

/// Events of one request until its last choice has ended.
pub struct Stream {
    shape: Shape,
    /// Aborts the request when the body is dropped, that is when the client has gone.
    answering: Answering,
    ready: VecDeque<Bytes>,
    choices_left: usize,
    usage: Usage,
    tells_cached: bool,
    usage_at_end: bool,
    usage_always: bool,
    silence: Option<(Duration, Pin<Box<Sleep>>)>,
    over: bool,
}

impl Stream {
    /// Makes a stream of what the engine answers.
    pub fn new(
        shape: Shape,
        asked: &Request,
        answering: Answering,
        tells_cached: bool,
        keep_alive: Duration,
    ) -> Stream {
        let silence = (!keep_alive.is_zero()).then(|| (keep_alive, Box::pin(tokio::time::sleep(keep_alive))));
        Stream {
            shape,
            answering,
            ready: VecDeque::new(),
            choices_left: asked.asks.len(),
            usage: Usage { prompt: asked.prompt_tokens, ..Usage::default() },
            tells_cached,
            usage_at_end: asked.usage_at_end,
            usage_always: asked.usage_always,
            silence,
            over: false,
        }
    }

    fn take(&mut self, event: Event) {
        if let Some(cached) = event.cached {
            if self.tells_cached {
                self.usage.cached = Some(self.usage.cached.unwrap_or(0) + cached);
            }
            let usage = self.usage_always.then_some(self.usage);
            self.ready.extend(self.shape.opening(event.choice, usage));
        }
        self.usage.completion += 1;
        let usage = self.usage_always.then_some(self.usage);
        let four = event.token.to_le_bytes();
        let text = std::str::from_utf8(&four).unwrap_or_default();
        let print = !self.usage_at_end;
        self.ready.push_back(self.shape.token(event.choice, text, event.finish, usage, print));
        if event.finish.is_some() {
            self.choices_left -= 1;
        }
        if self.choices_left == 0 {
            if self.usage_at_end {
                self.ready.push_back(self.shape.usage(self.usage));
            }
            self.ready.push_back(Bytes::from_static(DONE));
            self.over = true;
        }
    }

    /// Sends a comment when the stream has been silent for `sse_keep_alive`.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let Some((every, timer)) = &mut self.silence else { return Poll::Pending };
        ready!(timer.as_mut().poll(context));
        let next = Instant::now() + *every;
        timer.as_mut().reset(next);
        Poll::Ready(Bytes::from_static(COMMENT))
    }
}

/// The engine was restarted under a reply: the connection is cut, as when an engine dies.
#[derive(Debug)]
pub struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the simulated engine was restarted")
    }
}

impl std::error::Error for Cut {}

impl From<Infallible> for Cut {
    fn from(never: Infallible) -> Cut {
        match never {}
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(event))));
            }
            if this.over {
                return Poll::Ready(None);
            }
            match this.answering.poll_next(context) {
                Poll::Ready(Some(event)) => {
                    this.take(event);
                    if let Some((every, timer)) = &mut this.silence {
                        let next = Instant::now() + *every;
                        timer.as_mut().reset(next);
                    }
                }
                Poll::Ready(None) => return Poll::Ready(Some(Err(Cut))),
                Poll::Pending => {
                    let comment = ready!(this.poll_silence(context));
                    return Poll::Ready(Some(Ok(Frame::data(comment))));
                }
            }
        }
    }
}
