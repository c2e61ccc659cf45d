//! What instruction sets without special instructions do word by word, eight bytes at a time.

use super::BLOCK;
use super::wide::IDS;

/// See [`super::wide::Isa::numbers`].
#[inline(always)]
pub fn numbers(bytes: &[u8; BLOCK], mut starts: u64, mut commas: u64, out: &mut [u8; 4 * IDS]) -> (usize, usize) {
    let (mut used, mut read) = (0, 0);
    for slot in out.as_chunks_mut::<4>().0 {
        if commas == 0 {
            break;
        }
        let (start, end) = (starts.trailing_zeros() as usize, commas.trailing_zeros() as usize);
        let Some(word) = bytes.get(start..).and_then(|rest| rest.first_chunk::<8>()) else { break };
        if end - start > 8 {
            break;
        }
        // The last digit is in the highest byte, zeros are below the first digit.
        let digits = (u64::from_le_bytes(*word) & 0x0f0f_0f0f_0f0f_0f0f) << (8 * (8 - (end - start)));
        let twos = (digits.wrapping_mul(10) + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
        let fours = (twos.wrapping_mul(100) + (twos >> 16)) & 0x0000_ffff_0000_ffff;
        let eights = fours.wrapping_mul(10_000).wrapping_add(fours >> 32) as u32;
        *slot = eights.to_le_bytes();
        (used, read) = (end + 1, read + 1);
        (starts, commas) = (starts & (starts - 1), commas & (commas - 1));
    }
    (used, read)
}

/// The letters of two-byte escapes that stand for another byte, by the middle bits of the letter, and the bytes that
/// they stand for. Places of no letter hold a byte that is never looked for there.
pub const LETTERS: [u8; 16] = by_middle(*b"bfnrt", 0xff);
pub const STAND_FOR: [u8; 16] = by_middle([8, 12, b'\n', b'\r', b'\t'], 0);

const fn by_middle(values: [u8; 5], first: u8) -> [u8; 16] {
    let letters = *b"bfnrt";
    let mut table = [0; 16];
    table[0] = first;
    let mut place = 0;
    while place < letters.len() {
        table[(letters[place] >> 1 & 15) as usize] = values[place];
        place += 1;
    }
    table
}

/// Returns for each mask the places of its bits, lowest first, counted from `first`.
pub const fn kept(first: u8) -> [[u8; 8]; 256] {
    let mut table = [[first; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut bit, mut place) = (0, 0);
        while bit < 8 {
            if mask >> bit & 1 == 1 {
                table[mask][place] = first + bit as u8;
                place += 1;
            }
            bit += 1;
        }
        mask += 1;
    }
    table
}
