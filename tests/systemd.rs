//! The units: systemd reads them without complaint, and finds little that an attacker in the service could do. The
//! package: what it is made of is there. systemd/try/run.sh installs and runs them.

#[path = "relay/untested.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod untested;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// `systemd-analyze security` gives 0 to what can do nothing and 10 to what may do all; Debian's own proxies have 9.6.
const EXPOSURE_MAX: &str = "16";

/// The unit with the binary of this build in the place of the installed one, for systemd to find it.
fn unit(name: &str) -> PathBuf {
    let shipped = shipped("systemd/warmfront.service");
    assert!(shipped.contains("ExecStart=/usr/bin/warmfront serve"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("warmfront.service");
    fs::write(&path, shipped.replace("/usr/bin/warmfront", env!("CARGO_BIN_EXE_warmfront"))).unwrap();
    fs::write(folder.join("warmfront.socket"), self::shipped("systemd/warmfront.socket")).unwrap();
    path
}

fn shipped(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether `systemd-analyze` succeeds, and what it says; `None` where it is not installed, as in most containers.
fn analyze(args: &[&str], subjects: &[impl AsRef<OsStr>]) -> Option<(bool, String)> {
    let output = match Command::new("systemd-analyze").args(args).args(subjects).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            untested::say(
                "what systemd says of the units, as there is no systemd-analyze (Debian: apt-get install systemd)",
            );
            return None;
        }
        output => output.expect("systemd-analyze runs"),
    };
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn systemd_reads_the_units_without_complaint() {
    let service = unit("verify");
    for unit in [service.with_extension("socket"), service] {
        let Some((succeeded, text)) = analyze(&["verify"], &[unit]) else { return };
        assert!(succeeded && text.trim().is_empty(), "{text}");
    }
}

#[test]
fn the_unit_exposes_little() {
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let Some((succeeded, text)) = analyze(&["security", "--offline=true", &threshold], &[unit("security")]) else {
        return;
    };
    assert!(succeeded, "{}", text.lines().last().unwrap_or_default());
}

/// A status that a restart cannot mend is not tried again: systemd would go on for ever.
#[test]
fn what_does_not_mend_itself_is_not_tried_again() {
    let statuses = |unit: &str| {
        let shipped = shipped(unit);
        shipped.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus=")).unwrap().to_owned()
    };
    // Statuses in a drop-in are added to those of the unit.
    let statuses = statuses("systemd/warmfront.service") + " " + &statuses("tuning/realtime.conf");
    assert_eq!(statuses, "78 203 217 218 226 228 238 240 243 214");
    let names =
        "CONFIG EXEC USER CAPABILITIES NAMESPACE SECCOMP STATE_DIRECTORY LOGS_DIRECTORY CREDENTIALS SETSCHEDULER";
    let Some((_, said)) = analyze(&["exit-status"], &names.split(' ').collect::<Vec<_>>()) else { return };
    let numbers: Vec<&str> = said.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(numbers.join(" "), statuses, "{said}");
}

/// By default systemd ends the service with any of its processes that the kernel kills for want of memory, and journald
/// drops lines of a front that writes one for each request.
#[test]
fn the_unit_overrules_defaults_that_would_cost_clients_or_lines() {
    let service = shipped("systemd/warmfront.service");
    for line in ["OOMPolicy=continue", "LogRateLimitIntervalSec=1s", "LogRateLimitBurst=1000000"] {
        assert!(service.lines().any(|found| found == line), "{line}");
    }
}

/// Each client may have an engine's connection beside its own.
#[test]
fn the_unit_has_descriptors_for_32_full_shards() {
    let service = shipped("systemd/warmfront.service");
    let limit = service.lines().find_map(|line| line.strip_prefix("LimitNOFILE=")).unwrap();
    let documented: toml::Table = shipped("systemd/warmfront.toml").parse().unwrap();
    let clients = documented["limits"]["connections_max"].as_integer().unwrap();
    // Added are the descriptors that the shards and the process have open before the first client.
    assert_eq!(limit.parse(), Ok(2 * 32 * clients + 64 + 31 * 5));
}

/// A socket elsewhere would be closed by the front, which would open the default one beside.
#[test]
fn the_socket_is_where_the_front_listens() {
    let socket = shipped("systemd/warmfront.socket");
    let listens: Vec<&str> = socket.lines().filter_map(|line| line.strip_prefix("ListenStream=")).collect();
    let documented: toml::Table = shipped("systemd/warmfront.toml").parse().unwrap();
    let default: Vec<&str> =
        documented["serve"]["listen"].as_array().unwrap().iter().map(|address| address.as_str().unwrap()).collect();
    assert_eq!(listens, default);
}

/// Building the package needs cargo-deb; that its parts are there is tested without.
#[test]
fn what_the_package_is_made_of_is_there() {
    let manifest: toml::Table = shipped("Cargo.toml").parse().unwrap();
    let deb = &manifest["package"]["metadata"]["deb"];
    let assets: Vec<&str> = deb["assets"].as_array().unwrap().iter().map(|asset| asset[0].as_str().unwrap()).collect();
    assert!(assets.contains(&"target/release/warmfront"));
    for asset in assets.into_iter().filter(|asset| !asset.starts_with("target/")) {
        assert!(!shipped(asset).is_empty(), "{asset}");
    }
    let scripts = deb["maintainer-scripts"].as_str().unwrap();
    for script in ["postinst", "postrm"] {
        // cargo-deb puts the parts for systemd in the place of this mark.
        let text = shipped(&format!("{scripts}/{script}"));
        assert!(text.starts_with("#!/bin/sh\n") && text.contains("\n#DEBHELPER#\n"), "{script}");
    }
    let units = &deb["systemd-units"];
    for never in ["enable", "start"] {
        assert_eq!(units[never].as_bool(), Some(false), "{never}: there is no front before its engines are named");
    }
}

/// If the front fails to upgrade, dpkg goes on all the same, and it is said that the old program still runs.
#[test]
fn an_upgrade_of_the_package_does_not_fail_with_the_front() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("postinst-{}", std::process::id()));
    let programs = folder.join("bin");
    fs::create_dir_all(&programs).unwrap();
    let asked = folder.join("asked");
    let systemctl = format!(
        "#!/bin/sh\necho \"$@\" >>{asked}\ncase $1 in\n\
         kill) exit $KILLED ;;\n\
         show) [ \"$(grep -c ^show {asked})\" -gt 1 ] && echo \"$AFTER\" || echo 10 ;;\nesac\n",
        asked = asked.display()
    );
    for (name, script) in [("systemctl", &*systemctl), ("sleep", "#!/bin/sh\n")] {
        use std::os::unix::fs::PermissionsExt;
        fs::write(programs.join(name), script).unwrap();
        fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = shipped("systemd/debian/postinst").replace("/run/systemd/system", &folder.display().to_string());
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    for (killed, after, is_said) in [("0", "11", false), ("1", "0", false), ("0", "10", true)] {
        let _ = fs::remove_file(&asked);
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "postinst", "configure", "0.0.9"]);
        let output = shell.env("PATH", &path).env("KILLED", killed).env("AFTER", after).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.contains("no new process") == is_said, "{killed} {after}: {said}");
        let asked = fs::read_to_string(&asked).unwrap();
        assert!(asked.contains("kill --kill-who=main --signal=SIGUSR2 warmfront.service\n"), "{asked}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// The configuration that the package installs names no engine, and is right but for that.
#[test]
fn what_is_installed_wants_engines_and_nothing_else() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/debian/warmfront.toml");
    let checked = |flags: &[&str]| {
        let check = ["check", "--quiet", "--no-engines", "--no-ports", "--config", file];
        Command::new(env!("CARGO_BIN_EXE_warmfront")).args(check).args(flags).output().unwrap()
    };
    let without = checked(&[]);
    assert_eq!(without.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&without.stderr).contains("no engine to forward to"));
    let with = checked(&["--upstream", "http://127.0.0.1:1"]);
    assert!(with.status.success() && with.stdout.is_empty() && with.stderr.is_empty(), "{with:?}");
}

/// An upgrade of the package replaces the running process by another, which has to know what the old one knew.
#[test]
fn what_is_installed_keeps_what_is_known_of_caches_where_the_unit_may_write() {
    let installed = shipped("systemd/debian/warmfront.toml");
    assert!(installed.contains("[control]\n") && installed.contains("\ncaches_file = \"/var/lib/warmfront/caches\"\n"));
    assert!(shipped("systemd/warmfront.service").contains("\nStateDirectory=warmfront\n"));
}

/// Behind a socket unit each client that waits starts the front again, and systemd gives up a socket that starts twenty
/// in 2 s.
#[test]
fn a_start_behind_a_socket_that_is_refused_takes_its_time() {
    let front = env!("CARGO_BIN_EXE_warmfront");
    let refused = |variables: &str| {
        let since = Instant::now();
        let command = format!("{variables} exec {front} serve");
        let status = Command::new("sh").args(["-c", &command]).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(78), "{variables}");
        since.elapsed()
    };
    assert!((0..5).any(|_| refused("") < Duration::from_secs(1)));
    assert!(refused("LISTEN_FDS=1 LISTEN_PID=$$") >= Duration::from_secs(1));
}
