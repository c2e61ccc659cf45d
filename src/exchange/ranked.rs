//! Which of the ranks behind its port an engine is to give a request to: a field of the head, which is written before
//! it is known who gets it, and may go to another endpoint yet.
//!
//! Before the head there is room for that field in what is held. Once an endpoint is chosen whose server has several
//! ranks, the request line moves into it, and the field stands behind that; where the next one has no ranks, the line
//! moves back. Fields of that name which the client wrote are for engines without: they are set aside, to the very
//! front, for as long as ours stands there.

use std::ops::Range;

use super::Exchange;
use super::event::Context;
use super::upload::Upload;
use crate::fleet::EndpointId;
use crate::http::rewrite::RANK_FIELD;
use crate::limits::RANKS_MAX;

/// Room for the field: its name, a colon and a blank, two digits, and the end of the line.
pub(super) const ROOM: usize = RANK_FIELD.len() + 2 + 2 + 2;

const _: () = assert!(RANKS_MAX <= 100, "a rank has two digits");

/// How the head of a request that is held names a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Naming {
    /// Where the request begins in what is held.
    begins: u32,
    /// So many bytes of fields that the client wrote are set aside.
    set_aside: u32,
    /// It wrote some.
    by_client: bool,
    /// Bytes of the field that is ours; 0: it is not there.
    ours: u8,
}

impl Naming {
    /// Of a head behind so much room.
    pub fn behind(room: usize, by_client: bool) -> Naming {
        Naming { begins: room as u32, by_client, ..Naming::default() }
    }

    /// Where the request begins in what is held.
    pub fn begins(&self) -> usize {
        self.begins as usize
    }

    /// It begins so much later.
    fn later(&mut self, bytes: usize) {
        self.begins += bytes as u32;
    }

    fn sooner(&mut self, bytes: usize) {
        self.begins -= bytes as u32;
    }

    /// Whether there is room for a field, or one stands there.
    fn is_at_hand(&self) -> bool {
        self.begins > 0 || self.ours > 0
    }
}

impl Exchange {
    /// Nothing was sent there yet. Where no server has ranks that are chosen by themselves there is nothing to do.
    #[inline]
    pub(super) fn name_rank(&mut self, endpoint: EndpointId, cx: &mut Context<'_>) {
        if cx.snapshot.any_ranked || self.upload.naming.is_at_hand() {
            let rank = cx.snapshot.endpoint(endpoint).and_then(|endpoint| endpoint.rank);
            let before = self.upload.held.capacity();
            self.upload.name_rank(rank);
            cx.lender.held_bytes += self.upload.held.capacity() - before;
        }
    }
}

impl Upload {
    /// The head, and what is held behind it.
    pub fn request(&self) -> &[u8] {
        self.held.get(self.naming.begins()..).unwrap_or_default()
    }

    /// Has the head name this rank, once, or what its client named; it is sent from its beginning.
    fn name_rank(&mut self, rank: Option<u16>) {
        self.take_ours_out();
        match rank {
            Some(rank) => {
                if self.naming.by_client && self.naming.set_aside == 0 {
                    self.set_aside();
                }
                self.put_ours_in(rank);
            }
            None => self.put_back(),
        }
        self.pushed = self.naming.begins();
    }

    /// Where the request line lies.
    fn line(&self) -> Range<usize> {
        let begins = self.naming.begins();
        begins..begins + line_len(self.held.get(begins..self.head_len()).unwrap_or_default())
    }

    fn take_ours_out(&mut self) {
        let ours = std::mem::take(&mut self.naming.ours).into();
        let line = self.line();
        self.held.copy_within(line.clone(), line.start + ours);
        self.naming.later(ours);
    }

    fn put_ours_in(&mut self, rank: u16) {
        let (field, len) = field(rank);
        let front = self.naming.set_aside as usize;
        if self.naming.begins() - front < len {
            // When it came no server had ranks.
            self.held.splice(front..front, [0; ROOM]);
            self.naming.later(ROOM);
            self.head_end += ROOM as u32;
        }
        let line = self.line();
        self.held.copy_within(line.clone(), line.start - len);
        self.held[line.end - len..line.end].copy_from_slice(&field[..len]);
        self.naming.sooner(len);
        self.naming.ours = len as u8;
    }

