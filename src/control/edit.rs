//! Changes of the list of engines while requests run, made on the admin listener. They last until a reload is taken
//! that was asked for after them; what is to stay belongs in the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Upstream;
use crate::limits::ENDPOINTS_MAX;

/// Most edits that are kept: three for each engine there may be, and the removal of as many others.
const KEPT_MAX: usize = 4 * ENDPOINTS_MAX;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// One more engine.
    Add(Upstream),
    /// The engine of this name finishes what it has and gets nothing new; or takes requests again.
    Drain(String, bool),
    /// The engine of this name finishes what it has and is forgotten.
    Remove(String),
}

/// Why a change is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such engine.
    #[error("no engine is called \"{name}\"; there are {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// It is one of several ranks behind a port.
    #[error("\"{name}\" is one of the ranks of \"{server}\", which come and go together: name that one")]
    Rank {
        /// The name asked for.
        name: String,
        /// Its server's name.
        server: String,
    },
    /// The configuration would be wrong.
    #[error("{0}")]
    Wrong(String),
    /// A fault of ours broke it off.
    #[error("a fault of warmfront broke this off, and some of it may be in use: the log has its place")]
    Broken,
}

impl Edit {
    /// Makes the change.
    ///
    /// # Errors
    /// When it is about an engine that is not there.
    pub fn apply(&self, upstreams: &mut Vec<Upstream>) -> Result<(), Refused> {
        match self {
            Edit::Add(upstream) if upstream.each_address => {
                let why = "`each_address` is for the configuration; add each engine by its own address";
                return Err(Refused::Wrong(why.into()));
            }
            Edit::Add(upstream) => upstreams.push(upstream.clone()),
            Edit::Drain(name, drain) => {
                let at = find(name, upstreams)?;
                upstreams[at].drain = *drain;
            }
            Edit::Remove(name) => {
                let at = find(name, upstreams)?;
                if upstreams.len() == 1 {
                    return Err(Refused::Wrong(format!(
                        "\"{name}\" is the only engine: add another one before it is removed, or drain it"
                    )));
                }
                upstreams.remove(at);
            }
        }
        Ok(())
    }

    /// The name of the engine.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Edit::Add(upstream) => upstream.label().into(),
            Edit::Drain(name, _) | Edit::Remove(name) => name.into(),
        }
    }

    /// Makes the change once more, in a list that was read meanwhile: there may be less to do, or nothing.
    fn redo(&self, upstreams: &mut Vec<Upstream>) {
        let name = self.name();
        let at = upstreams.iter().position(|upstream| upstream.label() == name);
        match (self, at) {
            (Edit::Add(added), None) => upstreams.push(added.clone()),
            // If the file has the same engine, its keys count.
            (Edit::Add(added), Some(at)) if upstreams[at].is_same(added) => upstreams[at].drain = added.drain,
            (Edit::Add(added), Some(at)) => upstreams[at] = added.clone(),
            (Edit::Drain(_, drain), Some(at)) => upstreams[at].drain = *drain,
            (Edit::Remove(_), Some(at)) => drop(upstreams.remove(at)),
            (Edit::Drain(..) | Edit::Remove(_), None) => {}
        }
    }
}

fn find(name: &str, upstreams: &[Upstream]) -> Result<usize, Refused> {
    upstreams.iter().position(|upstream| upstream.label() == name).ok_or_else(|| {
        let is_rank = |upstream: &&Upstream| upstream.each_rank().any(|rank| rank.label() == name);
        if let Some(server) = upstreams.iter().find(is_rank).map(Upstream::server) {
            return Refused::Rank { name: name.to_owned(), server };
        }
        let known: Vec<String> = upstreams.iter().map(|upstream| format!("\"{}\"", upstream.label())).collect();
        Refused::Unknown { name: name.to_owned(), known: known.join(", ") }
    })
}

