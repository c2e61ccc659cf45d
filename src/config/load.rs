//! Where a configuration comes from: the file, and flags, which win over it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::{Access, Config, Driver, Invalid, Problem, Shards, Upstream, shape, validate};
use crate::policy::Policy;

/// Flags of `serve`, `check` and `explain`: the file with the configuration, and keys that win over it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// TOML file; examples/warmfront.toml in /usr/share/doc/warmfront, or systemd/warmfront.toml of the sources, shows
    /// every key with its default. Flags win over it.
    #[arg(long = "config", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Address that clients connect to, such as 0.0.0.0:8000; may be given several times.
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub listen: Vec<SocketAddr>,
    /// An engine, such as http://gpu-1:8000; may be given several times, and replaces those of the file.
    #[arg(long, value_name = "URL")]
    pub upstream: Vec<String>,
    /// How requests are spread, in every pool.
    #[arg(long, value_name = "NAME", value_enum)]
    pub policy: Option<Policy>,
    /// How many pinned threads serve; `auto`: one for each physical core, within the cgroup's CPU quota.
    #[arg(long, value_name = "N")]
    pub shards: Option<Shards>,
    /// The kernel's interface for network I/O; `auto`: io_uring if its self-test passes, else epoll.
    #[arg(long, value_name = "NAME", value_enum)]
    pub driver: Option<Driver>,
    /// Address of the admin listener, which shows metrics and fleet, and changes the fleet without a key: never make it
    /// public.
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub admin: Option<SocketAddr>,
    /// Where each finished request gets a line: `off`, `stdout`, or the whole path of a file. Prompts are never in it.
    #[arg(long = "access-log", value_name = "WHERE")]
    pub access: Option<Access>,
    /// Add hashes of each prompt to its line in the access log, one for each 512 bytes with all before;
    /// only `warm` and `precise` make them, as `policy` or as `shadow_policy`.
    #[arg(long)]
    pub access_chain: bool,
}

/// Parses an address in a flag.
///
/// # Errors
/// How to write one.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write it as IP:PORT, such as 0.0.0.0:8000 or [::1]:8000".into())
}

impl Flags {
    /// Whether these flags set the key at `path`, whatever the file says.
    fn set(&self, path: &[String]) -> bool {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["upstream", ..] => !self.upstream.is_empty(),
            ["serve", "listen"] => !self.listen.is_empty(),
            ["serve", "admin"] => self.admin.is_some(),
            ["serve", "shards"] => self.shards.is_some(),
            ["routing", "policy"] | ["pool", _, "policy"] => self.policy.is_some(),
            _ => false,
        }
    }
}

/// A configuration that was read and is not yet checked as a whole.
#[derive(Clone, Debug)]
pub struct Read {
    /// Defaults, then the file, then the flags.
    pub config: Config,
    file: Option<(PathBuf, String)>,
    flags: Flags,
}

impl Read {
    /// This configuration, if there is nothing wrong with it.
    ///
    /// # Errors
    /// All its faults, each with its place in the file if it has one there.
    pub fn checked(self) -> Result<Config, Invalid> {
        let Read { config, file, flags } = self;
        let mut problems = validate::whole(&config);
        match file {
            _ if problems.is_empty() => Ok(config),
            None => Err(Invalid::outside_file(problems)),
            Some((path, text)) => {
                if let Ok(tree) = shape::check(&text) {
                    for problem in problems.iter_mut().filter(|problem| !flags.set(&problem.path)) {
                        problem.span = shape::locate(&tree, &problem.path);
                    }
                }
                Err(Invalid::beside_file((path, text), problems))
            }
        }
    }
}

impl Config {
    /// Defaults, then the file, then the flags; or everything that is wrong with them.
    pub fn load(flags: &Flags) -> Result<Config, Invalid> {
        Config::read(flags)?.checked()
    }

    /// Reads defaults, then the file, then the flags, without checking them as a whole.
    pub fn read(flags: &Flags) -> Result<Read, Invalid> {
        let file = flags.file.as_deref().map(text_of).transpose()?;
        let mut config = match &file {
            Some((path, text)) => Config::parse(text, path)?,
            None => Config::default(),
        };
        let problems = config.apply(flags);
        if problems.is_empty() {
            Ok(Read { config, file, flags: flags.clone() })
        } else {
            Err(Invalid::outside_file(problems))
        }
    }

    /// Reads the configuration in `text`, the content of `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Config, Invalid> {
        let tree = shape::check(text).map_err(|problems| Invalid::in_file(path, text, problems))?;
        let config: Config =
            toml::from_str(text).map_err(|error| Invalid::in_file(path, text, vec![Problem::from_toml(&error)]))?;
        let mut problems = validate::values(&config);
        for problem in &mut problems {
            problem.span = shape::locate(&tree, &problem.path);
        }
        if problems.is_empty() { Ok(config) } else { Err(Invalid::in_file(path, text, problems)) }
    }

    /// This configuration, if there is nothing wrong with it.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn checked(self) -> Result<Config, Invalid> {
        let problems = validate::whole(&self);
        if problems.is_empty() { Ok(self) } else { Err(Invalid::outside_file(problems)) }
    }

    fn apply(&mut self, flags: &Flags) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !flags.listen.is_empty() {
            self.serve.listen.clone_from(&flags.listen);
        }
        if !flags.upstream.is_empty() {
            self.upstream.clear();
            for url in &flags.upstream {
                match url.parse() {
                    Ok(url) => self.upstream.push(Upstream::new(url)),
                    Err(why) => problems.push(Problem::new(["--upstream"], why)),
                }
            }
        }
        if let Some(policy) = flags.policy {
            self.routing.policy = policy;
            self.pool.values_mut().for_each(|differs| drop(differs.remove("policy")));
        }
        self.serve.shards = flags.shards.unwrap_or(self.serve.shards);
        self.serve.driver = flags.driver.unwrap_or(self.serve.driver);
        self.serve.admin = flags.admin.unwrap_or(self.serve.admin);
        if let Some(access) = &flags.access {
            self.log.access.clone_from(access);
        }
        self.log.access_chain |= flags.access_chain;
        problems
    }
}

/// The file at `path`.
fn text_of(path: &Path) -> Result<(PathBuf, String), Invalid> {
    let bytes = std::fs::read(path).map_err(|error| Invalid::unreadable(path, &error))?;
    let text = std::str::from_utf8(&bytes).map_err(|error| Invalid::no_text(path, &bytes, error))?;
    Ok((path.to_owned(), text.to_owned()))
}
