//! Finds the `model` of an upload: `multipart/form-data` (RFC 7578, RFC 2046 section 5.1), whose fields are before or
//! after the file. Only that one part is kept, if it is no longer than any other name.
//!
//! A delimiter begins with the only CR in it, so that bytes that turn out to be none are content up to where they
//! differ: no byte is looked at twice.

use super::machine::State;
use super::words::Word;
use super::{Api, Needs, Plan, Scan};

/// Longest boundary, by RFC 2046.
const BOUNDARY_BYTES_MAX: usize = 70;
/// CRLF and two hyphens.
const BEFORE_BOUNDARY: &[u8; 4] = b"\r\n--";
const DELIMITER_BYTES_MAX: usize = BEFORE_BOUNDARY.len() + BOUNDARY_BYTES_MAX;

/// The state of reading a form.
pub(super) struct Multipart {
    delimiter: [u8; DELIMITER_BYTES_MAX],
    length: usize,
    /// How many bytes of the delimiter are before the next byte.
    matched: usize,
    place: Place,
    /// Whether the current part is the field `model`.
    is_model: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The content of a part, or the text before the first one.
    Content,
    /// After a delimiter, of which the next byte has to prove that it is one.
    Delimited,
    /// After a delimiter and a hyphen: another hyphen ends the form.
    Closing,
    /// After a delimiter, before the end of its line.
    Padding,
    /// A line of a part's head.
    Head,
}

/// Returns the boundary that a `content-type` names, if it is `multipart/form-data`.
pub fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let end = memchr::memchr(b';', content_type).unwrap_or(content_type.len());
    if !content_type.get(..end)?.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
        return None;
    }
    let mut named = parameters(content_type).filter(|(name, _)| name.eq_ignore_ascii_case(b"boundary"));
    named.next().map(|(_, value)| value).filter(|value| matches!(value.len(), 1..=BOUNDARY_BYTES_MAX))
}

/// Returns the parameters after a value, `; name=value; name="value"`. Escapes stay as they are: no name that is looked
/// for has one.
fn parameters(value: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = behind(value, b';');
    std::iter::from_fn(move || {
        rest = rest.trim_ascii_start();
        let stop = rest.iter().position(|byte| matches!(byte, b'=' | b';')).unwrap_or(rest.len());
        let name = rest.get(..stop)?.trim_ascii_end();
        if rest.is_empty() {
            return None;
        }
        let is_given = rest.get(stop) == Some(&b'=');
        rest = rest.get(stop + usize::from(is_given)..).unwrap_or_default();
        let value = match rest.strip_prefix(b"\"").filter(|_| is_given) {
            Some(quoted) => {
                let end = quote(quoted);
                rest = quoted.get(end..).unwrap_or_default();
                quoted.get(..end).unwrap_or_default()
            }
            None if is_given => rest.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii(),
            None => &[],
        };
        rest = behind(rest, b';');
        Some((name, value))
    })
}

/// Returns the bytes after the first such byte.
fn behind(bytes: &[u8], stop: u8) -> &[u8] {
    memchr::memchr(stop, bytes).and_then(|at| bytes.get(at + 1..)).unwrap_or_default()
}

/// Returns where a string ends whose first quote was read.
fn quote(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        match bytes.get(at) {
            None => return bytes.len(),
            Some(b'"') => return at,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
        }
    }
}

/// Whether this line of a part's head names the field `model`; a file of that name does not count.
fn names_model(line: &[u8]) -> bool {
    let colon = memchr::memchr(b':', line).unwrap_or(line.len());
    let (field, value) = line.split_at(colon);
    let mut named = false;
    for (name, value) in parameters(value).filter(|_| field.eq_ignore_ascii_case(b"content-disposition")) {
        if name.eq_ignore_ascii_case(b"filename") || name.eq_ignore_ascii_case(b"filename*") {
            return false;
        }
        named |= name.eq_ignore_ascii_case(b"name") && value == b"model";
    }
    named
}

impl Multipart {
    pub fn new() -> Self {
        Multipart { delimiter: [0; DELIMITER_BYTES_MAX], length: 0, matched: 0, place: Place::Content, is_model: false }
    }

    /// Begins a form whose parts are separated by this boundary, which [`boundary`] found.
    fn begin(&mut self, boundary: &[u8]) {
        let delimiter = BEFORE_BOUNDARY.iter().chain(boundary);
        self.length = 0;
        for (to, from) in self.delimiter.iter_mut().zip(delimiter) {
            *to = *from;
            self.length += 1;
        }
        // The first delimiter has no line before it.
        (self.matched, self.place, self.is_model) = (2, Place::Content, false);
    }

    /// Takes bytes that looked like a delimiter as content.
    fn was_content(&mut self, word: &mut Word) {
        if self.is_model {
            word.put(self.delimiter.get(..self.matched).unwrap_or_default());
        }
        (self.matched, self.place) = (0, Place::Content);
    }