/// The engines of which a change made by hand is undone: it `was` in use, differs from what had been `read` before, and
/// is otherwise in what `comes`. Changes by the configuration itself do not count.
pub fn undone(read: &[Upstream], was: &[Upstream], comes: &[Upstream]) -> Vec<String> {
    let by_name = |list: &'_ [Upstream]| list.iter().map(|one| (one.label(), one.clone())).collect::<HashMap<_, _>>();
    let [of_read, of_was, of_comes] = [read, was, comes].map(by_name);
    let differ = |one: &Upstream, other: &Upstream| {
        let are_capped = one.concurrency_max != other.concurrency_max;
        [one.url != other.url, one.drain != other.drain, one.weight != other.weight, are_capped]
    };
    let is_undone = |name: &String| match (of_read.get(name), of_was.get(name), of_comes.get(name)) {
        (None, Some(_), None) | (Some(_), None, Some(_)) => true,
        (None, Some(was), Some(comes)) => differ(was, comes).contains(&true),
        (Some(read), Some(was), Some(comes)) => {
            differ(read, was).iter().zip(differ(was, comes)).any(|(by_hand, otherwise)| *by_hand && otherwise)
        }
        (_, _, None) | (None, None, _) => false,
    };
    let added = was.iter().map(Upstream::label).filter(|name| !of_read.contains_key(name));
    read.iter().map(Upstream::label).chain(added).filter(is_undone).collect()
}

/// Those of `these` engines, as they had been read, that are changed by hand in what is `in_use`.
pub fn undone_of(these: &[Upstream], in_use: &[Upstream]) -> Vec<String> {
    let was: Vec<Upstream> = in_use.iter().filter(|one| these.iter().any(|read| read.is_same(one))).cloned().collect();
    undone(these, &was, these)
}

/// Edits made while reloads were asked for and have not ended: an operator who drains an engine meanwhile did so after
/// the file that is being read, or that waits for its turn.
#[derive(Debug, Default)]
pub struct Edits(Mutex<Made>);

#[derive(Debug, Default)]
struct Made {
    /// How many edits there were so far.
    count: u64,
    /// Reloads that have not ended.
    asked: usize,
    /// The edits, by number, that one of these may have to make again: three for each engine at most,
    /// and [`KEPT_MAX`] in all.
    kept: Vec<(u64, Edit)>,
}

/// A reload, from when it is asked for until it has ended.
#[derive(Debug)]
pub struct Since {
    edits: Arc<Edits>,
    /// How many edits there were before it.
    before: u64,
}

impl Edits {
    /// Notes that a reload is asked for.
    pub fn ask(edits: &Arc<Edits>) -> Since {
        let mut made = edits.made();
        made.asked += 1;
        Since { edits: Arc::clone(edits), before: made.count }
    }

