//! Bytes that go from one connection to another inside the kernel: as many as were asked for, and every end is told.

use std::time::Duration;

use warmfront::driver::{Completion, Driver, Segment, SocketId, Tag};

use crate::peer::pattern;
use crate::turns::{Told, Turns};

on_both_drivers! {
    a_splice_moves_its_bytes_and_no_more
    an_end_within_a_splice_is_told_behind_its_bytes
    a_reset_within_a_splice_is_told
    a_reader_that_leaves_a_splice_is_told
    who_is_full_as_a_splice_begins_is_told
    a_splice_may_be_paused_and_closed
    what_a_cut_splice_leaves_behind_goes_to_nobody_else
    what_follows_a_splice_of_held_back_bytes_goes_to_nobody_else
    so_many_splices_go_at_once_and_no_more
}

/// What an owner does: sends on bytes that come outside of the splice, and pauses a side whose bytes have no room.
fn react<D: Driver>(from: SocketId, to: SocketId, names: (Tag, Tag), driver: &mut D, completion: Completion) {
    match completion {
        Completion::Received(tag, lease) if tag == names.0 => {
            driver.send(to, &[Segment::Leased(lease, 0..lease.len as usize)]);
        }
        Completion::Full(tag) if tag == names.1 => driver.pause(from),
        Completion::Drained(tag) if tag == names.1 => driver.resume(from),
        _ => {}
    }
}

fn spliced<D: Driver>(turns: &Turns<D>, tag: Tag) -> u64 {
    let len = |told: &Told| if let Told::Spliced(len) = told { *len } else { 0 };
    turns.told(tag).iter().map(len).sum()
}

fn a_splice_moves_its_bytes_and_no_more<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for early in [false, true] {
        let [(from, source, mut writer), (to, sink, mut reader)] = turns.two();
        let bytes = pattern(9_000_000, 3);
        let (count, mut written) = (8_000_000, 0);
        if early {
            // The kernel, or the driver, has these before the splice begins.
            written = writer.write_some(&bytes[..50_000]);
        }
        assert!(turns.driver.splice(from, to, count));
        let react = |driver: &mut D, completion| react(from, to, (source, sink), driver, completion);
        let mut turn = 0;
        turns.until_with("everything", react, |_| {
            written += writer.write_some(&bytes[written..]);
            turn += 1;
            reader.read_up_to(if turn < 30 { 0 } else { 600_000 });
            reader.got.len() == bytes.len()
        });
        assert!(reader.got == bytes);
        let (moved, seen) = (spliced(&turns, source), turns.received(source).len() as u64);
        assert_eq!(moved + seen, bytes.len() as u64);
        assert!(moved > 7_000_000 && moved <= count, "{moved} bytes went unseen");
        assert!(turns.received(source).ends_with(&bytes[count as usize..]));
    }
}

fn an_end_within_a_splice_is_told_behind_its_bytes<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let [(from, source, mut writer), (to, sink, mut reader)] = turns.two();
    assert!(turns.driver.splice(from, to, 1_000_000));
    let bytes = pattern(100_000, 3);
    writer.write(&bytes);
    writer.finish();
    let react = |driver: &mut D, completion| react(from, to, (source, sink), driver, completion);
    turns.until_with("the end", react, |turns| turns.told(source).contains(&Told::Ended));
    assert_eq!(spliced(&turns, source) + turns.received(source).len() as u64, 100_000);
    turns.until_got(&mut reader, bytes.len());
    assert!(reader.got == bytes);
    turns.settle();
    assert_eq!(turns.told(source).last(), Some(&Told::Ended));
}

fn a_reset_within_a_splice_is_told<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for between in 0..3 {
        let [(from, source, mut writer), (to, sink, _reader)] = turns.two();
        assert!(turns.driver.splice(from, to, 1_000_000));
        (0..between).for_each(|_| _ = turns.turn());
        writer.write(&pattern(100_000, 3));
        (0..between).for_each(|_| _ = turns.turn());
        writer.reset();
        let react = |driver: &mut D, completion| react(from, to, (source, sink), driver, completion);
        turns.until_with("the fault", react, |turns| turns.told(source).contains(&Told::Failed));
        turns.settle();
        assert_eq!(turns.told(source).last(), Some(&Told::Failed));
        turns.driver.close(from);
        turns.driver.close(to);
    }
}

fn a_reader_that_leaves_a_splice_is_told<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for fills in [false, true] {
        let [(from, source, mut writer), (to, sink, reader)] = turns.two();
        assert!(turns.driver.splice(from, to, 100_000_000));
        let bytes = pattern(8 << 20, 3);
        if fills {
            let mut written = 0;
            while let len @ 1.. = writer.write_some(&bytes[written..]) {
                written += len;
                turns.settle();
            }
        }
        reader.reset();
        let react = |driver: &mut D, completion| react(from, to, (source, sink), driver, completion);
        turns.until_with("the fault", react, |turns| {
            writer.write_some(&bytes[..1_000]);
            turns.told(sink).contains(&Told::Failed)
        });
        turns.driver.close(to);
        turns.driver.close(from);
        turns.settle();
    }
}

