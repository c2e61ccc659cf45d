//! The configuration file as an operator meets it: the example has every key, and mistakes are
//! answered in words with the line they stand on.

use std::path::Path;

use warmfront::config::{Access, Config, Flags, Shards, Upstream};
use warmfront::policy::Policy;
use warmfront::scan::Plain;

const EXAMPLE: &str = include_str!("../systemd/warmfront.toml");

fn said(text: &str) -> String {
    match Config::parse(text, Path::new("w.toml")) {
        Ok(_) => "accepted".into(),
        Err(invalid) => invalid.to_string(),
    }
}

#[test]
fn the_example_is_the_defaults() {
    let parsed = Config::parse(EXAMPLE, Path::new("warmfront.toml")).unwrap();
    let upstream = Upstream::new("http://127.0.0.1:8001".parse().unwrap());
    assert_eq!(parsed, Config { upstream: vec![upstream], ..Config::default() });
}

#[test]
fn the_example_shows_every_key() {
    let shown: toml::Table = EXAMPLE.parse().unwrap();
    let upstream = Upstream::new("http://127.0.0.1:8001".parse().unwrap());
    let whole = toml::Table::try_from(Config { upstream: vec![upstream], ..Config::default() }).unwrap();
    for (table, value) in &whole {
        let keys = |value: &toml::Value| -> Vec<String> {
            let table = value.as_table().or_else(|| value.as_array()?.first()?.as_table());
            let mut keys: Vec<String> = table.into_iter().flat_map(|table| table.keys().cloned()).collect();
            keys.sort();
            keys
        };
        let shown = shown.get(table).map(keys).unwrap_or_default();
        assert_eq!(shown, keys(value), "[{table}]");
    }
}

#[test]
fn the_examples_pool_works_when_its_marks_are_taken_away() {
    let mut text = EXAMPLE.to_owned();
    for key in ["[pool", "policy", "load_percent"] {
        text = text.replace(&format!("\n# {key}"), &format!("\n{key}"));
    }
    let config = Config::parse(&text, Path::new("warmfront.toml")).unwrap();
    let pool = config.settings_for("meta-llama/Llama-3.1-8B-Instruct");
    assert_eq!((pool.policy, pool.load_percent, pool.replication), (Policy::Session, 150, 256));
    assert_eq!(config.settings_for("other").policy, Policy::Warm);
}

/// What is wrong goes to the journal.
#[test]
fn a_password_in_a_url_is_not_shown() {
    for url in ["http://u:pw@a:1/v1", "https://u:pw@a:1"] {
        let said = said(&format!("[[upstream]]\nurl = \"{url}\"\n"));
        assert!(said.starts_with("w.toml:2:7: ") && said.contains("holds credentials"), "{said}");
        assert!(!said.contains("pw"), "{said}");
    }
}

#[test]
fn unknown_keys_are_named_with_what_was_meant() {
    assert_eq!(
        said("[serve]\nshards = 2\n\n[limits]\nhold_byte = 4096\n"),
        "w.toml:5:1: `hold_byte` is not a key of [limits]; did you mean `hold_bytes`?\n  |\n5 | hold_byte = 4096\n  | ^^^^^^^^^"
    );
    assert_eq!(
        said("[server]\n"),
        "w.toml:1:2: `server` is not a table of this file; did you mean `serve`?\n  |\n1 | [server]\n  |  ^^^^^^"
    );
    assert_eq!(
        said("[serve]\npolicy = \"random\"\n"),
        "w.toml:2:1: `policy` is not a key of [serve]; it belongs to [routing]\n  |\n2 | policy = \"random\"\n  | ^^^^^^"
    );
    assert!(
        said("[[upstream]]\nurl = \"http://a:1\"\nwieght = 2\n")
            .contains("3:1: `wieght` is not a key of [[upstream]]; did you mean `weight`?")
    );
    assert!(said("[pool.x]\npolcy = \"random\"\n").contains("did you mean `policy`?"));
}

