//! `warmfront explain --request-id`: the receipts that a running front has of a request, in words.

use std::fmt::Write;
use std::net::SocketAddr;

use super::{ANSWER_BYTES_MAX, TIMEOUT, aligned, escaped};
use crate::cli::shown::plain;
use crate::cli::{runtime, unanswered};
use crate::control::client::{Call, CallError, Client};
use crate::control::receipts::Receipt;
use crate::policy::{Cost, Reason};

/// Asks the front whose admin listener is at `address`; answers what is to be printed.
///
/// # Errors
/// Why there is nothing to print, and what to do, in words.
pub(super) fn asked(address: SocketAddr, id: &str, json: bool) -> Result<String, String> {
    let authority = address.to_string();
    let path = format!("/receipts/{}", escaped(id));
    let call =
        Call { address, authority: &authority, path: &path, key: None, timeout: TIMEOUT, bytes_max: ANSWER_BYTES_MAX };
    let runtime = runtime().map_err(|error| CallError::Want(error.to_string()));
    let asked = runtime.and_then(|runtime| runtime.block_on(Client::default().get(&call)));
    let answer = asked.map_err(|error| unanswered(&error))?;
    let text = String::from_utf8_lossy(&answer.body);
    if answer.status != 200 {
        return Err(plain(text.trim_end()));
    }
    let receipts: Vec<Receipt<'_>> = serde_json::from_str(&text)
        .map_err(|error| format!("{authority} is not a warmfront of this version: {error}"))?;
    if json {
        return Ok(serde_json::to_string_pretty(&receipts).unwrap_or_default() + "\n");
    }
    let mut out = String::new();
    if receipts.len() > 1 {
        let _ = writeln!(out, "{} requests had this id, the last one first.\n", receipts.len());
    }
    for (at, receipt) in receipts.iter().enumerate() {
        out.push_str(if at > 0 { "\n" } else { "" });
        tell(receipt, &mut out);
    }
    Ok(out)
}

fn tell(receipt: &Receipt<'_>, out: &mut String) {
    let line = &receipt.line;
    let id = line.request_id.as_deref().unwrap_or("without an id");
    let (method, path) = (line.method.as_deref().unwrap_or_default(), line.path.as_deref().unwrap_or_default());
    let ended = match (line.status, &line.why) {
        (0, why) => format!("{} before a status was sent{}", line.end, because(why.as_deref())),
        (status, why) => format!("{} with status {status}{}", line.end, because(why.as_deref())),
    };
    let kind = if line.stream { "a stream of " } else { "" };
    for (name, words) in [
        ("request", format!("{id}: {method} {path}, from {} at {}", line.client, line.time)),
        ("end", format!("{ended}; {} bytes asked, {kind}{} bytes answered", line.request_bytes, line.reply_bytes)),
        ("pool", line.pool.as_deref().unwrap_or("none was selected").into()),
        ("endpoint", endpoint(receipt)),
        ("prompt", prompt(receipt)),
        ("engine counted", counted(receipt)),
        (
            "waited",
            line.wait_us.map_or("in no queue before the choice".into(), |wait| format!("{} in a queue", ms(wait))),
        ),
        ("tries", tries(receipt)),
        ("times", times(receipt)),
    ] {
        let _ = writeln!(out, "{name:<16}{}", plain(&words));
    }
    figures(receipt, out);
}

fn because(why: Option<&str>) -> String {
    why.map_or_else(String::new, |why| format!(" ({why})"))
}

fn endpoint(receipt: &Receipt<'_>) -> String {
    let line = &receipt.line;
    let Some(reason) = line.reason.as_deref() else { return "none was chosen".into() };
    let name = line.endpoint.as_deref().unwrap_or("one that is gone");
    let known = Reason::ALL.into_iter().find(|known| known.as_str() == reason);
    let words = known.map_or_else(|| reason.to_owned(), |known| in_words(known).to_owned());
    let key = line.key.as_deref().map_or_else(String::new, |key| format!("; the prefix's key is {key}"));
    let next = line.runner_up.as_deref().map_or_else(String::new, |next| format!("; runner-up {next}"));
    format!("{name}: {words}{key}{next}")
}

fn in_words(reason: Reason) -> &'static str {
    match reason {
        Reason::Random => "by chance",
        Reason::RoundRobin => "it was its turn",
        Reason::LeastLoad => "it had the fewest requests for its weight",
        Reason::Home => "the home of the prompt's prefix, below its bound",
        Reason::Spill => "the home of the prompt's prefix, the runner-up, was at its bound; the next of the ring",
        Reason::SessionHome => "the home of the session, below its bound",
        Reason::SessionSpill => "the home of the session, the runner-up, was at its bound; the next of the ring",
        Reason::AllFull => "all were at their bounds; the least loaded, or by KubeAI's bound the home",
        Reason::NoPrefix => "no prompt to go by; the least loaded",
        Reason::Stored => "it has the stored response that was asked for",
        Reason::NoSession => "no session key to go by; the least loaded",
        Reason::Unscannable => "its body could not be read; the least loaded",
        Reason::Retry => "others had been tried and failed",
        Reason::Warm => "least work, and its cache held some of the prompt",
        Reason::Cold => "least work, though its cache held nothing of the prompt",
    }
}

