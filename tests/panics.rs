//! What a panic leaves in the log: its place, never its message, which may hold bytes of a prompt.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;
use warmfront::shard::panics;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[test]
fn a_panic_tells_its_place_and_not_its_message() {
    let log = Log::default();
    tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).init();
    panics::tell_place_only();
    let prompt = String::from("my secret prompt");
    let thread = std::thread::Builder::new().name("shard-7".into());
    assert!(thread.spawn(move || panic!("cannot read {prompt}")).unwrap().join().is_err());
    let said = || String::from_utf8(std::mem::take(&mut *log.0.lock().unwrap())).unwrap();
    let text = said();
    assert!(text.contains("tests/panics.rs:") && text.contains("shard-7"), "{text}");
    assert!(text.contains("its thread"), "{text}");
    assert!(!text.contains("secret") && !text.contains("cannot read"), "{text}");
    // Control's thread goes on.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(runtime.block_on(async { tokio::spawn(async { panic!("cannot read either") }).await.is_err() }));
    let text = said();
    assert!(text.contains("its task") && !text.contains("cannot read"), "{text}");
}
