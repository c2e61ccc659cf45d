//! The unit: systemd reads it without complaint, and finds little that an attacker in it could do.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// `systemd-analyze security` gives 0 to what can do nothing and 10 to what may do all; Debian's own proxies have 9.6.
const EXPOSURE_MAX: &str = "16";

/// The unit with the binary of this build in the place of the installed one, for systemd to find it.
fn unit(name: &str) -> PathBuf {
    let shipped = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/warmfront.service")).unwrap();
    assert!(shipped.contains("ExecStart=/usr/bin/warmfront serve"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("warmfront.service");
    fs::write(&path, shipped.replace("/usr/bin/warmfront", env!("CARGO_BIN_EXE_warmfront"))).unwrap();
    path
}

/// What `systemd-analyze` says; `None` where there is none, as in most containers.
fn analyze(args: &[&str], unit: &PathBuf) -> Option<(bool, String)> {
    let output = match Command::new("systemd-analyze").args(args).arg(unit).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("not tried: there is no systemd-analyze (Debian: apt-get install systemd)");
            return None;
        }
        output => output.expect("systemd-analyze runs"),
    };
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn systemd_reads_the_unit_without_complaint() {
    let Some((succeeded, text)) = analyze(&["verify"], &unit("verify")) else { return };
    assert!(succeeded && text.trim().is_empty(), "{text}");
}

#[test]
fn the_unit_exposes_little() {
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let Some((succeeded, text)) = analyze(&["security", "--offline=true", &threshold], &unit("security")) else {
        return;
    };
    assert!(succeeded, "{}", text.lines().last().unwrap_or_default());
}