fn prompt(receipt: &Receipt<'_>) -> String {
    let line = &receipt.line;
    match (line.prompt_tokens, line.held_tokens) {
        (None, _) if line.reason.is_none() => "not counted: no endpoint was chosen".into(),
        (Some(all), None) if line.reason.is_none() => format!("about {all} tokens; no endpoint was chosen"),
        (Some(all), Some(held)) => {
            format!("about {all} tokens: {held} held there as far as was known, {} new", all.saturating_sub(held))
        }
        (Some(all), None) => format!("about {all} tokens; the last choice did not go by them"),
        (None, _) => "not counted: this choice did not go by tokens".into(),
    }
}

fn counted(receipt: &Receipt<'_>) -> String {
    let line = &receipt.line;
    match (line.cached_tokens, line.completion_tokens) {
        (None, None) => "no counts were read".into(),
        (cached, completion) => {
            let said = |count: Option<u32>| count.map_or("an unknown number of".into(), |count| count.to_string());
            format!("{} tokens of the prompt in its cache, {} of the answer", said(cached), said(completion))
        }
    }
}

fn tries(receipt: &Receipt<'_>) -> String {
    match receipt.line.tries {
        0 => "no endpoint".into(),
        1 if receipt.line.connected_us.is_none() => "one endpoint was chosen, and no connection was made".into(),
        1 => "the first endpoint took it".into(),
        more => format!("{more} tries, one after the other, perhaps at the same endpoint; this is of the last"),
    }
}

fn ms(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1_000.0)
}

fn times(receipt: &Receipt<'_>) -> String {
    let line = &receipt.line;
    let steps = [
        ("chosen", line.chosen_us),
        ("connected", line.connected_us),
        ("reply's head", line.head_us),
        ("first data", line.first_data_us),
        ("over", Some(line.total_us)),
    ];
    let told: Vec<String> =
        steps.into_iter().filter_map(|(what, at)| Some(format!("{what} after {}", ms(at?)))).collect();
    told.join(", ")
}

/// A term of a cost: its name, how many tokens it is, what it stands for.
type Term = (&'static str, fn(&Cost) -> u32, &'static str);

const TERMS: [Term; 7] = [
    ("pending", |cost| cost.pending, "tokens sent there that had no first token yet"),
    ("new", |cost| cost.new, "tokens of this prompt that it did not hold, weighed"),
    ("decoding", |cost| cost.decoding, "for the requests there"),
    ("full", |cost| cost.full, "for how full its cache was"),
    ("no room", |cost| cost.no_room, "where its cache had no room for this prompt"),
    ("others", |cost| cost.others, "taken off: what other fronts may have sent there"),
    ("total", |cost| cost.total, "by its weight, in tokens: the least was taken"),
];

