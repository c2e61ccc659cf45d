//! Compares every kernel of this CPU with the portable one, and that one with a few plain lines.

use super::super::Fault;
use super::super::text::{Decoder, Ended, Taker};
use super::escape::{plain_escape, unicode_escape, wtf8};
use super::*;
use crate::limits::STEP_BYTES;

/// A small seeded generator (xorshift), so that a failure replays.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end.max(1)
    }

    fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    /// Makes bytes of these words; the share of words that are runs of plain text differs from one to the next.
    fn bytes(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let (mut bytes, end, plain) = (Vec::new(), self.below(700), self.below(5));
        while bytes.len() < end {
            if self.below(5) < plain {
                let length = self.below(150);
                bytes.extend((0..length).map(|place| b'a' + (place % 26) as u8));
            } else {
                bytes.extend(self.pick(words));
            }
        }
        bytes
    }
}

/// Escapes, whole, cut off and malformed, among bytes of all kinds.
const TEXT: &[&[u8]] = &[
    b"\\n",
    b"\\\"",
    b"\\\\",
    b"\\\\\\\"",
    b"\\/\\b\\f\\r\\t",
    b"\\u00e9",
    b"\\u4f60\\u597d\\uFF0C\\u4e16\\u754c\\u0021\\u4f60\\u597d\\uff0c\\u4e16\\u754c\\u07ff\\u0800\\u007f\\u0080",
    b"\\ud83d\\ude00",
    b"\\ud83d\\ude00\\uD83D\\uDE01",
    b"\\uD83D",
    b"\\ude00",
    b"\\ud83d\\u0041",
    b"\\udbff\\udfff",
    b"\\u0000",
    b" ",
    b"/bfnrtu",
    b"a",
    "é世界😀".as_bytes(),
    b"\xff\x80\xf8",
    b"\x7f",
];
const MALFORMED: &[&[u8]] = &[
    b"\"",
    b"\\x",
    b"\\\x80",
    b"\\U0041",
    b"\\u12g4",
    b"\\u 123",
    b"\\u\xb0\xb1\xb2\xb3",
    b"\x1f",
    b"\n",
    b"\0",
    b"\\",
];
const STRUCTURE: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\"",
    b"\"x\"",
    b"\\",
    b"\\\\",
    b"\\\"",
    b",",
    b":",
    b" ",
    b"\"]}{[\"",
    b"[[[[[[[[",
    b"]]]]",
    b"\x1b\x1d\x3b\x5b",
    b"\xfb\xfd\xdb\xdd",
    b"(",
    b")",
    b"|",
];

/// Returns what `bytes` decode to, if all of them can be decoded.
fn decoded(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while let Some(&byte) = bytes.first() {
        let (used, point) = match (byte, bytes.get(1)) {
            (b'\\', Some(b'u')) => unicode_escape(bytes)?,
            (b'\\', Some(&letter)) if plain_escape(letter) != 0 => (2, plain_escape(letter) as u32),
            (b'\\' | b'"' | 0..0x20, _) => return None,
            _ => {
                text.push(byte);
                bytes = &bytes[1..];
                continue;
            }
        };
        let (utf8, length) = wtf8(point);
        text.extend(&utf8[..length]);
        bytes = &bytes[used..];
    }
    Some(text)
}

/// Checks one result: the used bytes, which end inside no escape and no pair, decode to the written ones. Returns how
/// many bytes were used.
fn check_unescape(kernel: &Kernel, bytes: &[u8], room: usize) -> usize {
    let mut out = vec![0xee; room];
    let (used, written) = kernel.unescape(bytes, &mut out);
    let expected = decoded(&bytes[..used]);
    assert_eq!(Some(&out[..written]), expected.as_deref(), "{}: {used} of {}", kernel.name, bytes.escape_ascii());
    used
}

/// No result depends on the kernel, only the cost of a scan.
#[test]
fn the_fastest_kernel_is_the_one_that_scans() {
    let names: Vec<&str> = Kernel::available().map(Kernel::name).collect();
    assert_eq!((names.first(), names.last()), (Some(&Kernel::detected().name()), Some(&Kernel::portable().name())));
    #[cfg(target_arch = "x86_64")]
    assert_eq!(names.len() > 1, is_x86_feature_detected!("avx2"), "{names:?}");
}

#[test]
fn a_run_ends_at_the_first_of_every_byte_that_ends_one() {
    for kernel in Kernel::available() {
        for length in 0..200 {
            for byte in 0..=255u8 {
                let mut bytes = vec![b'a'; length];
                assert_eq!(kernel.text_run(&bytes), length, "{}", kernel.name);
                if length > 0 {
                    bytes[(byte as usize * 31 + length) % length] = byte;
                }
                bytes.extend([0xff, b'"', b'!']);
                let naive = bytes.iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20).unwrap();
                assert_eq!(kernel.text_run(&bytes), naive, "{}: {byte:#x} in {length}", kernel.name);
                assert_eq!((kernel.text_run)(&bytes), naive, "{}: {byte:#x} in {length}", kernel.name);
            }
        }
    }
}

