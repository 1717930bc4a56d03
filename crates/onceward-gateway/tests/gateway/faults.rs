//! A machine that fails: a disk that is full or does not confirm, and clocks that a test moves.
//!
//! Libraries that are loaded before the C library stand in for disk and clocks. They are compiled here, as SQLite is.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::harness::Gateway;
use crate::ledger::Ledger;

/// The library that the store's own tests use.
const DISK: &str = include_str!("../../../onceward-sqlite/tests/support/disk.c");
const CLOCK: &str = include_str!("clock.c");

impl Gateway {
    /// Starts an API that keeps a ledger, and the gateway in front of it on a machine that can fail.
    pub fn with_faults(arguments: &[&str]) -> (TempDir, Ledger, Faults, Self) {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::start(folder.path());
        let faults = Faults::new(folder.path());
        let mut command = Self::command(folder.path(), ledger.address);
        let gateway = Self::spawn(faults.on(command.args(arguments)));
        (folder, ledger, faults, gateway)
    }
}

/// The machine that a gateway runs on, whose disk and clocks a test controls.
pub struct Faults {
    folder: PathBuf,
    libraries: String,
}

impl Faults {
    /// A machine that has not failed yet.
    pub fn new(folder: &Path) -> Self {
        let libraries = [compile(folder, "disk", DISK), compile(folder, "clock", CLOCK)];
        Self { folder: folder.to_owned(), libraries: libraries.join(":") }
    }

    /// Runs a command on it.
    pub fn on<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("LD_PRELOAD", &self.libraries)
            .env("DISK_FULL_WHILE", self.folder.join("full"))
            .env("FAIL_SYNCS_WHILE", self.folder.join("unsynced"))
            .env("STALL_SYNCS_WHILE", self.folder.join("stalled"))
            .env("CLOCKS_AHEAD_BY", self.folder.join("clock"))
    }

    pub fn disk_is_full(&self) {
        std::fs::write(self.folder.join("full"), "").unwrap();
    }

    pub fn disk_has_space(&self) {
        std::fs::remove_file(self.folder.join("full")).unwrap();
    }

    pub fn syncs_fail(&self) {
        std::fs::write(self.folder.join("unsynced"), "").unwrap();
    }

    pub fn syncs_work(&self) {
        std::fs::remove_file(self.folder.join("unsynced")).unwrap();
    }

    /// Syncs that begin from now on do not end.
    pub fn syncs_stall(&self) {
        std::fs::write(self.folder.join("stalled"), "").unwrap();
    }

    /// Syncs end again, those that stalled among them.
    pub fn syncs_go_on(&self) {
        std::fs::remove_file(self.folder.join("stalled")).unwrap();
    }

    /// From now on so many seconds have passed more than really did. Timers notice at the next event.
    pub fn time_passed(&self, seconds: u64) {
        self.clocks(seconds, seconds);
    }

    /// From now on the wall clock is so many seconds ahead, but no time has passed.
    pub fn clock_is_ahead(&self, seconds: u64) {
        self.clocks(seconds, 0);
    }

    /// From now on the wall clock and elapsed time are so many seconds ahead of what they really are.
    pub fn clocks(&self, wall: u64, elapsed: u64) {
        // Renamed, so that no process reads half of it.
        let draft = self.folder.join("clock.new");
        std::fs::write(&draft, format!("{wall} {elapsed}")).unwrap();
        std::fs::rename(draft, self.folder.join("clock")).unwrap();
    }
}

fn compile(folder: &Path, name: &str, source: &str) -> String {
    let (file, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &file])
        .arg("-ldl")
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library.to_str().unwrap().to_owned()
}
