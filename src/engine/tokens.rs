//! A tokenizer that costs nothing and keeps prefixes: four bytes of text are one token.
//!
//! A token is the little-endian number of its (up to four) bytes, so a token and its text are the
//! same thing. Text is cut from the start of each message, hence a boundary never depends on what
//! follows, and a reply that comes back as history has the tokens it was generated with: the two
//! properties that prefix caching needs. Real tokenizers average 3.5 to 4.5 bytes of English a token.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of text in one token.
pub const TOKEN_BYTES: usize = 4;

/// Tokens that one image part costs (a 336-pixel CLIP tile, as LLaVA counts it).
pub const IMAGE_TOKENS: usize = 576;

/// Ends a message. It is above any token of text, since its first byte is not UTF-8.
pub const END_OF_MESSAGE: u32 = 0xffff_ff00;

/// Opens a message of that role; unknown roles share the last marker.
pub fn role_marker(role: &str) -> u32 {
    match role {
        "system" | "developer" => 0xffff_ff01,
        "user" => 0xffff_ff02,
        "assistant" => 0xffff_ff03,
        "tool" | "function" => 0xffff_ff04,
        _ => 0xffff_ff05,
    }
}

/// Appends the tokens of `text`.
pub fn push_text(out: &mut Vec<u32>, text: &str) {
    let bytes = text.as_bytes();
    out.reserve(bytes.len().div_ceil(TOKEN_BYTES));
    for piece in bytes.chunks(TOKEN_BYTES) {
        let mut four = [0; TOKEN_BYTES];
        for (to, from) in four.iter_mut().zip(piece) {
            *to = *from;
        }
        out.push(u32::from_le_bytes(four));
    }
}

/// Appends the tokens of an image: always the same number, and equal ones only for equal addresses.
pub fn push_image(out: &mut Vec<u32>, address: &str) {
    let token = xxh3_64(address.as_bytes()) as u32;
    out.extend(std::iter::repeat_n(token, IMAGE_TOKENS));
}

/// Returns the text of tokens; those that are no text (markers, foreign ids) become U+FFFD.
pub fn text_of(tokens: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(tokens.len() * TOKEN_BYTES);
    for token in tokens {
        let four = token.to_le_bytes();
        let len = four.iter().position(|byte| *byte == 0).unwrap_or(TOKEN_BYTES);
        bytes.extend(four.iter().take(len));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The token that a sequence generates at `position`: a space and three letters, so that it needs
/// no escape in JSON. The same seed gives the same reply, as a model at temperature 0 does.
pub fn generated(seed: u64, position: u32) -> u32 {
    let mut bits = xxh3_64_with_seed(&position.to_le_bytes(), seed);
    let mut letter = || {
        let letter = b'a' + (bits % 26) as u8;
        bits /= 26;
        letter
    };
    u32::from_le_bytes([b' ', letter(), letter(), letter()])
}

/// Hashes one more block after `parent`; `parent` of the first block is the cache salt's hash.
pub fn chain(parent: u64, block: &[u32]) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::with_seed(parent);
    for token in block {
        hash.update(&token.to_le_bytes());
    }
    hash.digest()
}

/// The seed of a reply: a hash of its prompt, in blocks and the tokens after them, and of the number of the choice.
pub fn reply_seed(prompt: &[u32], salt: u64, choice: u32, block_size: usize) -> u64 {
    let blocks = prompt.chunks_exact(block_size.max(1));
    let tail = blocks.remainder();
    let parent = blocks.fold(salt, chain);
    chain(parent.wrapping_add(u64::from(choice)), tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_text_keeps_the_tokens_of_its_prefix() {
        let (mut short, mut long) = (Vec::new(), Vec::new());
        push_text(&mut short, "You are a terse assistant.");
        push_text(&mut long, "You are a terse assistant. And polite.");
        let full = "You are a terse assistant.".len() / TOKEN_BYTES;
        assert_eq!(short.get(..full), long.get(..full));
    }

    #[test]
    fn a_reply_sent_back_has_the_tokens_it_was_generated_with() {
        let reply: Vec<u32> = (0..50).map(|i| generated(7, i)).collect();
        let mut again = Vec::new();
        push_text(&mut again, &text_of(&reply));
        assert_eq!(reply, again);
    }

    #[test]
    fn chains_differ_by_salt_and_by_parent() {
        let block = [1, 2, 3, 4];
        assert_ne!(chain(0, &block), chain(1, &block));
        assert_eq!(chain(5, &block), chain(5, &block));
    }
}