#[test]
fn every_byte_is_decoded_or_stopped_at_in_every_place() {
    for kernel in Kernel::available() {
        for place in 0..130 {
            for byte in 0..=255u8 {
                for escaped in [false, true] {
                    let mut bytes = vec![b'-'; 200];
                    if escaped {
                        bytes[place] = b'\\';
                    }
                    bytes[place + escaped as usize] = byte;
                    let used = check_unescape(kernel, &bytes, 256);
                    let ends = if escaped { plain_escape(byte) == 0 } else { matches!(byte, b'"' | b'\\' | 0..0x20) };
                    if ends {
                        assert_eq!(used, place, "{}: {byte:#x} escaped {escaped}", kernel.name);
                    } else {
                        assert!(used > 190, "{}: {used} for {byte:#x}, escaped {escaped}", kernel.name);
                    }
                }
            }
        }
    }
}

#[test]
fn unicode_escapes_are_decoded_in_every_place() {
    for kernel in Kernel::available() {
        for unit in
            (0..=0xffff_u32).step_by(13).chain([0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xd800, 0xdbff, 0xdc00, 0xdfff])
        {
            let lead = unit as usize % 70;
            let mut bytes = vec![b'-'; lead];
            bytes.extend(format!("\\u{unit:04x}\\u{unit:04X}\\n\\u4F60x\\u{unit:04x}").bytes());
            bytes.extend([b'-'; 130]);
            let used = check_unescape(kernel, &bytes, 512);
            if !matches!(unit, 0xd800..0xdc00) {
                assert!(used > bytes.len() - 10, "{}: {unit:x} used {used}", kernel.name);
            }
        }
    }
}

#[test]
fn text_is_decoded_as_far_as_it_is_used() {
    let mut random = Random(0x7e87);
    for round in 0..20_000 {
        let malformed = [TEXT, MALFORMED].concat();
        let bytes = random.bytes(if round % 2 == 0 { TEXT } else { &malformed });
        let room = random.below(1_100);
        for kernel in Kernel::available() {
            check_unescape(kernel, &bytes, room);
        }
    }
}

/// Takes decoded bytes with a room of its own, as prompts do.
struct Roomy {
    text: Vec<u8>,
    room: [u8; 200],
    used: usize,
}

impl Roomy {
    fn flush(&mut self) {
        self.text.extend(&self.room[..std::mem::take(&mut self.used)]);
    }
}

impl Taker for Roomy {
    fn take(&mut self, run: &[u8]) -> usize {
        self.flush();
        self.text.extend(run);
        run.len()
    }

    fn room(&mut self) -> &mut [u8] {
        if self.used > 100 {
            self.flush();
        }
        &mut self.room[self.used..]
    }

    fn written(&mut self, length: usize) {
        self.used += length;
    }
}

fn decode(kernel: &Kernel, pieces: &[&[u8]]) -> (Vec<u8>, usize, Ended) {
    let (mut decoder, mut at) = (Decoder::default(), 0);
    let mut roomy = Roomy { text: Vec::new(), room: [0; 200], used: 0 };
    for piece in pieces {
        let (used, ended) = decoder.decode(kernel, piece, &mut roomy);
        at += used;
        if ended != Ended::Piece {
            roomy.flush();
            return (roomy.text, at, ended);
        }
        assert_eq!(used, piece.len());
    }
    roomy.flush();
    (roomy.text, at, Ended::Piece)
}

#[test]
fn strings_decode_alike_on_every_kernel_at_every_cut() {
    let mut random = Random(0xc075);
    let malformed = [TEXT, MALFORMED].concat();
    let mut faults = 0;
    for round in 0..3_000 {
        let mut bytes = random.bytes(if round % 3 == 0 { &malformed } else { TEXT });
        bytes.push(b'"');
        let expected = decode(Kernel::portable(), &[&bytes]);
        faults += matches!(expected.2, Ended::Fault(Fault::Escape | Fault::Control)) as u32;
        for kernel in Kernel::available() {
            assert_eq!(decode(kernel, &[&bytes]), expected, "{}: {}", kernel.name, bytes.escape_ascii());
            for _ in 0..3 {
                let (left, right) = bytes.split_at(random.below(bytes.len()));
                let got = decode(kernel, &[left, right]);
                assert_eq!(got, expected, "{}: {} cut {}", kernel.name, bytes.escape_ascii(), left.len());
            }
        }
    }
    assert!(faults > 100, "{faults}");
}

#[test]
fn token_ids_stop_at_what_is_none() {
    let cases: [(&[u8], &[u32], usize); 7] = [
        (b"1, 23,4294967295,5", &[1, 23, 4_294_967_295], 17),
        (b"4294967296,", &[], 0),
        (b"1,12345678901,", &[1], 2),
        (b"1,-2,", &[1], 2),
        (b"1,2]", &[1], 2),
        (b",", &[], 0),
        (b"  7,", &[7], 4),
    ];
    for kernel in Kernel::available() {
        for (bytes, ids, used) in cases {
            let mut out = [0; 40];
            assert_eq!(kernel.token_ids(bytes, &mut out), (used, ids.len()), "{}", bytes.escape_ascii());
            let written: Vec<u32> =
                out.as_chunks().0.iter().take(ids.len()).map(|id| u32::from_le_bytes(*id)).collect();
            assert_eq!(written, ids);
        }
        assert_eq!(kernel.token_ids(b"1,2,3,", &mut [0; 11]), (4, 2));
    }
}