#[test]
fn wrong_types_are_named_with_what_is_wanted() {
    assert_eq!(
        said("[limits]\nbody_bytes_max = \"64M\"\n"),
        "w.toml:2:18: `body_bytes_max` wants a whole number such as 67108864, not a text\n  |\n2 | body_bytes_max = \"64M\"\n  |                  ^^^^^"
    );
    assert!(said("[limits]\nhold_bytes = -1\n").contains("2:14: `hold_bytes` cannot be negative"));
    assert!(
        said("[serve]\nlisten = \"0.0.0.0:8000\"\n").contains("`listen` wants a list in square brackets, not a text")
    );
    assert!(
        said("[serve]\nlisten = [8000]\n")
            .contains("`listen` wants a text in quotes such as \"0.0.0.0:8000\", not a number")
    );
    let address = said("[serve]\nlisten = [\"8000\"]\n");
    assert!(
        address.starts_with("w.toml:2:11: `listen` wants an address as IP:PORT") && address.contains("not \"8000\"")
    );
    assert!(said("[serve]\nadmin = \"localhost:1\"\n").contains("`admin` wants an address as IP:PORT"));
    assert!(said("[upstream]\nurl = \"http://a:1\"\n").contains("write [[upstream]] in two brackets"));
    assert!(said("[serve]\nshards = true\n").contains("`shards` is \"auto\" or a number of threads such as 4"));
    assert!(said("[serve]\nshards = \"many\"\n").contains("`shards` is \"auto\" or a number"));
    for pin in ["1", "\"yes\""] {
        assert!(said(&format!("[serve]\npin = {pin}\n")).contains("`pin` is \"auto\", true or false"), "{pin}");
    }
    for (pin, asked) in [("true", Some(true)), ("false", Some(false)), ("\"auto\"", None)] {
        let text = format!("[serve]\npin = {pin}\n[[upstream]]\nurl = \"http://a:1\"\n");
        assert_eq!(Config::parse(&text, Path::new("w.toml")).unwrap().serve.pin.asked(), asked);
    }
    assert!(said("upstream = 3\n").contains("`upstream` wants a list"));
    assert!(said("[serve\n").starts_with("w.toml:1:"));
}

#[test]
fn a_file_in_another_encoding_is_refused_with_its_place() {
    let path = std::env::temp_dir().join(format!("warmfront-latin-{}.toml", std::process::id()));
    std::fs::write(&path, b"[serve]\n# Zugang f\xfcr alle\n").unwrap();
    let refused = Config::load(&Flags { file: Some(path.clone()), ..Flags::default() }).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(refused.contains(".toml:2:11: byte 0xFC is no UTF-8; save the file as UTF-8"), "{refused}");
}

#[test]
fn of_a_giant_line_the_part_that_is_meant_is_shown() {
    let long = format!("[serve]\npaths = [{}]\n", "\"/aaaaaaaa\", ".repeat(20_000) + "3");
    let said = said(&long);
    assert!(said.len() < 1_000 && said.contains("..."), "{} bytes", said.len());
    let lines: Vec<&str> = said.lines().collect();
    let caret = lines[3].find('^').unwrap();
    assert_eq!(lines[2].as_bytes()[caret], b'3', "{said}");
}

#[test]
fn choices_are_listed() {
    assert!(said("[routing]\npolicy = \"prefix_hash\"\n").contains("did you mean \"prefix-hash\"?"));
    assert!(said("[serve]\ndriver = \"uuring\"\n").contains(
        "\"uuring\" is not a choice here; the choices are \"auto\", \"uring\", \"epoll\"; did you mean \"uring\"?"
    ));
    let pool = said("[pool.x]\nload_percent = 150\npolicy = \"lest-load\"\n");
    assert!(pool.contains("w.toml:3:10:") && pool.contains("did you mean \"least-load\"?"), "{pool}");
}

/// What names a tenant may be its key.
#[test]
fn what_is_wrong_with_a_weight_shows_nobodys_key() {
    for (weights, place) in [
        ("weights = { \"Bearer sk-secret\" = 0 }\n", "3:"),
        ("weights = { \"Bearer sk-secret\" = \"3\" }\n", "3:"),
        ("weights = { \"Bearer sk-secret\" = }\n", "3:"),
        ("[queue.weights]\n\"Bearer sk-secret\" = 0\n", "4:"),
        ("[queue.weights]\n\"Bearer sk-secret\" = x\n", "4:"),
        ("weights = {\n  \"Bearer sk-secret\" = 0,\n}\n", "4:"),
        ("weigths = { \"Bearer sk-secret\" = 3 }\n", "3:"),
        ("weigths.\"Bearer sk-secret\" = 3\n", "3:"),
        ("[\"queue\".weights]\n\"Bearer sk-secret\" = x\n", "4:"),
        ("[queue.weights]\n\"Bearer sk-secret\" = 1\n\"Bearer sk-secret\" = 2\n", "5:"),
        // Those who forgot that there is a table of them.
        ("\"Bearer sk-secret\" = 3\n", "3:"),
        ("\"Bearer sk-secret\" = { weight = 3 }\n", "3:"),
    ] {
        let said = said(&format!("[queue]\ntenant_header = \"authorization\"\n{weights}"));
        assert!(said.contains(&format!("w.toml:{place}")) && !said.contains("secret"), "{said}");
    }
}