    /// Uses some of these bytes, which are not empty. A step that uses none changes the place.
    fn content(&mut self, bytes: &[u8], word: &mut Word) -> usize {
        if self.matched == 0 {
            let run = memchr::memchr(b'\r', bytes).unwrap_or(bytes.len());
            if run > 0 {
                let content = bytes.get(..run).filter(|_| self.is_model);
                word.put(content.unwrap_or_default());
                return run;
            }
        }
        if self.delimiter.get(self.matched) != bytes.first() {
            self.was_content(word);
            return 0;
        }
        self.matched += 1;
        if self.matched == self.length {
            self.place = Place::Delimited;
        }
        1
    }

    fn head(&mut self, bytes: &[u8], word: &mut Word) -> usize {
        let run = memchr::memchr(b'\n', bytes);
        word.put(bytes.get(..run.unwrap_or(bytes.len())).unwrap_or_default());
        let Some(run) = run else { return bytes.len() };
        // A line that is too long to be kept does not name the field `model`.
        let line = word.get().map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        if line.is_some_and(<[u8]>::is_empty) {
            (self.matched, self.place) = (0, Place::Content);
        }
        self.is_model |= line.is_some_and(names_model);
        word.clear();
        run + 1
    }
}

impl Scan {
    /// Starts over with a form, of which only the model is read.
    pub fn begin_form(&mut self, plan: &Plan, boundary: &[u8]) {
        self.begin(Api::Other, plan, Needs::MODEL);
        self.form.begin(boundary);
        self.state = State::Form;
    }

    /// Whether a form is being read.
    pub fn is_form(&self) -> bool {
        self.state == State::Form
    }

    pub(super) fn form(&mut self, bytes: &[u8]) -> usize {
        let form = &mut self.form;
        let byte = bytes.first().copied().unwrap_or_default();
        match (form.place, byte) {
            (Place::Content, _) => return form.content(bytes, &mut self.word),
            (Place::Head, _) => return form.head(bytes, &mut self.word),
            (Place::Delimited, b'\r' | b' ' | b'\t') if form.is_model => self.form_over(),
            (Place::Delimited, b'-') => form.place = Place::Closing,
            (Place::Delimited | Place::Padding, b'\r' | b' ' | b'\t') => form.place = Place::Padding,
            (Place::Padding, b'\n') => {
                (form.place, form.is_model) = (Place::Head, false);
                self.word.clear();
            }
            (Place::Closing, b'-') => self.form_over(),
            (place, _) => {
                form.was_content(&mut self.word);
                if place == Place::Closing && form.is_model {
                    self.word.put(b"-");
                }
                return 0;
            }
        }
        1
    }

    /// Ends the scan: the model is known, or the form is over.
    fn form_over(&mut self) {
        if self.form.is_model {
            self.facts.model.set(self.word.get());
            self.facts.stated.model_is_string = true;
        }
        self.state = State::Enough;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fault, Progress};
    use super::*;

    const MODEL: &str = "content-disposition: form-data; name=\"model\"";
    const FILE: &str = "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav";

    fn form(parts: &[(&str, &str)]) -> String {
        let parts = parts.iter().map(|(head, content)| format!("--x-1\r\n{head}\r\n\r\n{content}\r\n"));
        parts.collect::<String>() + "--x-1--\r\n"
    }

