//! Where a configuration comes from: the file, and flags, which win over it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::{Access, Config, Driver, Invalid, Problem, Shards, Upstream, shape, validate};
use crate::policy::Policy;

/// What flags set; they win over the file.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--config`
    pub file: Option<PathBuf>,
    /// `--listen`, replaces the file's.
    pub listen: Vec<SocketAddr>,
    /// `--upstream`, replaces the file's.
    pub upstream: Vec<String>,
    /// `--policy`, in every pool.
    pub policy: Option<Policy>,
    /// `--shards`
    pub shards: Option<Shards>,
    /// `--driver`
    pub driver: Option<Driver>,
    /// `--admin`
    pub admin: Option<SocketAddr>,
    /// `--access-log`
    pub access: Option<Access>,
    /// `--access-chain`
    pub access_chain: bool,
}

impl Flags {
    /// Whether what is at `path` is what they say, whatever the file says.
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

/// What was read, while what is wrong with all of it together is still to be found.
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
    /// All that is wrong with it, with its place in the file where it stands there.
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

    /// The same, while what is wrong with all of it together is still to be found.
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

    /// The configuration in `text`, which was read from `path`.
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