/// Nor does who writes the key of an engine itself, in place of the file that it stands in.
#[test]
fn the_key_of_an_engine_is_not_shown() {
    for (text, place) in [
        ("[[upstream]]\nurl = \"http://a:1\"\napi_key = \"sk-secret\"\n", "3:1"),
        ("[[upstream]]\nurl = \"http://a:1\"\n\"api key\" = \"sk-secret\"\n", "3:1"),
        ("[[upstream]]\nurl = \"http://a:1\"\nTOKEN = \"sk-secret\"\n", "3:1"),
        ("upstream = [{ url = \"http://a:1\", password = \"sk-secret\" }]\n", "1:35"),
        ("[control]\napi_key = \"sk-secret\"\n", "2:1"),
        ("[[upstream]]\nauthorization = \"Bearer sk-secret\"\n", "2:1"),
        ("[[upstream]]\nbearer = \"sk-secret\"\n", "2:1"),
        ("api_key = \"sk-secret\"\n", "1:1"),
    ] {
        let said = said(text);
        assert!(said.starts_with(&format!("w.toml:{place}: ")) && !said.contains("secret"), "{said}");
        assert!(said.contains("is kept in a file of its own, named by `api_key_file` of [[upstream]]"), "{said}");
    }
    for text in [
        "api_key = sk-secret\n",
        "url = \"http://a:1\"\napi_key: \"sk-secret\"\n",
        "url = \"http://a:1\"\n\"api-key\" \"sk=secret\"\n",
        "api_key = \"\"\"\nsk-secret\\x\n\"\"\"\n",
        "headers = { Authorization = \"Bearer sk-secret\" }\n",
        "api_key_file = [\"a\"]\napi_key = [\n\"sk-secret\" 3]",
    ] {
        let said = said(&format!("[[upstream]]\n{text}"));
        assert!(said.starts_with("w.toml:") && !said.contains("secret"), "{said}");
    }
    // What has such a word in its name is shown all the same.
    for line in ["first_token_timeout_ms = \"x\"", "queue = \"on\""] {
        let said = said(&format!("[limits]\n{line}\n"));
        assert!(said.contains(&format!("2 | {line}")), "{said}");
    }
}

/// What is only called as that table is shown.
#[test]
fn other_weights_are_shown() {
    let said = said("[pool.weights]\nload_percent = \"x\"\n");
    assert!(said.contains("`load_percent` wants a whole number") && said.contains("2 | load_percent"), "{said}");
    let behind = self::said("[routing]\nqueue = \"on\"\nload_percent = 50\n");
    assert!(behind.contains("3 | load_percent = 50"), "{behind}");
}

/// A key that exists, in a table that it does not belong to, is not taken for a slip of another one's name.
#[test]
fn keys_in_another_table_are_sent_home() {
    let example: toml::Table = EXAMPLE.parse().unwrap();
    let written = |name: &str| if name == "upstream" { "[[upstream]]".to_owned() } else { format!("[{name}]") };
    let keys = |table: &str| {
        let value = &example[table];
        value.as_table().or_else(|| value.as_array()?.first()?.as_table()).unwrap()
    };
    let mut seen = 0;
    for home in example.keys() {
        for key in keys(home).keys() {
            let homes: Vec<&String> = example.keys().filter(|table| keys(table).contains_key(key)).collect();
            for other in example.keys().filter(|other| !homes.contains(other)) {
                let said = said(&format!("{}\n{key} = 1\n", written(other)));
                let named = homes.iter().any(|home| said.contains(&format!("it belongs to {}", written(home))));
                assert!(said.contains(&format!("`{key}` is not")) && named, "{key} in {other}: {said}");
                seen += 1;
            }
        }
    }
    assert!(seen > 500, "{seen}");
    let near = said("[control]\nprobe_timeout_ms = 1\n");
    assert!(near.contains("it belongs to [health]; or did you mean `scrape_timeout_ms`?"), "{near}");
}

