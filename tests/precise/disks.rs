//! Disks that do not answer hold up only what needs them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::fs::OFlags;

use crate::engine::Engine;
use crate::scene::{Scene, config_of};
use crate::tokens::folder;
use crate::until;

/// A file whose reading does not end.
struct Stuck(PathBuf);

impl Stuck {
    fn at(path: PathBuf) -> Stuck {
        let _ = fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        Stuck(path)
    }

    /// Waits until it is read; that ends when the returned file is closed.
    fn until_read(&self) -> File {
        let mut opened = None;
        until("a reader", || {
            let flags = OFlags::NONBLOCK.bits() as i32;
            opened = OpenOptions::new().write(true).custom_flags(flags).open(&self.0).ok();
            opened.is_some()
        });
        opened.unwrap()
    }
}

/// Removes the pipe: making the file anew must not wait for a reader.
impl Drop for Stuck {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The tokenizer's folder is on another machine, which is gone: engines can still be drained by hand and logs rotated.
/// Such changes outlast a reload that was being read, or was asked for before.
#[test]
fn a_reload_that_hangs_holds_up_neither_drains_nor_logs() {
    let folder = folder(
        &format!("precise-model-far-away-{}", std::process::id()),
        include_str!("../form/templates/chatml.jinja"),
    );
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("disks-{}", std::process::id()));
    let config = config_of(&folder, &format!("[log]\naccess = \"{}\"\n", log.display()));
    let scene = Scene::of("epoll", [Engine::start(true), Engine::start(true)], &config);
    let (front, name) = (&scene.front, scene.engines[0].name());
    let tokenizer = fs::read(folder.join("tokenizer.json")).unwrap();
    let stuck = Stuck::at(folder.join("tokenizer.json"));
    thread::scope(|scope| {
        let reload = scope.spawn(|| front.reload());
        let mut file = stuck.until_read();
        fs::remove_file(&log).unwrap();
        front.hang_up();
        until("the log of before, anew", || log.exists());
        assert_eq!(front.asks("POST", &format!("/endpoints/{name}/drain"), "").0, 200);
        front.until_health(0, "draining");
        file.write_all(&tokenizer).unwrap();
        drop(file);
        let (status, said) = reload.join().unwrap();
        assert_eq!((status, front.endpoint(0)["health"].as_str()), (200, Some("draining")), "{said}");
    });
    // The signal came before the drain: its reload happens as well, and undoes nothing.
    stuck.until_read().write_all(&tokenizer).unwrap();
    until("both readings", || front.log().matches("configuration taken").count() == 2);
    assert_eq!(front.endpoint(0)["health"], "draining");
    front.hang_up();
    stuck.until_read().write_all(&tokenizer).unwrap();
    front.until_health(0, "up");
    assert_eq!(scene.front.stop(), Some(0));
    let _ = (fs::remove_file(&log), fs::remove_dir_all(&folder));
}