/// What the choice compared, one line for each term.
fn figures(receipt: &Receipt<'_>, out: &mut String) {
    let (Some(in_flight), next) = (receipt.in_flight, receipt.runner_up_cost.as_ref()) else { return };
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let mut rows = vec![["", "chosen", "runner-up", ""].map(str::to_owned)];
    let mut row = |name: &str, chosen: Option<u32>, next: Option<u32>, words: &str| {
        rows.push([name.into(), number(chosen), number(next), words.into()]);
    };
    row("in flight", Some(in_flight), receipt.runner_up_in_flight, "requests there before this one");
    match &receipt.cost {
        Some(cost) => TERMS.iter().for_each(|(name, term, words)| row(name, Some(term(cost)), next.map(term), words)),
        None => row("bound", receipt.slots, None, "most requests it might have, this one included"),
    }
    out.push('\n');
    aligned(out, &rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt() -> Receipt<'static> {
        let json = serde_json::json!({
            "version": 1, "time": "2026-11-21T19:02:34.000007Z", "client": "10.0.0.7:50312", "method": "POST",
            "path": "/v1/chat/completions", "api": "chat", "pool": "llama", "endpoint": "gpu-1:8000", "reason": "warm",
            "runner_up": "gpu-2:8000", "tries": 1, "status": 200, "end": "whole", "why": null, "stream": true,
            "request_bytes": 5120, "reply_bytes": 2048, "prompt_tokens": 1280, "held_tokens": 960, "cached_tokens": null,
            "completion_tokens": null, "key": "00000000000000ab", "wait_us": null, "chosen_us": 90, "connected_us": 95,
            "head_us": 1200, "first_data_us": 30000, "total_us": 90000, "request_id": "abc", "in_flight": 1, "slots": null,
            "runner_up_in_flight": 0,
            "cost": {"pending": 0, "new": 1920, "decoding": 20, "full": 0, "no_room": 0, "others": 0, "total": 1940},
            "runner_up_cost": {"pending": 0, "new": 7680, "decoding": 0, "full": 0, "no_room": 0, "others": 0, "total": 7680}
        });
        serde_json::from_value(json).unwrap()
    }

    fn told(receipt: &Receipt<'_>) -> String {
        let mut out = String::new();
        tell(receipt, &mut out);
        out
    }

    #[test]
    fn a_choice_by_tokens_is_told_term_by_term() {
        let text = told(&receipt());
        for words in [
            "endpoint        gpu-1:8000: least work, and its cache held some of the prompt; the prefix's key is 00000000000000ab; runner-up gpu-2:8000\n",
            "prompt          about 1280 tokens: 960 held there as far as was known, 320 new\n",
            "waited          in no queue before the choice\n",
            "tries           the first endpoint took it\n",
            "times           chosen after 0.1 ms, connected after 0.1 ms, reply's head after 1.2 ms, first data after 30.0 ms, over after 90.0 ms\n",
            "\nnew        1920    7680       tokens of this prompt that it did not hold, weighed\n",
            "\ntotal      1940    7680       by its weight, in tokens: the least was taken\n",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
    }

    #[test]
    fn each_figure_stands_behind_its_own_words() {
        let mut receipt = receipt();
        let line = &mut receipt.line;
        (line.cached_tokens, line.completion_tokens, line.wait_us) = (Some(960), Some(77), Some(1_500));
        let cost = |of: u32| Cost {
            pending: of + 1,
            new: of + 2,
            decoding: of + 3,
            full: of + 4,
            no_room: of + 5,
            others: of + 6,
            total: of + 7,
        };
        (receipt.cost, receipt.runner_up_cost) = (Some(cost(10)), Some(cost(20)));
        let text = told(&receipt);
        for words in [
            "engine counted  960 tokens of the prompt in its cache, 77 of the answer\n",
            "waited          1.5 ms in a queue\n",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        for (name, figures, words) in [
            ("in flight", ["1", "0"], "requests there"),
            ("pending", ["11", "21"], "that had no first token yet"),
            ("new", ["12", "22"], "that it did not hold"),
            ("decoding", ["13", "23"], "for the requests there"),
            ("full", ["14", "24"], "how full its cache was"),
            ("no room", ["15", "25"], "had no room for this prompt"),
            ("others", ["16", "26"], "what other fronts may have sent"),
            ("total", ["17", "27"], "the least was taken"),
        ] {
            let row = text.lines().find_map(|line| line.strip_prefix(name).filter(|_| line.contains(words)));
            let row: Vec<&str> = row.unwrap_or_default().split_whitespace().take(2).collect();
            assert_eq!(row, figures, "{name}\n{text}");
        }
    }

    #[test]
    fn what_was_never_chosen_has_no_figures() {
        let mut refused = receipt();
        (refused.in_flight, refused.cost, refused.runner_up_cost) = (None, None, None);
        (refused.line.endpoint, refused.line.reason, refused.line.prompt_tokens) = (None, None, None);
        (refused.line.end, refused.line.why, refused.line.status) = ("refused".into(), Some("bad_head".into()), 400);
        let text = told(&refused);
        assert!(text.contains("end             refused with status 400 (bad_head); "), "{text}");
        assert!(text.contains("endpoint        none was chosen\n") && !text.contains("pending"), "{text}");
        assert!(text.contains("prompt          not counted: no endpoint was chosen\n"), "{text}");
        (refused.line.prompt_tokens, refused.line.held_tokens) = (Some(1280), None);
        let text = told(&refused);
        assert!(text.contains("prompt          about 1280 tokens; no endpoint was chosen\n"), "{text}");
    }

    /// Its engine refused it, no descriptor was left, or the client left before.
    #[test]
    fn an_endpoint_that_was_never_connected_with_took_nothing() {
        let mut unconnected = receipt();
        let line = &mut unconnected.line;
        (line.connected_us, line.head_us, line.first_data_us) = (None, None, None);
        (line.end, line.why, line.status) = ("refused".into(), Some("unreachable".into()), 503);
        let text = told(&unconnected);
        assert!(text.contains("tries           one endpoint was chosen, and no connection was made\n"), "{text}");
        let mut more = unconnected;
        more.line.tries = 2;
        assert!(told(&more).contains("tries           2 tries, one after the other"));
    }

    /// Nothing that a client wrote moves the cursor or makes a line.
    #[test]
    fn hostile_words_stay_in_their_line() {
        let mut hostile = receipt();
        let lines = told(&hostile).lines().count();
        (hostile.line.request_id, hostile.line.path) = (Some("\u{1b}[2J\nroot".into()), Some("/\r\u{7f}\u{9b}".into()));
        let text = told(&hostile);
        assert_eq!(text.lines().count(), lines, "{text:?}");
        assert!(!text.contains(|sign: char| sign.is_control() && sign != '\n'), "{text:?}");
    }
}