    /// Reads a form's bytes in these pieces.
    fn read<'a>(boundary: &[u8], pieces: impl IntoIterator<Item = &'a [u8]>) -> (Progress, Option<String>, bool) {
        let mut scan = Scan::new();
        scan.begin_form(&Plan::default(), boundary);
        let mut progress = Progress::More;
        for piece in pieces {
            progress = scan.push(piece);
        }
        if progress == Progress::More {
            progress = scan.finish();
        }
        let model = scan.facts().model().map(|model| String::from_utf8_lossy(model).into_owned());
        (progress, model, scan.facts().model_over())
    }

    #[test]
    fn content_types_name_the_boundary() {
        for (value, expected) in [
            ("multipart/form-data; boundary=abc", Some("abc")),
            ("Multipart/Form-Data;charset=utf-8;  Boundary=\"a b;c\" ; x=y", Some("a b;c")),
            ("multipart/form-data; x=\"; boundary=no\"; boundary=-'()+_,./:=?", Some("-'()+_,./:=?")),
            ("multipart/form-data; boundary=\"open", Some("open")),
            ("multipart/form-data; boundary; boundary=b", None),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=\"\"", None),
            ("multipart/form-data", None),
            ("multipart/form-data;", None),
            ("multipart/mixed; boundary=abc", None),
            ("application/json", None),
            ("", None),
        ] {
            assert_eq!(boundary(value.as_bytes()), expected.map(str::as_bytes), "{value}");
        }
        let long = |bytes: usize| format!("multipart/form-data; boundary={}", "b".repeat(bytes));
        assert!(boundary(long(70).as_bytes()).is_some() && boundary(long(71).as_bytes()).is_none());
    }

    /// In any pieces, and without a byte beyond the delimiter after it.
    #[test]
    fn the_model_is_found_at_every_cut() {
        let audio = "RIFF\r\n-\r\n--\r\n--x\r\n--x-\r\n--x-1y\r\r\n\r\n--x-1-z\r\nname=\"model\"\r\n\r\nwrong";
        let language = ("content-disposition: form-data; name=language", "en");
        let model = (MODEL, "org/whisper");
        for parts in [&[language, model, (FILE, audio)][..], &[(FILE, audio), model, language], &[(FILE, audio), model]]
        {
            let form = form(parts);
            let bytes = form.as_bytes();
            let (whole, found, _) = read(b"x-1", [bytes]);
            let Progress::Enough { at } = whole else { panic!("{whole:?}") };
            assert_eq!(found.as_deref(), Some("org/whisper"));
            assert_eq!(read(b"x-1", bytes.chunks(1)), (whole, found.clone(), false));
            for cut in 0..=bytes.len() {
                let (one, other) = bytes.split_at(cut);
                assert_eq!(read(b"x-1", [one, other]), (whole, found.clone(), false), "{cut}");
            }
            let short = &bytes[..at as usize - 1];
            assert_eq!(read(b"x-1", [short]), (Progress::Failed(Fault::Truncated), None, false));
            assert_eq!(read(b"x-1", [&bytes[..at as usize]]).1, found);
        }
    }

    /// Whatever the bytes, any pieces give the same result.
    #[test]
    fn any_bytes_are_read_alike_however_they_are_cut() {
        let open = format!("\r\n--x-1\r\n{MODEL}\r\n\r\n");
        let pieces = ["\r", "\n", "-", "--", "\r\n", "--x-1", "\r\n--x-1", MODEL, &open, "m", ";", "=\"", "\\"];
        let mut state = 1u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut found = 0;
        for _ in 0..5_000 {
            let length = draw(24);
            let text: String = (0..length).map(|_| pieces[draw(pieces.len())]).collect();
            let bytes = text.as_bytes();
            let whole = read(b"x-1", [bytes]);
            let (one, other) = bytes.split_at(draw(bytes.len() + 1));
            assert_eq!(read(b"x-1", bytes.chunks(1)), whole, "{text:?}");
            assert_eq!(read(b"x-1", [one, other]), whole, "{text:?}");
            let values: Vec<&[u8]> = bytes.split(|byte| matches!(byte, b';' | b'=')).collect();
            assert!(parameters(bytes).count() <= values.len());
            found += usize::from(whole.1.is_some());
        }
        assert!(found > 100, "{found}");
    }

    #[test]
    fn parts_are_told_apart_as_engines_tell_them() {
        let one = |head: &str, content: &str| {
            let form = form(&[(head, content)]);
            read(b"x-1", [form.as_bytes()])
        };
        for (head, content, expected) in [
            ("CONTENT-DISPOSITION:form-data;NAME=model", "m", Some("m")),
            ("content-type: text/plain\r\nContent-Disposition: form-data; name=\"model\"\r\nx: y", "m", Some("m")),
            (MODEL, "a\r\nb--x-1\r\n--x-1y\r\n--x-1-z", Some("a\r\nb--x-1\r\n--x-1y\r\n--x-1-z")),
            (MODEL, "", Some("")),
            ("content-disposition: form-data; name=\"model\"; filename=\"m\"", "m", None),
            ("content-disposition: form-data; filename*=UTF-8''m; name=model", "m", None),
            ("content-disposition: form-data; name=\"Model\"", "m", None),
            ("content-disposition: form-data; name=\"mo\\\"del\"; x=\"; name=model\"", "m", None),
            ("x-content-disposition: form-data; name=\"model\"", "m", None),
            ("content-disposition: form-data", "name=model", None),
            ("", "m", None),
        ] {
            let (progress, found, over) = one(head, content);
            assert!(matches!(progress, Progress::Enough { .. }) && !over, "{head} {content}");
            assert_eq!(found.as_deref(), expected, "{head} {content}");
        }
        assert_eq!(one(MODEL, &"m".repeat(256)).1.map(|model| model.len()), Some(256));
        assert!(one(MODEL, &"m".repeat(257)).2, "a name too long to be kept is one");
        let long = format!("{MODEL}; x=\"{}\"", "y".repeat(300));
        assert_eq!(one(&long, "m").1, None);
        let preamble = "for readers of mail\r\n".to_owned() + &form(&[(MODEL, "m")]).replace("x-1\r\n", "x-1 \t\r\n");
        assert_eq!(read(b"x-1", [preamble.as_bytes()]).1.as_deref(), Some("m"));
        for none in ["", "\r", "--x-1", "--x-1--", "--x-1\r\n", "\r\r\r\n\n--", "--x-1\n\n", "{\"model\":\"m\"}"] {
            assert_eq!(read(b"x-1", [none.as_bytes()]).1, None, "{none:?}");
        }
    }
}
