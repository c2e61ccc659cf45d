//! Over JSON from inside an object that tells of usage to the end of what that stands in.

use memchr::memchr2;

use super::Usage;
use crate::limits::TOKENS_MAX;

/// See the module.
#[derive(Default)]
pub(super) struct Walk<'a> {
    rest: &'a [u8],
    /// 1: among the members of usage; 0: among those of what it stands in, behind it; -1: of what that stands in.
    depth: i32,
    /// Usage has ended.
    behind: bool,
    /// The last string, until a comma: a key where a value follows.
    key: &'a [u8],
    in_details: bool,
    in_meta_info: bool,
    in_turns: bool,
    /// Several prompts were computed for one request, by turns as built-in tools were called, or it is told of one of
    /// several, as SGLang's number of that says behind it.
    of_several: bool,
    /// SGLang gave it up: of what it refuses it counts one token.
    given_up: bool,
    /// What it stands in goes on from an earlier response, as SGLang says behind it.
    goes_on: bool,
    /// It stands in the event that ends a response: by its type or, where that came before, by its number alone.
    completed: Option<bool>,
    told: Told,
}

/// Numbers by the names that they have.
#[derive(Default)]
pub(super) struct Told {
    pub(super) prompt: Option<u32>,
    completion: Option<u32>,
    cached: Option<u32>,
    /// Of the prompt, some were an image's or the like.
    media: bool,
    input: Option<u32>,
    pub(super) output: Option<u32>,
    cache_read: Option<u32>,
    cache_creation: Option<u32>,
}

impl Told {
    pub(super) fn usage(&self) -> Option<Usage> {
        let beside = self.cache_read.unwrap_or(0).saturating_add(self.cache_creation.unwrap_or(0));
        let input = self.input.map(|input| input.saturating_add(beside)).filter(|input| *input <= TOKENS_MAX);
        // Behind an error that had no answer some say 0.
        let prompt = self.prompt.or(input).filter(|prompt| *prompt > 0)?;
        // Beside these SGLang writes a zero where it is not to tell.
        let cached = self.cached.filter(|cached| *cached > 0 || !self.media);
        let cached = cached.or(self.cache_read).map(|cached| cached.min(prompt));
        let by_anthropics_names = self.prompt.is_none() && self.cache_read.is_some();
        Some(Usage {
            prompt: Some(prompt),
            cached,
            completion: self.completion.or(self.output),
            aborted: false,
            by_anthropics_names,
            opens: false,
        })
    }
}

impl<'a> Walk<'a> {
    pub(super) fn new(rest: &'a [u8], in_meta_info: bool, deeper: bool) -> Walk<'a> {
        Walk { rest, depth: 1, in_meta_info, completed: deeper.then_some(true), ..Walk::default() }
    }

    /// `None`: it stands deeper, or the text does not end with what it stands in.
    pub(super) fn told(mut self) -> Option<Told> {
        self.leave(0)?;
        if !self.rest.trim_ascii().is_empty() {
            self.leave(-1)?;
            if self.completed != Some(true) || !self.rest.trim_ascii().is_empty() {
                return None;
            }
        }
        (!self.of_several && !self.goes_on && !self.given_up).then_some(self.told)
    }

    /// Goes on to behind the end of what stands at this depth.
    fn leave(&mut self, depth: i32) -> Option<()> {
        while self.depth >= depth {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'"' => self.string()?,
                b'0'..=b'9' => self.number(byte),
                b'{' | b'[' => self.open(byte),
                b'}' | b']' => {
                    self.depth -= 1;
                    self.behind |= self.depth == 0;
                    self.in_details &= self.depth > 1;
                    self.in_turns = false;
                    self.key = b"";
                }
                b',' => {
                    self.of_several |= self.in_turns;
                    self.key = b"";
                }
                b'-' => self.key = b"",
                _ => {}
            }
        }
        Some(())
    }

    fn open(&mut self, byte: u8) {
        self.depth += 1;
        let details = byte == b'{' && matches!(self.key, b"prompt_tokens_details" | b"input_tokens_details");
        self.in_details |= self.depth == 2 && !self.behind && details;
        self.in_turns = self.depth == 3 && self.in_details && self.key == b"input_tokens_per_turn";
        self.key = b"";
    }

    fn string(&mut self) -> Option<()> {
        let mut end = 0;
        loop {
            end += memchr2(b'"', b'\\', self.rest.get(end..)?)?;
            if self.rest.get(end) == Some(&b'"') {
                break;
            }
            end += 2;
        }
        let before = self.key;
        (self.key, self.rest) = (self.rest.get(..end)?, self.rest.get(end + 1..)?);
        self.goes_on |= self.depth == 0 && before == b"previous_response_id";
        self.given_up |= self.in_meta_info && self.depth == 2 && before == b"type" && self.key == b"abort";
        if self.depth == -1 && before == b"type" {
            self.completed = Some(matches!(self.key, b"response.completed" | b"response.incomplete"));
        }
        Some(())
    }

    fn number(&mut self, first: u8) {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (more, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let add = |sum: u32, digit: &u8| sum.saturating_mul(10).saturating_add(u32::from(digit - b'0'));
        let number = more.iter().fold(u32::from(first - b'0'), add);
        let whole = matches!(rest.first(), Some(b',' | b'}' | b' ' | b'\n' | b'\t' | b'\r'));
        let told = (whole && number <= TOKENS_MAX).then_some(number);
        match (self.depth, self.key) {
            // Before an answer has ended its usage is null.
            (-1, b"sequence_number") => self.completed = self.completed.or(Some(true)),
            (0, b"index") => self.of_several |= self.in_meta_info,
            _ if self.behind => {}
            (1, b"prompt_tokens") => self.told.prompt = told,
            (1, b"completion_tokens") => self.told.completion = told,
            (1, b"input_tokens") => self.told.input = told,
            (1, b"output_tokens") => self.told.output = told,
            (1, b"cache_read_input_tokens") => self.told.cache_read = told,
            (1, b"cache_creation_input_tokens") => self.told.cache_creation = told,
            (1, b"cached_tokens") if self.in_meta_info => self.told.cached = told,
            (2, b"cached_tokens") if self.in_details => self.told.cached = told,
            (2, b"image_tokens" | b"audio_tokens" | b"video_tokens") if self.in_details => {
                self.told.media |= number > 0;
            }
            _ => {}
        }
        self.key = b"";
    }
}