/// Dots make tables of what is not in quotes.
#[test]
fn the_name_of_a_model_stands_in_quotes() {
    for (text, place) in
        [("[pool.llama-3.1-8b]\npolicy = \"session\"\n", "1:15"), ("pool.llama-3.1-8b.policy = \"session\"\n", "1:14")]
    {
        let said = said(text);
        assert!(said.contains("needs quotes: write [pool.\"llama-3.1-8b\"]"), "{said}");
        assert!(said.starts_with(&format!("w.toml:{place}: ")), "{said}");
    }
    assert!(said("[pool.a.b.c.d]\nload_percent = 150\n").contains("write [pool.\"a.b.c.d\"]"));
    assert!(
        said("[pool]\npolicy = \"warm\"\n")
            .contains("2:10: `policy` is for one model: write it below [pool.\"SERVED-ID\"]")
    );
    assert!(said("[pool]\nm = \"warm\"\n").contains("`m` wants a table, not a text"));
}

/// What a flag has no part in stands in the file.
#[test]
fn faults_of_all_of_a_file_are_said_with_their_place() {
    let path = std::env::temp_dir().join(format!("warmfront-whole-{}.toml", std::process::id()));
    let engine = |url: &str| format!("[[upstream]]\nurl = \"http://{url}:1\"\nkv_events = \"tcp://*:5557\"\n");
    let shadow = "[routing]\npolicy = \"warm\"\nshadow_policy = \"warm\"\n";
    let with = |flags: Flags, text: &str| {
        std::fs::write(&path, text).unwrap();
        Config::load(&Flags { file: Some(path.clone()), ..flags }).unwrap_err().to_string()
    };
    let name = path.display();
    let upstream = || Flags { upstream: vec!["http://127.0.0.1:8000".into()], ..Flags::default() };
    let precise = Flags { policy: Some(Policy::Precise), ..Flags::default() };
    for (flags, text, begin, words) in [
        (
            Flags::default(),
            engine("a") + &engine("b"),
            format!("{name}:6:13: "),
            "`kv_events` of b:1 is tcp://*:5557, a port at which to wait for this engine alone, but that of a:1 is",
        ),
        (
            Flags::default(),
            "[[upstream]]\nurl = \"http://127.0.0.1:8000\"\n".into(),
            format!("{name}:2:7: "),
            "is this front itself",
        ),
        // Its engine is not the file's.
        (
            upstream(),
            "[[upstream]]\nurl = \"http://a:1\"\n".into(),
            "http://127.0.0.1:8000 is".into(),
            "this front itself",
        ),
        (
            Flags { admin: "127.0.0.1:8000".parse().ok(), ..Flags::default() },
            "[serve]\nadmin = \"127.0.0.1:1\"\n[[upstream]]\nurl = \"http://a:1\"\n".into(),
            "`admin` is 127.0.0.1:8000 and `listen` 0.0.0.0:8000".into(),
            "give the admin listener another port",
        ),
        (
            precise,
            format!("{shadow}[[upstream]]\nurl = \"http://a:1\"\n"),
            format!("{name}:3:17: `shadow_policy` is \"warm\", which cannot be compared with \"precise\""),
            "3 | shadow_policy",
        ),
        (Flags::default(), String::new(), "no engine to forward to".into(), "--upstream"),
    ] {
        let said = with(flags, &text);
        assert!(said.starts_with(&begin) && said.contains(words), "{text}: {said}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn impossible_values_are_refused() {
    for (text, place, words) in [
        ("[serve]\nshards = 0\n", "2:10", "`shards` cannot be 0"),
        ("[serve]\nshards = 1025\n", "2:10", "`shards` cannot be above 1024"),
        (
            "[control]\nscrape_interval_ms = 5000\nstale_after_ms = 5500\n",
            "3:18",
            "`stale_after_ms` must be above 5500",
        ),
        (
            "[limits]\ndrain_timeout_ms = 9223372036854775807\n",
            "2:20",
            "`drain_timeout_ms` cannot be above 2678400000, 31 days",
        ),
        ("[queue]\ntimeout_ms = 18446744073709552\n", "2:14", "`timeout_ms` cannot be above"),
        ("[queue]\ntimeout_ms = 0\n", "2:14", "`timeout_ms` cannot be 0"),
        ("[queue]\nwaiting_max = 0\n", "2:15", "`waiting_max` cannot be 0"),
        ("[queue]\nwaiting_max = 4097\n", "2:15", "`waiting_max` cannot be above 4096"),
        ("[queue]\ntenant_header = \"x tenant\"\n", "2:17", "\"x tenant\" is not a header name"),
        ("[queue]\nweights = { a = 2 }\n", "2:11", "no `tenant_header` says which header field"),
        (
            "[queue]\ntenant_header = \"x-tenant\"\nweights = { a = 1001 }\n",
            "3:17",
            "the weight of this tenant is 1001; write 1 to 1000",
        ),
        ("[serve]\nallowed_origins = [\"https://a/\"]\n", "2:19", "ends in a slash"),
        ("[serve]\nlisten = []\n", "2:10", "`listen` is empty"),
        ("[serve]\npaths = [\"metrics\"]\n", "2:9", "\"metrics\" is not a path"),
        ("[serve]\nexplain_from = [\"10.0.0.0/40\"]\n", "2:16", "more than 32 bits"),
        ("[limits]\nhold_bytes = 2000\nbody_bytes_max = 1000\n", "2:14", "cannot be above `body_bytes_max` (1000)"),
        ("[limits]\nhead_bytes_max = 65537\n", "2:18", "cannot be above 65536"),
        ("[limits]\nhead_fields_max = 1001\n", "2:19", "`head_fields_max` cannot be above 1000"),
        ("[limits]\nread_ahead_bytes = 65537\n", "2:20", "`read_ahead_bytes` cannot be above 65536"),
        (
            "[limits]\nbody_bytes_max = 18446744073709551615\nconnect_timeout_ms = 0\n",
            "2:18",
            "`body_bytes_max` cannot be above 9223372036854775807",
        ),
        ("[health]\nprobe_timeout_ms = 0xFFFF_FFFF_FFFF_FFFF\n", "2:20", "`probe_timeout_ms` cannot be above"),
        ("[limits]\nconnect_timeout_ms = 0\n", "2:22", "`connect_timeout_ms` cannot be 0"),
        ("[limits]\nconnect_tries_max = 9\n", "2:21", "cannot be above 8"),
        ("[limits]\nretry_percent = 101\n", "2:17", "at most 100"),
        ("[routing]\nload_percent = 99\n", "2:16", "`load_percent` is 99"),
        ("[routing]\nreplication = 0\n", "2:15", "`replication` is 0"),
        (
            "[routing]\nsession_fields = [\"user\", \"cache_salt\"]\n",
            "2:18",
            "\"cache_salt\" is read for another purpose",
        ),
        ("[routing]\nsession_fields = [\"metadata.user_id\"]\n", "2:18", "would be within another field"),
        (
            "[routing]\nsession_fields = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\", \"i\"]\n",
            "2:18",
            "`session_fields` cannot name more than 8 fields",
        ),
        ("[routing]\nsession_headers = [\"x session\"]\n", "2:19", "\"x session\" is not a header name"),
        ("[pool.x]\nload_percent = 50\n", "2:16", "`load_percent` is 50"),
        ("[pool.x]\nprefix = \"conversation\"\n", "2:10", "`prefix` is the same for all pools"),
        ("[pool.x]\nprefix_chars = 9\n", "2:16", "`prefix_chars` is the same for all pools"),
        ("[pool.x]\nprefix_bytes = 9\n", "2:16", "set it in [routing]"),
        ("[pool.x]\nsession_headers = []\n", "2:19", "`session_headers` is the same for all pools"),
        ("[pool.x]\nsession_fields = []\n", "2:18", "`session_fields` is the same for all pools"),
        (
            "[routing]\nshadow_policy = \"wram\"\n",
            "2:17",
            "`shadow_policy` is \"off\" or the name of a policy (random, ",
        ),
        ("[pool.x]\nshadow_policy = \"on\"\n", "2:17", "not \"on\""),
        (
            "[routing]\nshadow_policy = \"session\"\nsession_headers = []\nsession_fields = []\n",
            "2:17",
            "\"session\" needs `session_headers` or `session_fields`",
        ),
        ("[health]\nfailures_down = 0\n", "2:17", "`failures_down` cannot be 0"),
        ("[health]\neject_ms = 0\n", "2:12", "`eject_ms` cannot be 0"),
        ("[health]\neject_ms = 2000\neject_ms_max = 1000\n", "3:16", "less than `eject_ms` (2000)"),
        ("[health]\nslow_start_ms = 3600001\n", "2:17", "`slow_start_ms` cannot be above 3600000"),
        ("[health]\npath = \"health\"\n", "2:8", "\"health\" is not a path"),
        ("[[upstream]]\nurl = \"http://a:1\"\nconcurrency_max = -1\n", "3:19", "cannot be negative"),
        ("[log]\nlevel = \"loud=x=y\"\n", "2:9", "nothing is logged by \"loud\""),
        ("[log]\nlevel = \"inof\"\n", "2:9", "did you mean \"info\"?"),
        ("[log]\nlevel = \"\"\n", "2:9", "\"\" is not a log level"),
        ("[log]\naccess = \"access.log\"\n", "2:10", "the whole path of a file"),
        ("[control]\ncaches_file = \"caches\"\n", "2:15", "is the whole path of a file, or \"\" for none, not"),
        ("[control]\npublish_interval_ms = 5001\n", "2:23", "`publish_interval_ms` cannot be above 5000"),
        ("[log]\nreceipts = 65537\n", "2:12", "`receipts` cannot be above 65536"),
        ("[log]\naccess_format = \"jsonl\"\n", "2:17", "did you mean \"json\"?"),
        ("[[upstream]]\nurl = \"http://a:1\"\nweight = 0\n", "3:10", "`weight` cannot be 0"),
        ("[[upstream]]\nurl = \"http://a:1\"\nweight = 101\n", "3:10", "`weight` cannot be above 100"),
        ("[[upstream]]\nurl = \"https://a:1\"\n", "2:7", "asks for TLS"),
        (
            "[[upstream]]\nurl = \"http://a:1\"\n[[upstream]]\nurl = \"http://a:1\"\n",
            "4:7",
            "the 1st and the 2nd [[upstream]] have the same `url`, http://a:1; a server of several data-parallel ranks is named once",
        ),
        ("[[upstream]]\nurl = \"http://a:1\"\nranks = 0\n", "3:9", "`ranks` cannot be 0; leave it out"),
        ("[[upstream]]\nurl = \"http://a:1\"\nranks = 65\n", "3:9", "`ranks` cannot be above 64; where more are"),
        (
            "[[upstream]]\nurl = \"http://a:1\"\nranks = 3\nkv_events = \"tcp://a:65534\"\n",
            "3:9",
            "`ranks` is 3, and tcp://a:65534 is the first rank's",
        ),
        (
            "[[upstream]]\nurl = \"http://a:1\"\nranks = 2\n[[upstream]]\nurl = \"http://b:1\"\nname = \"a:1@1\"\n",
            "6:8",
            "both called \"a:1@1\"",
        ),
        (
            "[[upstream]]\nurl = \"http://a:1\"\nname = \"a\\u001bb\"\n",
            "3:8",
            "`name` \"a\\u{1b}b\" has control characters",
        ),
        (
            "[[upstream]]\nurl = \"http://a:1\"\nname = \"x\"\n[[upstream]]\nurl = \"http://b:1\"\nname = \"x\"\n",
            "6:8",
            "both called \"x\"",
        ),
        ("[[upstream]]\nname = \"x\"\n", "1:1", "url"),
    ] {
        let said = said(text);
        assert!(said.starts_with(&format!("w.toml:{place}: ")) && said.contains(words), "{text}\n{said}");
    }
}

/// One more would be in the configuration, and get no seat.
#[test]
fn no_more_engines_are_taken_than_there_are_seats() {
    let of = |count: usize| {
        said(&(0..count).map(|at| format!("[[upstream]]\nurl = \"http://gpu-{at}:8000\"\n")).collect::<String>())
    };
    assert_eq!(of(1024), "accepted");
    let refused = of(1025);
    assert!(refused.contains("there can be at most 1024 [[upstream]]s"), "{refused}");
    let ranks = |count: usize| {
        said(
            &(0..count)
                .map(|at| format!("[[upstream]]\nurl = \"http://gpu-{at}:1\"\nranks = 64\n"))
                .collect::<String>(),
        )
    };
    assert_eq!(ranks(16), "accepted");
    let refused = ranks(17);
    assert!(refused.contains("at most 1024 ranks of all [[upstream]]s together, not 1088"), "{refused}");
}

/// Where 0 switches something off, it is taken; elsewhere it would stop all traffic.
#[test]
fn limits_that_may_be_0_are_these() {
    let example: toml::Table = EXAMPLE.parse().unwrap();
    let keys = example["limits"].as_table().unwrap().keys();
    let mut taken: Vec<&String> = keys.filter(|key| said(&format!("[limits]\n{key} = 0\n")) == "accepted").collect();
    taken.sort();
    assert_eq!(
        taken,
        [
            "budget_bytes",
            "drain_delay_ms",
            "drain_timeout_ms",
            "failed_charge_ms",
            "idle_upstreams_max",
            "index_bytes",
            "interim_replies_max",
            "linger_bytes_max",
            "linger_timeout_ms",
            "read_ahead_bytes",
            "retry_percent",
            "upload_bytes_per_second_min",
            "upload_grace_ms",
        ]
    );
}

/// Where an engine's events are is said whole, or left to the engine.
#[test]
fn keys_of_events_belong_together() {
    let of = |keys: &str| Config::parse(&format!("[[upstream]]\nurl = \"http://a:1\"\n{keys}"), Path::new("w.toml"));
    let source =
        |keys: &str| of(keys).map(|config| config.upstream[0].kv_source().unwrap()).map_err(|why| why.to_string());
    for keys in ["", "kv_events = \"off\"", "kv_events = \"told\""] {
        assert_eq!(source(keys), Ok(None), "{keys}");
    }
    let there = source("kv_events = \"tcp://a:2\"\nkv_replay = \"tcp://a:3\"\nkv_topic = \"kv\"").unwrap().unwrap();
    assert_eq!((there.events.port, there.replay.unwrap().port, &*there.topic), (2, 3, "kv"));
    for (keys, why) in [
        ("kv_replay = \"tcp://a:3\"", "with \"auto\" the engine tells all three"),
        ("kv_events = \"told\"\nkv_topic = \"x\"", "with \"told\" the engine tells all three"),
        ("kv_events = \"off\"\nkv_topic = \"x\"", "which is missing"),
        ("kv_events = \"ipc:///x\"", "publish over TCP"),
        ("kv_events = \"tcp://a:2\"\nkv_replay = \"a\"", "kv_replay"),
    ] {
        let said = source(keys).unwrap_err();
        assert!(said.contains(why), "{keys}: {said}");
    }
    // Whichever of the two a pool has from elsewhere.
    for both in [
        "[routing]\npolicy = \"precise\"\nshadow_policy = \"warm\"\n",
        "[routing]\npolicy = \"prefix-hash\"\nshadow_policy = \"warm\"\n[pool.x]\npolicy = \"precise\"\n",
        "[routing]\npolicy = \"warm\"\n[pool.x]\nshadow_policy = \"precise\"\n",
    ] {
        assert!(
            said(both).contains("`shadow_policy` is") && said(both).contains("one index"),
            "{both}: {}",
            said(both)
        );
    }
    // What all have from there is said once.
    let said = said("[routing]\nload_percent = 50\n[pool.x]\npolicy = \"random\"\n");
    assert_eq!(said.matches("`load_percent` is 50").count(), 1, "{said}");
}

/// What is read of a body, and whether there is an index, follows from the policies that look on as well.
#[test]
fn a_pool_is_compared_with_a_policy_of_its_own() {
    let parsed = |text: &str| Config::parse(text, Path::new("w.toml")).unwrap();
    let base = "[routing]\npolicy = \"prefix-hash\"\n";
    for (text, routing, x) in [
        ("", None, None),
        ("shadow_policy = \"off\"\n", None, None),
        ("shadow_policy = \"\"\n[pool.x]\nload_percent = 150\n", None, None),
        ("shadow_policy = \"warm\"\n[pool.x]\nload_percent = 150\n", Some(Policy::Warm), Some(Policy::Warm)),
        ("shadow_policy = \"warm\"\n[pool.x]\nshadow_policy = \"off\"\n", Some(Policy::Warm), None),
        ("[pool.x]\nshadow_policy = \"warm\"\n", None, Some(Policy::Warm)),
        ("[pool.x]\nshadow_policy = \"random\"\n", None, Some(Policy::Random)),
    ] {
        let config = parsed(&format!("{base}{text}"));
        assert_eq!((config.routing.shadow_policy.0, config.settings_for("x").shadow_policy.0), (routing, x), "{text}");
        let looks = [routing, x].contains(&Some(Policy::Warm));
        assert_eq!((config.counts_tokens(), config.plan().chain), (looks, looks), "{text}");
    }
    let keys = |text: &str| {
        let Plain { chosen, shadow } = parsed(text).plan().plain;
        (chosen, shadow)
    };
    for (text, chosen, shadow) in [
        ("[routing]\npolicy = \"prefix-hash\"\nshadow_policy = \"random\"\n", false, false),
        // The chain is for the one that looks on.
        ("[routing]\npolicy = \"prefix-hash\"\nshadow_policy = \"warm\"\n", true, false),
        ("[routing]\npolicy = \"warm\"\nshadow_policy = \"warm\"\n", false, false),
        // In place of `warm` it would have none.
        ("[routing]\npolicy = \"warm\"\nshadow_policy = \"prefix-hash\"\n", false, true),
        ("[routing]\npolicy = \"warm\"\nshadow_policy = \"least-load\"\n", false, false),
        // Another pool's requests ask for it.
        ("[routing]\npolicy = \"warm\"\n[pool.x]\npolicy = \"prefix-hash\"\n", true, false),
        ("[routing]\npolicy = \"prefix-hash\"\n[pool.x]\npolicy = \"warm\"\n", true, false),
        ("[routing]\npolicy = \"warm\"\n[pool.x]\nshadow_policy = \"prefix-hash\"\n", false, true),
        ("[routing]\npolicy = \"warm\"\n[pool.x]\npolicy = \"random\"\nshadow_policy = \"prefix-hash\"\n", false, true),
    ] {
        assert_eq!(keys(text), (chosen, shadow), "{text}");
    }
}

#[test]
fn all_faults_are_said_at_once() {
    let said = said("[serve]\nshards = 0\n[limits]\nhead_fields_max = 0\n");
    assert!(said.contains("`shards` cannot be 0") && said.contains("`head_fields_max` cannot be 0"), "{said}");
}

#[test]
fn flags_win() {
    let flags = Flags {
        upstream: vec!["http://b:2".into()],
        shards: Some(Shards::Count(3)),
        policy: Some(Policy::Random),
        access: Some(Access::Stdout),
        access_chain: true,
        ..Flags::default()
    };
    let config = Config::load(&flags).unwrap();
    assert_eq!(config.upstream[0].url.to_string(), "http://b:2");
    assert_eq!((config.serve.shards, config.routing.policy), (Shards::Count(3), Policy::Random));
    assert_eq!(config.log.access, Access::Stdout);
    assert!(config.log.access_chain);
    let none = Config::load(&Flags::default()).unwrap_err().to_string();
    assert!(none.contains("--upstream http://HOST:PORT"), "{none}");
    let tls = Config::load(&Flags { upstream: vec!["https://b".into()], ..Flags::default() }).unwrap_err().to_string();
    assert!(tls.contains("TLS"), "{tls}");
    let missing = Flags { file: Some("/nonexistent/w.toml".into()), ..Flags::default() };
    assert!(Config::load(&missing).unwrap_err().to_string().contains("cannot read /nonexistent/w.toml"));
}

/// A policy is one for every pool, whatever else these have of their own; what no flag names is the file's.
#[test]
fn flags_win_over_what_pools_have_of_their_own() {
    let path = std::env::temp_dir().join(format!("warmfront-pools-{}.toml", std::process::id()));
    let text = "[log]\naccess_chain = true\n[pool.m]\npolicy = \"session\"\nload_percent = 150\n\
                [[upstream]]\nurl = \"http://a:1\"\n";
    std::fs::write(&path, text).unwrap();
    let with = |flags: Flags| Config::load(&Flags { file: Some(path.clone()), ..flags }).unwrap();
    let policies = |config: &Config| [config.routing.policy, config.settings_for("m").policy];
    let (plain, flagged) = (with(Flags::default()), with(Flags { policy: Some(Policy::Random), ..Flags::default() }));
    std::fs::remove_file(&path).unwrap();
    assert_eq!([&plain, &flagged].map(policies), [[Policy::Warm, Policy::Session], [Policy::Random; 2]]);
    assert_eq!(flagged.settings_for("m").load_percent, 150);
    assert!(plain.log.access_chain && flagged.log.access_chain);
}
