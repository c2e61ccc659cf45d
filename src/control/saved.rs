//! What is known of the engines' caches, in a file over a restart of the front: it is written as it changes and at
//! the end, read at the start, and believed of an engine whose process is still the same.
//!
//! The first line names the version; lines are in JSON. Then there is a line for each engine that says what follows it:
//! bytes of mirrors ([`crate::mirror`]) and rows of the index. The last eight bytes are the XXH64 of all before them.
//! Mirrors hold some bytes of text for each KV block, and sums that confirm a guess at the rest, so the file is
//! readable for this user alone.

mod beside;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh64::Xxh64;

use super::writable::may_hold;
use crate::kvevents::Reached;
use beside::Beside;
pub use beside::tidy_up;

/// The version; a file of another version is not used.
const VERSION: u32 = 5;
/// Longest file that is written or read.
const BYTES_MAX: u64 = 4 << 30;
/// Longest line, with its end.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Bytes of the sum at the end.
const SUM_BYTES: u64 = size_of::<u64>() as u64;

/// What is known of engines, by their names.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    engines: HashMap<String, Arc<Engine>>,
}

/// One engine's process, as it says itself which it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// When it began, in seconds since 1970.
    #[serde(with = "bits")]
    pub started: f64,
    /// Tokens of a KV block.
    pub block_size: Option<u32>,
    /// Tokens of its KV cache.
    pub tokens: Option<u64>,
}

/// What was known of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    /// The process of which it is known.
    pub process: Process,
    /// What it had told.
    pub remembered: Option<Heard>,
    /// What the index held of it, in the index's form.
    pub rows: Option<Rows>,
}

/// What an engine told of its cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// The id of the form with which that was read.
    pub form: u64,
    /// How far each of its sockets was read.
    pub sockets: Vec<Vec<Reached>>,
    /// Bytes of mirrors, by rank.
    pub mirrors: Vec<(u32, Vec<u8>)>,
}

/// Rows of an index.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// The layout of the index for which they are valid.
    pub layout: u64,
    /// The rows, one after the other.
    pub bytes: Vec<u8>,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct First {
    warmfront_caches: u32,
}

/// The line before what is known of an engine.
#[derive(Serialize, Deserialize)]
struct Line {
    name: String,
    process: Process,
    form: Option<u64>,
    /// Rank, number that comes next, bits of the time, whether nothing is missing.
    sockets: Vec<Vec<(u32, u64, u64, bool)>>,
    /// Rank and length of each mirror.
    mirrors: Vec<(u32, usize)>,
    /// Layout and length of the rows.
    rows: Option<(u64, usize)>,
}

/// Writes times as their bits: in digits a time may come back as another, and so as another process's.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    pub fn serialize<S: Serializer>(time: &f64, out: S) -> Result<S::Ok, S::Error> {
        time.to_bits().serialize(out)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It is not there, or not readable.
    #[error(transparent)]
    File(#[from] io::Error),
    /// It is cut off, changed, or of another version.
    #[error("{0}")]
    Content(&'static str),
}

const NOT_WHOLE: Unusable = Unusable::Content("it is damaged, or not whole");

impl Saved {
    /// Notes what is known of an engine.
    pub fn add(&mut self, name: &str, engine: Engine) {
        self.engines.insert(name.to_owned(), Arc::new(engine));
    }

    /// Takes what was known of an engine, if that is this process. A second call finds nothing.
    pub fn take(&mut self, name: &str, process: Option<&Process>) -> Option<Engine> {
        let engine = self.engines.remove(name)?;
        // It is shared while it is being written.
        (process == Some(&engine.process)).then(|| Arc::unwrap_or_clone(engine))
    }

    /// Forgets engines by their names.
    pub fn retain(&mut self, stays: impl Fn(&str) -> bool) {
        self.engines.retain(|name, _| stays(name));
    }

    /// Whether nothing is known of any engine.
    pub fn is_empty(&self) -> bool {
        self.engines.is_empty()
    }

    /// All of it, by the engines' names.
    pub fn engines(&self) -> impl Iterator<Item = (&str, &Arc<Engine>)> {
        self.engines.iter().map(|(name, engine)| (&**name, engine))
    }

    /// Reads what an earlier process wrote.
    pub fn read(path: &Path) -> Result<Saved, Unusable> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        if length > BYTES_MAX {
            return Err(Unusable::Content("it is longer than any that is written"));
        }
        Saved::read_from(BufReader::new(file), length)
    }

    /// Reads it part by part.
    fn read_from(file: impl BufRead, length: u64) -> Result<Saved, Unusable> {
        let mut rest = Rest { file, sum: Xxh64::new(0), bytes: length.saturating_sub(SUM_BYTES) };
        let first: First = serde_json::from_slice(&rest.line()?)
            .map_err(|_| Unusable::Content("its first line is another version's, or none"))?;
        if first.warmfront_caches != VERSION {
            return Err(Unusable::Content("it is another version's"));
        }
        let mut saved = Saved::default();
        while rest.bytes > 0 {
            let line: Line = serde_json::from_slice(&rest.line()?).map_err(|_| NOT_WHOLE)?;
            let mirrors = line.mirrors.iter().map(|(rank, length)| Ok((*rank, rest.part(*length)?)));
            let mirrors = mirrors.collect::<Result<_, Unusable>>()?;
            let rows = line.rows.map(|(layout, length)| Ok::<_, Unusable>(Rows { layout, bytes: rest.part(length)? }));
            let of = |(rank, next, time, is_whole)| Reached { rank, next, time: f64::from_bits(time), is_whole };
            let sockets = line.sockets.into_iter().map(|all| all.into_iter().map(of).collect()).collect();
            let remembered = line.form.map(|form| Heard { form, sockets, mirrors });
            saved.add(&line.name, Engine { process: line.process, remembered, rows: rows.transpose()? });
        }
        rest.end()?;
        Ok(saved)
    }
}

