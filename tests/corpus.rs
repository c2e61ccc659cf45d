//! The seeds of the fuzz targets, and the bytes that once broke something: each through the property of its target.

#[path = "fuzz/properties/mod.rs"]
mod properties;

use std::path::{Path, PathBuf};

fn fuzz_room() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz")
}

fn files(target: &str) -> Vec<PathBuf> {
    let directory = fuzz_room().join("corpus").join(target);
    let entries = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Every file holds, whole and cut short anywhere, as a connection may end anywhere.
#[test]
fn every_seed_and_every_find_holds() {
    for (target, property) in properties::PROPERTIES {
        let files = files(target);
        assert!(files.len() >= 3, "{target} has no corpus");
        for path in files {
            let bytes = std::fs::read(&path).unwrap();
            // Printed only where one fails: it says which.
            println!("{}", path.display());
            property(&bytes);
            let step = bytes.len() / 64 + 1;
            (0..bytes.len()).step_by(step).for_each(|cut| property(&bytes[..cut]));
        }
    }
}

/// One bit of each byte of each seed changed: near to what is valid, where mistakes are.
#[test]
fn every_seed_with_one_byte_changed_holds() {
    for (target, property) in properties::PROPERTIES {
        for path in files(target) {
            let bytes = std::fs::read(&path).unwrap();
            println!("{}", path.display());
            for place in (0..bytes.len()).step_by(bytes.len() / 256 + 1) {
                let mut changed = bytes.clone();
                changed[place] ^= 1 << (place % 8);
                property(&changed);
            }
        }
    }
}

#[test]
fn every_property_is_a_target() {
    let manifest = std::fs::read_to_string(fuzz_room().join("Cargo.toml")).unwrap();
    for (target, _) in properties::PROPERTIES {
        let path = format!("fuzz_targets/{target}.rs");
        let source = std::fs::read_to_string(fuzz_room().join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(source.contains(&format!("check(\"{target}\", bytes)")), "{path} runs something else");
        assert!(manifest.contains(&format!("path = \"{path}\"")), "{path} is not built");
    }
    let built = manifest.matches("[[bin]]").count();
    assert_eq!(built, properties::PROPERTIES.len(), "a target without a property and a corpus");
}