#[test]
fn token_ids_read_alike_on_every_kernel() {
    let mut random = Random(0x1d5);
    let mut strange = 0;
    for round in 0..20_000 {
        let (mut bytes, digits, odd) = (Vec::new(), 1 + random.below(10), random.below(60));
        for _ in 0..random.below(120) {
            let length = 1 + random.below(digits) as u32;
            let id = random.below(10_usize.pow(length));
            bytes.extend(id.to_string().bytes());
            let spaced = round % 2 == 0 || random.below(2) == 0;
            bytes.extend(if spaced { &b", "[..] } else { b"," });
            if random.below(400) < odd {
                strange += 1;
                bytes.extend(random.pick(&[
                    &b"  "[..],
                    b"0007,",
                    b",",
                    b"]",
                    b"-1,",
                    b"4294967295,",
                    b"4294967296,",
                    b"99999999999,",
                    b"1 ,",
                    b"1 2,",
                    b"1.0,",
                    b"\xb1,",
                    b"/:,",
                    b"null,",
                    b"\n1,",
                    b"000000012345,",
                    b"12345678,123456789,",
                ]));
            }
        }
        let room = if random.below(3) == 0 { random.below(500) } else { 1_024 };
        let (mut expected, mut out) = (vec![0; room], vec![0; room]);
        let (used, ids) = Kernel::portable().token_ids(&bytes, &mut expected);
        for kernel in Kernel::available() {
            assert_eq!(kernel.token_ids(&bytes, &mut out), (used, ids), "{}: {}", kernel.name, bytes.escape_ascii());
            assert_eq!(out[..4 * ids], expected[..4 * ids], "{}: {}", kernel.name, bytes.escape_ascii());
        }
    }
    assert!(strange > 1_000, "{strange}");
}

#[test]
fn skip_ends_where_brackets_balance_at_any_cut() {
    let value = br#"{"a":"]}\"{\\","b":[[{}],"\\\\"]}rest"#;
    for kernel in Kernel::available() {
        let whole = kernel.skip(&mut Skip { depth: 1, ..Skip::default() }, &value[1..]);
        assert_eq!(whole, Some(value.len() - 5));
        for cut in 1..value.len() - 4 {
            let mut state = Skip { depth: 1, ..Skip::default() };
            assert_eq!(kernel.skip(&mut state, &value[1..cut]), None, "cut {cut}");
            assert_eq!(kernel.skip(&mut state, &value[cut..]), Some(value.len() - 4 - cut), "cut {cut}");
        }
    }
}

#[test]
fn anything_is_skipped_alike_on_every_kernel() {
    let mut random = Random(0x5217);
    let (mut ends, mut cuts) = (0, 0);
    for _ in 0..30_000 {
        let bytes = random.bytes(STRUCTURE);
        let in_string = random.below(2) == 0;
        let start = Skip {
            depth: [0, 1, 2, 3, 40, 100_000][random.below(6)].max(!in_string as u64),
            in_string,
            escaped: in_string && random.below(3) == 0,
        };
        let mut expected = start;
        let end = Kernel::portable().skip(&mut expected, &bytes);
        (ends, cuts) = (ends + end.is_some() as u32, cuts + end.is_none() as u32);
        for kernel in Kernel::available() {
            let mut state = start;
            assert_eq!(kernel.skip(&mut state, &bytes), end, "{}: {start:?} {}", kernel.name, bytes.escape_ascii());
            assert_eq!(state, expected, "{}: {start:?} {}", kernel.name, bytes.escape_ascii());
        }
    }
    assert!(ends > 5_000 && cuts > 5_000, "{ends} {cuts}");
}

/// Whatever the bytes, however they are cut, and whether steps or blocks are asked for.
#[test]
fn every_kernel_hashes_alike() {
    let mut random = Random(0x1a2b);
    for kernel in Kernel::available() {
        for _ in 0..2_000 {
            let bytes: Vec<u8> = (0..STEP_BYTES * random.below(40)).map(|_| random.below(256) as u8).collect();
            let (steps, room) = (random.below(2) == 1, random.below(50));
            // Blocks are taken from a block's beginning on, or from within one.
            let cut = STEP_BYTES * random.below(bytes.len() / STEP_BYTES + 1);
            let [one, other] = [kernel, Kernel::portable()].map(|kernel| {
                let (mut lanes, mut slots) = (Lanes::START, vec![7; room]);
                kernel.hash(&mut lanes, &bytes[..cut], steps, &mut []);
                kernel.hash(&mut lanes, &bytes[cut..], steps, &mut slots);
                (lanes, slots)
            });
            assert_eq!(one, other, "{}: {} bytes cut at {cut}, {steps}", kernel.name, bytes.len());
        }
    }
}