/// A file as it is written, engine by engine: what is known of all of them together may be a
/// third of what the index takes.
pub struct Writing {
    path: PathBuf,
    most: u64,
    beside: Beside,
    file: BufWriter<File>,
    sum: Xxh64,
    length: u64,
    /// See [`Writing::to`].
    written: Arc<AtomicU64>,
}

impl Writing {
    /// Begins what is to be in `path`, of at least `least` bytes. `written` counts the bytes that go to the disk, even
    /// if the file is not completed.
    pub fn to(path: &Path, least: u64, written: Arc<AtomicU64>) -> io::Result<Writing> {
        Writing::within(BYTES_MAX, path, least, written)
    }

    fn within(most: u64, path: &Path, least: u64, written: Arc<AtomicU64>) -> io::Result<Writing> {
        if least > most {
            return Err(too_long());
        }
        is_replaceable(path)?;
        tidy_up(path);
        let (beside, file) = Beside::made(path)?;
        let (path, file, sum) = (path.to_owned(), BufWriter::new(file), Xxh64::new(0));
        let mut writing = Writing { path, most, beside, file, sum, length: SUM_BYTES, written };
        writing.line(&First { warmfront_caches: VERSION })?;
        Ok(writing)
    }

    /// Adds what is known of an engine.
    pub fn add(&mut self, name: &str, engine: &Engine) -> io::Result<()> {
        self.line(&Line::of(name, engine))?;
        engine.parts().try_for_each(|part| self.write(part))
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        if line.len() > LINE_BYTES_MAX { Err(too_long()) } else { self.write(&line) }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length += bytes.len() as u64;
        if self.length > self.most {
            return Err(too_long());
        }
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.sum.update(bytes);
        self.file.write_all(bytes)
    }

    /// Replaces the file by what was written, in one step so that there is always a whole one, if that `is_wanted` when
    /// all is written. Returns how many bytes it has; `None`: it was not wanted.
    pub fn end(mut self, is_wanted: impl FnOnce() -> bool) -> io::Result<Option<u64>> {
        self.file.write_all(&self.sum.digest().to_le_bytes())?;
        self.file.flush()?;
        self.file.get_ref().sync_data()?;
        let replaces = || fs::rename(self.beside.path(), &self.path).map(|()| self.length);
        is_wanted().then(replaces).transpose()
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "it would be longer than any that is read")
}

/// The part of a file that was not read yet, before its sum.
struct Rest<R> {
    file: R,
    sum: Xxh64,
    bytes: u64,
}

impl<R: BufRead> Rest<R> {
    /// A line, without its end.
    fn line(&mut self) -> Result<Vec<u8>, Unusable> {
        let mut line = Vec::new();
        self.file.by_ref().take(self.bytes.min(LINE_BYTES_MAX as u64)).read_until(b'\n', &mut line)?;
        self.has_read(&line);
        line.pop_if(|last| *last == b'\n').ok_or(NOT_WHOLE)?;
        Ok(line)
    }

