//! Engines, each a process of its own on a port that it keeps, and what is done to them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use peers::process::Running;
use rustix::process::Signal;

use crate::proc;

pub struct Engine {
    pub port: u16,
    running: Option<Running>,
}

impl Engine {
    fn start(port: u16) -> Result<Engine, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["engine", "--named", "--drains", "--port", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut running = Running::start(command, 0)?;
        let said = running.child.stdout.take().ok_or("an engine without an output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line).map_err(|error| error.to_string())?;
        let port = line.trim().parse().map_err(|_| format!("an engine on port {port} said {line:?}"))?;
        Ok(Engine { port, running: Some(running) })
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(running) = &self.running {
            proc::signal(running.pid(), signal);
        }
    }

    /// Ends it by SIGKILL.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        if let Some(mut running) = self.running.take() {
            let _ = running.child.wait();
        }
    }

    /// Whether it has ended by itself.
    pub fn ended(&mut self) -> bool {
        let ended = self.running.as_mut().is_none_or(Running::ended);
        if ended {
            self.running = None;
        }
        ended
    }

    pub fn restart(&mut self) -> Result<(), String> {
        self.kill();
        *self = Engine::start(self.port)?;
        Ok(())
    }
}

pub struct Fleet {
    pub engines: Vec<Engine>,
}

impl Fleet {
    pub fn start(count: usize) -> Result<Fleet, String> {
        let engines = (0..count).map(|_| Engine::start(0)).collect::<Result<_, _>>()?;
        Ok(Fleet { engines })
    }

    /// Tables of a configuration for the engines in these places.
    pub fn upstreams(&self, places: &[usize]) -> String {
        let urls = places.iter().map(|place| {
            let port = self.engines[*place].port;
            format!("[[upstream]]\nurl = \"http://127.0.0.1:{port}\"\n")
        });
        urls.collect()
    }
}