/// Bytes gathered for it go first, and not all of them find room. That has to be told: nothing else would ever have the
/// other connection read on.
fn who_is_full_as_a_splice_begins_is_told<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let [(from, ..), (to, sink, mut reader)] = turns.two();
    let bytes = pattern(60_000, 3);
    let mut sent = 0;
    loop {
        let knows = turns.driver.send(to, &[Segment::Bytes(&bytes)]) > 0;
        sent += bytes.len();
        assert!(turns.driver.splice(from, to, 1_000));
        let waits = turns.driver.flush(to) > 0;
        turns.turn_of(Duration::ZERO, |_, _| {});
        assert!(sent < 1 << 30 && (knows || waits == turns.told(sink).contains(&Told::Full)), "{sent}");
        if waits {
            break;
        }
    }
    turns.until_got(&mut reader, sent);
    turns.until_told(sink, Told::Drained);
}

fn a_splice_may_be_paused_and_closed<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let [(from, source, mut writer), (to, _, mut reader)] = turns.two();
    assert!(turns.driver.splice(from, to, 1_000_000));
    turns.driver.pause(from);
    turns.settle();
    writer.write(&pattern(20_000, 3));
    turns.settle();
    assert_eq!(spliced(&turns, source), 0, "moved although paused");
    turns.driver.resume(from);
    turns.until_got(&mut reader, 20_000);
    writer.write(&pattern(20_000, 4));
    turns.driver.close(to);
    turns.settle();
    turns.driver.close(from);
    turns.settle();
    // Pipes and places of both are free again.
    for _ in 0..70 {
        let [(from, ..), (to, ..)] = turns.two();
        assert!(turns.driver.splice(from, to, 10));
        turns.driver.close(from);
        turns.driver.close(to);
    }
}

/// The cut splice's pipe may have bytes in it, and the next one may get that pipe.
fn what_a_cut_splice_leaves_behind_goes_to_nobody_else<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    let [(from, _, mut writer), (to, ..)] = turns.two();
    let bytes = pattern(64 << 20, 3);
    assert!(turns.driver.splice(from, to, bytes.len() as u64));
    let mut written = 0;
    while let len @ 1.. = writer.write_some(&bytes[written..]) {
        written += len;
        turns.settle();
    }
    assert!(written < bytes.len(), "nobody reads");
    turns.driver.abort(to);
    turns.driver.close(from);
    turns.settle();
    let [(from, source, mut writer), (to, sink, mut reader)] = turns.two();
    let bytes = pattern(100_000, 4);
    assert!(turns.driver.splice(from, to, bytes.len() as u64));
    writer.write(&bytes);
    let react = |driver: &mut D, completion| react(from, to, (source, sink), driver, completion);
    turns.until_with("the next one", react, |_| {
        reader.read();
        reader.got.len() >= bytes.len()
    });
    assert!(reader.got == bytes, "what the other left came with it");
}

/// More than one piece was received while the connection was paused, and a splice is asked for at the first of them.
fn what_follows_a_splice_of_held_back_bytes_goes_to_nobody_else<D: Driver>(driver: D) {
    let mut turns = Turns::new(driver);
    for _ in 0..20 {
        let (from, source, mut writer) = turns.connect();
        let (to, sink, mut reader) = turns.accept();
        turns.settle();
        let bytes = pattern(300_000, 3);
        let mut written = writer.write_some(&bytes);
        turns.driver.wait(Duration::from_millis(10)).unwrap();
        // The bytes are here and not told yet.
        turns.driver.pause(from);
        turns.settle();
        turns.driver.resume(from);
        let (mut seen, mut begun) = (0, false);
        let react = |driver: &mut D, completion| {
            if let Completion::Received(tag, lease) = completion
                && tag == source
            {
                seen += u64::from(lease.len);
                if !std::mem::replace(&mut begun, true) {
                    driver.splice(from, to, bytes.len() as u64 - seen);
                }
            }
            react(from, to, (source, sink), driver, completion);
        };
        turns.until_with("the first reply", react, |_| {
            written += writer.write_some(&bytes[written..]);
            reader.read();
            reader.got.len() >= bytes.len()
        });
        assert!(reader.got == bytes);
        turns.settle();
        assert!(turns.driver.is_quiet(from), "it can be used again");
        let before = turns.received(source).len();
        writer.write(b"the next one's");
        turns.until_received(source, before + 14);
        turns.settle();
        reader.read();
        assert!(reader.got.len() == bytes.len(), "it has what is another's");
    }
}

/// A pipe is free again as soon as its connection is closed.
fn so_many_splices_go_at_once_and_no_more<D: Driver>(driver: D) {
    const MOST: usize = 64;
    let mut turns = Turns::new(driver);
    let (to, _, _reader) = turns.connect();
    let lines: Vec<_> = (0..=MOST).map(|_| turns.accept()).collect();
    assert!(lines[..MOST].iter().all(|(from, ..)| turns.driver.splice(*from, to, 10)));
    assert!(!turns.driver.splice(lines[MOST].0, to, 10), "bytes come as before");
    turns.driver.close(lines[0].0);
    turns.settle();
    assert!(turns.driver.splice(lines[MOST].0, to, 10));
}