    /// Moves each such field behind those that are set aside already; what stood before it moves back by as much.
    fn set_aside(&mut self) {
        let mut at = self.line().end;
        while let Some(head) = self.held.get(at..self.head_len()).filter(|head| !head.starts_with(b"\r\n")) {
            let len = line_len(head);
            if len == 0 {
                return;
            }
            let name = head.split(|byte| *byte == b':').next().unwrap_or_default();
            at += len;
            if name.eq_ignore_ascii_case(RANK_FIELD) {
                self.held[self.naming.set_aside as usize..at].rotate_right(len);
                self.naming.set_aside += len as u32;
                self.naming.later(len);
            }
        }
    }

    /// What is set aside stands behind the request line from here on.
    fn put_back(&mut self) {
        let set_aside = std::mem::take(&mut self.naming.set_aside) as usize;
        let end = self.line().end;
        self.held[..end].rotate_left(set_aside);
        self.naming.sooner(set_aside);
    }
}

fn line_len(head: &[u8]) -> usize {
    head.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1)
}

/// The field as it is sent, and how long it is.
fn field(rank: u16) -> ([u8; ROOM], usize) {
    let mut field = [b' '; ROOM];
    field[..RANK_FIELD.len()].copy_from_slice(RANK_FIELD);
    field[RANK_FIELD.len()] = b':';
    let (tens, ones) = ((rank / 10 % 10) as u8, (rank % 10) as u8);
    let mut end = RANK_FIELD.len() + 2;
    for digit in [Some(tens).filter(|tens| *tens > 0), Some(ones)].into_iter().flatten() {
        field[end] = b'0' + digit;
        end += 1;
    }
    field[end..end + 2].copy_from_slice(b"\r\n");
    (field, end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Body, BodyLength};

    const REST: &str = "host: a\r\ncontent-length: 3\r\n\r\nabc";

    fn holding(request: &str, room: usize, by_client: bool) -> Upload {
        let mut held = vec![0; room];
        held.extend_from_slice(request.as_bytes());
        Upload {
            body: Body::new(BodyLength::Length(3)),
            bytes: 3,
            rate_since: 0,
            rate_from: 0,
            until: 0,
            held_back_since: 0,
            head_end: held.len() as u32 - 3,
            held,
            naming: Naming::behind(room, by_client),
            pushed: room,
            held_whole: true,
            scan: None,
            scan_nanos: 0,
            seeks_model: false,
            unscannable: false,
        }
    }

    fn told(upload: &Upload) -> String {
        let sent = String::from_utf8(upload.unsent().to_vec()).unwrap();
        assert_eq!(upload.request(), upload.unsent());
        assert_eq!(&upload.held[upload.head_len()..], b"abc", "the body lies where it is looked for");
        sent
    }

    #[test]
    fn the_rank_is_named_once_whoever_is_tried() {
        for room in [0, ROOM] {
            let mut upload = holding(&format!("POST /v1 HTTP/1.1\r\n{REST}"), room, false);
            for (rank, field) in [
                (None, ""),
                (Some(0), "x-data-parallel-rank: 0\r\n"),
                (Some(1), "x-data-parallel-rank: 1\r\n"),
                (Some(63), "x-data-parallel-rank: 63\r\n"),
                (Some(7), "x-data-parallel-rank: 7\r\n"),
                (None, ""),
                (None, ""),
                (Some(10), "x-data-parallel-rank: 10\r\n"),
            ] {
                upload.name_rank(rank);
                assert_eq!(told(&upload), format!("POST /v1 HTTP/1.1\r\n{field}{REST}"));
            }
        }
    }

    #[test]
    fn what_a_client_names_is_for_engines_without_ranks() {
        let (own, other) = ("X-Data-Parallel-Rank: 9\r\n", "x-data-parallel-rank:12\r\n");
        for room in [0, ROOM] {
            let came = format!("POST /v1 HTTP/1.1\r\nx-a: b\r\n{own}{other}{REST}");
            let mut upload = holding(&came, room, true);
            upload.name_rank(None);
            assert_eq!(told(&upload), came, "as it came");
            for rank in [3, 40] {
                upload.name_rank(Some(rank));
                let named = format!("POST /v1 HTTP/1.1\r\nx-data-parallel-rank: {rank}\r\nx-a: b\r\n{REST}");
                assert_eq!(told(&upload), named);
            }
            for _ in 0..2 {
                upload.name_rank(None);
                assert_eq!(told(&upload), format!("POST /v1 HTTP/1.1\r\n{own}{other}x-a: b\r\n{REST}"));
            }
            upload.name_rank(Some(3));
            let named = format!("POST /v1 HTTP/1.1\r\nx-data-parallel-rank: 3\r\nx-a: b\r\n{REST}");
            assert_eq!(told(&upload), named);
        }
    }
}