    fn part(&mut self, length: usize) -> Result<Vec<u8>, Unusable> {
        // Checked before memory is taken for bytes that are not there.
        if length as u64 > self.bytes {
            return Err(NOT_WHOLE);
        }
        let mut part = vec![0; length];
        self.file.read_exact(&mut part)?;
        self.has_read(&part);
        Ok(part)
    }

    fn has_read(&mut self, bytes: &[u8]) {
        self.sum.update(bytes);
        self.bytes -= bytes.len() as u64;
    }

    /// Checks that after all parts comes their sum, and nothing else.
    fn end(mut self) -> Result<(), Unusable> {
        let mut sum = [0; SUM_BYTES as usize];
        self.file.read_exact(&mut sum)?;
        if self.bytes > 0 || u64::from_le_bytes(sum) != self.sum.digest() { Err(NOT_WHOLE) } else { Ok(()) }
    }
}

/// Whether the file could be written; nothing is changed.
pub fn writable(path: &Path) -> io::Result<()> {
    is_replaceable(path)?;
    // The file is always made anew in its folder.
    may_hold(path)
}

/// Whether a new file may take this name. Not from something that serves others, such as `/dev/null`; nor from a file
/// that is a mount by itself, as with a container's `-v FILE:FILE`, which no other can replace.
fn is_replaceable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "what is there is no file"));
        }
        _ => {}
    }
    // A link itself is looked at: it is what would be replaced.
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    let is_mount = found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    let why = "it is mounted as a single file, so that no other file can take its place; mount its folder";
    if is_mount { Err(io::Error::new(io::ErrorKind::ResourceBusy, why)) } else { Ok(()) }
}

impl Engine {
    /// The parts that follow its line, in the line's order.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mirrors = self.remembered.iter().flat_map(|heard| &heard.mirrors).map(|(_, bytes)| &**bytes);
        mirrors.chain(self.rows.iter().map(|rows| &*rows.bytes))
    }
}

