//! The meaning of escapes.

/// Returns the byte that a two-byte escape stands for; 0 for none.
#[inline(always)]
pub fn plain_escape(byte: u8) -> u8 {
    PLAIN[byte as usize]
}

/// Returns the UTF-8 of a code point and its length; surrogates get the three bytes that they would have.
#[inline]
pub fn wtf8(point: u32) -> ([u8; 4], usize) {
    let tail = |shift: u32| 0x80 | (point >> shift & 0x3f) as u8;
    match point {
        0..0x80 => ([point as u8, 0, 0, 0], 1),
        0x80..0x800 => ([0xc0 | (point >> 6) as u8, tail(0), 0, 0], 2),
        0x800..0x1_0000 => ([0xe0 | (point >> 12) as u8, tail(6), tail(0), 0], 3),
        _ => ([0xf0 | (point >> 18) as u8, tail(12), tail(6), tail(0)], 4),
    }
}

/// Reads a whole `\uXXXX`, or a pair of them that makes one code point; returns the bytes used and the code point.
#[inline]
pub fn unicode_escape(bytes: &[u8]) -> Option<(usize, u32)> {
    let unit = |escape: &[u8; 6]| {
        let [b'\\', b'u', digits @ ..] = escape else { return None };
        let nibbles = digits.map(|digit| HEX[digit as usize]);
        let all = nibbles.iter().fold(0, |all, nibble| all | nibble);
        (all < 16).then(|| nibbles.iter().fold(0, |value, nibble| value << 4 | *nibble as u32))
    };
    let high = unit(bytes.first_chunk()?)?;
    match high {
        0xd800..0xdc00 => {
            let low = unit(bytes.get(6..)?.first_chunk()?).filter(|low| low & 0xfc00 == 0xdc00)?;
            Some((12, 0x1_0000 + ((high & 0x3ff) << 10) + (low & 0x3ff)))
        }
        _ => Some((6, high)),
    }
}

/// [`plain_escape`] by byte.
pub const PLAIN: [u8; 256] = {
    let mut table = [0; 256];
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table[b'/' as usize] = b'/';
    table[b'b' as usize] = 8;
    table[b'f' as usize] = 12;
    table[b'n' as usize] = b'\n';
    table[b'r' as usize] = b'\r';
    table[b't' as usize] = b'\t';
    table
};

/// Value of a hexadecimal digit, by byte; 16 or more: no digit.
pub const HEX: [u8; 256] = {
    let mut table = [0xff; 256];
    let mut digit = 0;
    while digit < 16 {
        table[b"0123456789abcdef"[digit] as usize] = digit as u8;
        table[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    table
};