    /// Notes an edit that is in use now.
    pub fn note(&self, edit: &Edit) {
        let mut made = self.made();
        made.count += 1;
        if made.asked == 0 {
            return;
        }
        let name = edit.name();
        made.kept.retain(|(_, kept)| match edit {
            Edit::Add(_) => true,
            Edit::Drain(..) => kept.name() != name || !matches!(kept, Edit::Drain(..)),
            Edit::Remove(_) => kept.name() != name,
        });
        let number = made.count;
        made.kept.push((number, edit.clone()));
        made.bound();
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Made {
    /// Drops the oldest kept removal if there are more edits than [`KEPT_MAX`], as when engines are added and removed
    /// without end while a reload hangs.
    fn bound(&mut self) {
        if self.kept.len() > KEPT_MAX {
            let oldest = self.kept.iter().position(|(_, edit)| matches!(edit, Edit::Remove(_))).unwrap_or(0);
            let (_, edit) = self.kept.remove(oldest);
            let engine = &*edit.name();
            tracing::warn!(
                engine,
                "too many changes are made by hand while the configuration is read: it may undo this one"
            );
        }
    }
}

impl Since {
    /// Makes the edits since this reload was asked for in the list that it read. If not all of them make sense there,
    /// only those that do; otherwise the list counts.
    pub fn redo(&self, upstreams: &mut Vec<Upstream>, makes_sense: impl Fn(&[Upstream]) -> bool) {
        let made = self.edits.made();
        let since = made.kept.iter().filter(|(number, _)| *number > self.before);
        redo(&since.map(|(_, edit)| edit).collect::<Vec<_>>(), upstreams, &makes_sense);
    }

    /// Notes that what was read is in use, with the edits since: those before are undone,
    /// also for a reload that was asked for sooner and reads later.
    pub fn taken(&self) {
        self.edits.made().kept.retain(|(number, _)| *number > self.before);
    }
}

/// Makes all of them together, or else each half by itself: so thousands that make sense are not tried one by one
/// because of one that does not.
fn redo(edits: &[&Edit], upstreams: &mut Vec<Upstream>, makes_sense: &impl Fn(&[Upstream]) -> bool) {
    let mut edited = upstreams.clone();
    edits.iter().for_each(|edit| edit.redo(&mut edited));
    match edits {
        _ if makes_sense(&edited) => *upstreams = edited,
        [] => {}
        [edit] => {
            let engine = &*edit.name();
            tracing::warn!(
                engine,
                "a change made by hand while the configuration was read is undone: the new configuration does not allow it"
            );
        }
        _ => {
            let (first, then) = edits.split_at(edits.len() / 2);
            redo(first, upstreams, makes_sense);
            redo(then, upstreams, makes_sense);
        }
    }
}

impl Drop for Since {
    fn drop(&mut self) {
        let mut made = self.edits.made();
        made.asked -= 1;
        if made.asked == 0 {
            made.kept.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashSet;

    use super::*;

    fn engine(port: u16) -> Upstream {
        Upstream::new(format!("http://engine:{port}").parse().unwrap())
    }

    /// One called "a", elsewhere each time.
    fn called(port: u16) -> Upstream {
        Upstream { name: "a".into(), ..engine(port) }
    }

    fn drain(name: &str, drain: bool) -> Edit {
        Edit::Drain(name.into(), drain)
    }

    fn redone(asked: &Since, list: &[Upstream]) -> Vec<Upstream> {
        let mut list = list.to_vec();
        let urls = |list: &[Upstream]| list.iter().map(|one| one.url.to_string()).collect::<HashSet<_>>().len();
        asked.redo(&mut list, |list| urls(list) == list.len());
        list
    }

    #[test]
    fn what_was_changed_since_is_changed_again() {
        let edits = Arc::default();
        let asked = Edits::ask(&edits);
        let all = [drain("engine:2", true), Edit::Remove("engine:1".into()), Edit::Add(engine(5)), drain("gone", true)];
        all.iter().for_each(|edit| edits.note(edit));
        let heavy = Upstream { weight: 2, ..engine(2) };
        let expected = [Upstream { drain: true, ..heavy.clone() }, engine(4), engine(5)];
        assert_eq!(redone(&asked, &[engine(1), heavy, engine(4)]), expected);
        // What the file says stays so where nobody has changed it since.
        let later = Edits::ask(&edits);
        assert_eq!(redone(&later, &expected), expected);
        edits.note(&drain("engine:2", false));
        assert!(!redone(&later, &expected)[0].drain && !redone(&asked, &expected)[0].drain);
    }

    /// What the file says of an engine that was removed and added is of another.
    #[test]
    fn an_engine_that_was_added_stays_as_it_was_added() {
        let edits = Arc::default();
        let asked = Edits::ask(&edits);
        edits.note(&Edit::Remove("a".into()));
        edits.note(&Edit::Add(called(2)));
        assert_eq!(redone(&asked, &[called(1)]), [called(2)]);
        let asked = Edits::ask(&edits);
        edits.note(&Edit::Add(engine(3)));
        edits.note(&drain("engine:3", true));
        edits.note(&Edit::Add(called(4)));
        let heavy = Upstream { weight: 2, ..engine(3) };
        let expected = [Upstream { drain: true, ..heavy.clone() }, called(4)];
        assert_eq!(redone(&asked, &[heavy, called(1)]), expected, "the file may know more of the same engine");
    }

    #[test]
    fn what_was_by_hand_and_is_so_no_more_is_undone() {
        let drained = |port| Upstream { drain: true, ..engine(port) };
        let heavy = |port| Upstream { weight: 2, ..engine(port) };
        let read = [engine(1), engine(2), heavy(3)];
        let was = [drained(1), heavy(3), heavy(4)];
        let of = |comes: &[Upstream]| undone(&read, &was, comes);
        assert_eq!(of(&read), ["engine:1", "engine:2", "engine:4"]);
        // The file has come to say the same, or more.
        assert_eq!(of(&was), [""; 0]);
        let more = Upstream { weight: 5, ..drained(1) };
        assert_eq!(of(&[more, heavy(4)]), [""; 0], "what is gone from the file is its own doing");
        assert_eq!(of(&[Upstream { weight: 5, ..engine(1) }, engine(3), engine(4)]), ["engine:1", "engine:4"]);
        assert_eq!(undone(&read, &read, &was), [""; 0]);
    }

    /// The file has it under another name.
    #[test]
    fn a_change_that_makes_no_sense_leaves_the_others() {
        let edits = Arc::default();
        let asked = Edits::ask(&edits);
        [drain("engine:2", true), Edit::Add(engine(1)), Edit::Remove("engine:3".into())]
            .iter()
            .for_each(|edit| edits.note(edit));
        let expected = [called(1), Upstream { drain: true, ..engine(2) }];
        assert_eq!(redone(&asked, &[called(1), engine(2), engine(3)]), expected);
    }

    #[test]
    fn no_more_is_kept_than_may_be_needed() {
        let edits = Arc::<Edits>::default();
        let kept = || edits.made().kept.len();
        edits.note(&drain("a", true));
        assert_eq!(kept(), 0, "nobody reads");
        let [first, second] = [Edits::ask(&edits), Edits::ask(&edits)];
        for _ in 0..100 {
            edits.note(&Edit::Remove("a".into()));
            edits.note(&Edit::Add(called(1)));
            (0..100).for_each(|turn| edits.note(&drain("a", turn % 2 == 0)));
            edits.note(&drain("engine:1", true));
            assert_eq!(kept(), 4);
        }
        let third = Edits::ask(&edits);
        edits.note(&drain("engine:2", true));
        third.taken();
        assert_eq!((kept(), redone(&second, &[engine(1)])), (1, vec![engine(1)]), "undone by who asked later");
        drop((first, second));
        assert_eq!(kept(), 1);
        drop(third);
        assert_eq!(kept(), 0);
    }

    /// Whoever has engines come and go, while a disk is gone that is read from.
    #[test]
    fn changes_without_end_are_bounded_and_soon_made_again() {
        let edits = Arc::<Edits>::default();
        let asked = Edits::ask(&edits);
        edits.note(&drain("engine:1", true));
        // In the place of one that the file has under another name.
        edits.note(&Edit::Add(engine(2)));
        for number in 0..2 * KEPT_MAX {
            edits.note(&Edit::Remove(format!("gone-{number}")));
        }
        assert_eq!(edits.made().kept.len(), KEPT_MAX);
        let tried = Cell::new(0);
        let mut list = vec![engine(1), called(2), Upstream { name: format!("gone-{}", 2 * KEPT_MAX - 1), ..engine(3) }];
        asked.redo(&mut list, |list| {
            tried.set(tried.get() + 1);
            list.iter().map(|one| one.url.to_string()).collect::<HashSet<_>>().len() == list.len()
        });
        assert_eq!(list, [Upstream { drain: true, ..engine(1) }, called(2)]);
        assert!(tried.get() < 40, "{}", tried.get());
    }
}