impl Line {
    fn of(name: &str, engine: &Engine) -> Line {
        let heard = engine.remembered.as_ref();
        let of = |reached: &Reached| (reached.rank, reached.next, reached.time.to_bits(), reached.is_whole);
        let sockets = heard.map(|heard| heard.sockets.iter().map(|all| all.iter().map(of).collect()).collect());
        let mirrors = heard.map(|heard| heard.mirrors.iter().map(|(rank, bytes)| (*rank, bytes.len())).collect());
        Line {
            name: name.to_owned(),
            process: engine.process,
            form: heard.map(|heard| heard.form),
            sockets: sockets.unwrap_or_default(),
            mirrors: mirrors.unwrap_or_default(),
            rows: engine.rows.as_ref().map(|rows| (rows.layout, rows.bytes.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use xxhash_rust::xxh64::xxh64;

    use super::beside::LEFT_AFTER;
    use super::*;

    fn saved() -> (Saved, Process) {
        let process = Process { started: 1_795_187_461.68, block_size: Some(16), tokens: Some(65_536) };
        let reached = Reached { rank: 1, next: 77, time: 1_795_187_999.25, is_whole: true };
        let told = Heard {
            form: u64::MAX - 1,
            sockets: vec![vec![reached], vec![]],
            mirrors: vec![(0, vec![1; 9]), (1, vec![])],
        };
        let rows = Rows { layout: 5, bytes: vec![10, 0, 255] };
        let mut saved = Saved::default();
        saved.add("gpu-1", Engine { process, remembered: Some(told), rows: Some(rows) });
        saved.add("gpu-2", Engine { process, remembered: None, rows: None });
        (saved, process)
    }

    /// A folder that goes with the value.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            static MADE: AtomicUsize = AtomicUsize::new(0);
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let folder = std::env::temp_dir().join(format!("warmfront-saved-{}-{number}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }

        fn caches(&self) -> PathBuf {
            self.0.join("caches")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn write(saved: &Saved, most: u64, path: &Path) -> io::Result<u64> {
        let mut writing = Writing::within(most, path, 0, Arc::default())?;
        saved.engines().try_for_each(|(name, engine)| writing.add(name, engine))?;
        writing.end(|| true).map(Option::unwrap)
    }

    fn bytes(saved: &Saved) -> Vec<u8> {
        let folder = Folder::new();
        let length = write(saved, BYTES_MAX, &folder.caches()).unwrap();
        let bytes = fs::read(folder.caches()).unwrap();
        assert_eq!(length, bytes.len() as u64);
        bytes
    }

    fn of(bytes: &[u8]) -> Result<Saved, Unusable> {
        Saved::read_from(bytes, bytes.len() as u64)
    }

    #[test]
    fn what_is_written_is_read() {
        let (saved, process) = saved();
        let mut again = of(&bytes(&saved)).unwrap();
        assert_eq!(again.engines, saved.engines);
        let later = Process { started: process.started + 1.0, ..process };
        assert_eq!(again.take("gpu-2", Some(&later)), None, "another process");
        assert_eq!(again.take("gpu-3", Some(&process)), None);
        assert!(again.take("gpu-1", Some(&process)).is_some() && again.take("gpu-1", Some(&process)).is_none());
        assert!(again.is_empty());
    }

    /// An engine's clock has digits down to the last bit, and may say what is no time.
    #[test]
    fn times_come_back_as_they_were() {
        let times = (0..1_000).map(|part| 1_795_187_461.0 + f64::from(part) / 997.0).chain([f64::INFINITY, -0.0]);
        for time in times {
            let process = Process { started: time, block_size: None, tokens: None };
            let reached = Reached { rank: 0, next: 1, time, is_whole: true };
            let told = Heard { form: 1, sockets: vec![vec![reached]], mirrors: vec![] };
            let mut saved = Saved::default();
            saved.add("gpu-1", Engine { process, remembered: Some(told), rows: None });
            let mut again = of(&bytes(&saved)).unwrap();
            assert_eq!(again.engines, saved.engines);
            assert!(again.take("gpu-1", Some(&process)).is_some(), "{time}");
        }
    }

    #[test]
    fn a_file_that_is_not_whole_is_not_used() {
        let bytes = bytes(&saved().0);
        for end in 0..bytes.len() {
            assert!(of(&bytes[..end]).is_err(), "cut at {end}");
        }
        let mut changed = bytes.clone();
        for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            changed[at] ^= 1 << bit;
            assert!(of(&changed).is_err(), "bit {bit} changed at {at}");
            changed[at] ^= 1 << bit;
        }
        assert!(of(&[b"{}\n", &bytes[..]].concat()).is_err());
        assert!(of(&[&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let folder = Folder::new();
        let path = folder.caches();
        assert!(matches!(Saved::read(&path), Err(Unusable::File(_))));
        let (saved, _) = saved();
        for _ in 0..2 {
            let length = write(&saved, BYTES_MAX, &path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), length);
            assert_eq!(Saved::read(&path).unwrap().engines, saved.engines);
        }
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let length = fs::metadata(&path).unwrap().len();
        let error = write(&saved, length - 1, &path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        assert_eq!(
            (write(&saved, length, &path).unwrap(), Saved::read(&path).unwrap().engines),
            (length, saved.engines)
        );
    }

    #[test]
    fn a_file_that_is_not_wanted_any_more_leaves_what_is_there() {
        let folder = Folder::new();
        let writing = Writing::to(&folder.caches(), 0, Arc::default()).unwrap();
        fs::write(folder.caches(), "another's").unwrap();
        assert_eq!(writing.end(|| false).unwrap(), None);
        assert_eq!(fs::read(folder.caches()).unwrap(), b"another's");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_not_replaced() {
        use std::os::unix::fs::{FileTypeExt, symlink};

        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = Folder::new();
        let (path, pipe) = (folder.caches(), folder.0.join("pipe"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        symlink(&pipe, &path).unwrap();
        for path in [&pipe, &path, &folder.0] {
            assert!(write(&saved().0, BYTES_MAX, path).is_err() && writable(path).is_err(), "{}", path.display());
        }
        assert!(fs::metadata(&path).is_ok_and(|found| found.file_type().is_fifo()));
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2);
    }

    #[test]
    fn what_a_process_left_that_has_ended_is_removed() {
        let folder = Folder::new();
        let process = saved().1;
        let mut writing = Writing::to(&folder.caches(), 0, Arc::default()).unwrap();
        let writes = writing.beside.path().file_name().unwrap().to_str().unwrap().to_owned();
        let (left, recent) = ("caches.0123456789abcdef.new".to_owned(), "caches.0123456789abcdee.new".to_owned());
        let stay = ["caches.new", "caches.1.new", "caches.0123456789abcde-.new", "caches.0123456789abcdef.newer"];
        let stay = stay.into_iter().chain(["others.0123456789abcdef.new"]).map(str::to_owned);
        let mut stay: Vec<String> = stay.collect();
        stay.push(recent);
        stay.iter().chain([&left]).for_each(|name| fs::write(folder.0.join(name), "").unwrap());
        stay.push(writes);
        let is_old = |name: &&String| !name.ends_with("ee.new");
        let long_ago = std::time::SystemTime::now() - 2 * LEFT_AFTER;
        for name in stay.iter().chain([&left]).filter(is_old) {
            let file = File::options().write(true).open(folder.0.join(name)).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        tidy_up(&folder.caches());
        let left = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<String> = left.collect();
        left.sort();
        stay.sort();
        assert_eq!(left, stay);
        writing.add("gpu-1", &Engine { process, remembered: None, rows: None }).unwrap();
        assert!(writing.end(|| true).is_ok() && Saved::read(&folder.caches()).is_ok_and(|saved| !saved.is_empty()));
    }

    /// In two containers they may have the same process id.
    #[test]
    fn two_that_write_one_file_do_not_write_into_each_others() {
        let folder = Folder::new();
        let process = saved().1;
        let mut both = [1, 2].map(|_| Writing::to(&folder.caches(), 0, Arc::default()).unwrap());
        for (name, writing) in ["gpu-1", "gpu-2"].iter().zip(&mut both) {
            let rows = Some(Rows { layout: 5, bytes: vec![1; 1 << 20] });
            writing.add(name, &Engine { process, remembered: None, rows }).unwrap();
        }
        for (name, writing) in ["gpu-1", "gpu-2"].iter().zip(both) {
            writing.end(|| true).unwrap();
            let mut known = Saved::read(&folder.caches()).unwrap();
            assert!(known.take(name, Some(&process)).is_some() && known.is_empty());
        }
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    /// Of what is added nothing is kept but how long it is; what was there before stays until all is.
    #[test]
    fn one_engine_after_the_other_is_written_down() {
        let folder = Folder::new();
        fs::write(folder.caches(), "before").unwrap();
        let (_, process) = saved();
        let mut writing = Writing::to(&folder.caches(), 0, Arc::default()).unwrap();
        for engine in 1..=8 {
            let rows = Rows { layout: 5, bytes: vec![engine; 1 << 20] };
            writing.add(&format!("gpu-{engine}"), &Engine { process, remembered: None, rows: Some(rows) }).unwrap();
            assert!(writing.file.get_ref().metadata().unwrap().len() >= u64::from(engine) << 20);
            assert_eq!(fs::read(folder.caches()).unwrap(), b"before");
            assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2, "nothing is written twice");
        }
        writing.end(|| true).unwrap();
        let mut again = Saved::read(&folder.caches()).unwrap();
        for engine in 1..=8 {
            let known = again.take(&format!("gpu-{engine}"), Some(&process)).unwrap();
            assert_eq!(known.rows.unwrap().bytes, vec![engine; 1 << 20]);
        }
        assert!(again.is_empty() && fs::read_dir(&folder.0).unwrap().count() == 1);
        let error = Writing::to(&folder.caches(), BYTES_MAX + 1, Arc::default()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "before anything is copied");
    }

    /// Whatever stands in it under a sum that is right: read or refused, and what is read is no longer than the file.
    #[test]
    fn any_file_is_read_or_refused() {
        let good = bytes(&saved().0);
        let mut state = 7_u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut read = 0;
        for _ in 0..20_000 {
            let mut file = good[..good.len() - 8].to_vec();
            for _ in 0..=draw(3) {
                let at = draw(file.len());
                match draw(4) {
                    0 => file[at] = draw(256) as u8,
                    // A digit for a digit: what is read then is another account.
                    1 if file[at].is_ascii_digit() => file[at] = b'0' + draw(10) as u8,
                    1 => {}
                    2 => drop(file.remove(at)),
                    _ => file.insert(at, file[at]),
                }
            }
            file.extend(xxh64(&file, 0).to_le_bytes());
            let Ok(saved) = of(&file) else { continue };
            let kept: usize = saved.engines.values().flat_map(|engine| engine.parts()).map(<[u8]>::len).sum();
            assert!(kept <= file.len(), "{kept} of {}", file.len());
            read += 1;
        }
        assert!(read > 1_000, "{read}");
    }
}
