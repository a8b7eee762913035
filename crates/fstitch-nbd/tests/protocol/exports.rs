//! Exports that tests hold the strings of.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fstitch_core::{Errno, Error, Result};
use fstitch_nbd::{Export, Exports, Features, Listed, MemExport};

/// A gate that requests wait at until a test opens it.
#[derive(Default)]
pub struct Gate {
    /// Whether it is open, and how many have come to it.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    pub fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    pub fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        while !state.0 {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Waits until so many have come.
    pub fn wait_for(&self, count: usize) {
        let mut state = self.state.lock().unwrap();
        while state.1 < count {
            let (guard, timeout) = self.changed.wait_timeout(state, Duration::from_secs(60)).unwrap();
            assert!(!timeout.timed_out(), "{} of {count} have come", guard.1);
            state = guard;
        }
    }
}

/// Memory of which offsets from 1 MiB on wait at the gate, 2 MiB fails, and 3 MiB panics.
pub struct Odd {
    pub memory: MemExport,
    pub gate: Arc<Gate>,
    pub dropped: Arc<AtomicUsize>,
    /// Flushes, and writes with FUA.
    pub flushes: AtomicUsize,
}

pub const WAITS: u64 = 1 << 20;
pub const FAILS: u64 = 2 << 20;
pub const PANICS: u64 = 3 << 20;

impl Odd {
    pub fn new() -> Self {
        Self {
            memory: MemExport::with_features(4 << 20, Features::default()),
            gate: Arc::default(),
            dropped: Arc::default(),
            flushes: AtomicUsize::new(0),
        }
    }

    fn meet(&self, offset: u64) -> Result<()> {
        match offset {
            WAITS..FAILS => self.gate.pass(),
            FAILS..PANICS => return Err(Error::Poisoned("the disk is on fire".into())),
            PANICS.. => panic!("this export has a bug"),
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Odd {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Export for Odd {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn features(&self) -> Features {
        self.memory.features()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.meet(offset)?;
        self.memory.read(offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8], fua: bool) -> Result<()> {
        self.meet(offset)?;
        self.flushes.fetch_add(usize::from(fua), Ordering::SeqCst);
        self.memory.write(offset, bytes, fua)
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Names: `odd` makes an export each time, `none` is missing, `secret` is not for you.
#[derive(Default)]
pub struct Many {
    pub opened: AtomicUsize,
    pub dropped: Arc<AtomicUsize>,
    pub gate: Arc<Gate>,
}

impl Exports for Many {
    fn list(&self) -> Result<Vec<Listed>> {
        let listed = |name: &str, description: &str| Listed {
            name: name.to_owned(),
            description: description.to_owned(),
        };
        Ok(vec![listed("odd", "it is odd"), listed("ödd", "")])
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>> {
        match name {
            "secret" => Err(Errno::ACCES.into()),
            "none" => Err(Errno::NOENT.into()),
            _ => {
                self.opened.fetch_add(1, Ordering::SeqCst);
                let (dropped, gate) = (Arc::clone(&self.dropped), Arc::clone(&self.gate));
                let memory = MemExport::with_features(4 << 20, Features::default());
                Ok(Arc::new(Odd { memory, dropped, gate, flushes: AtomicUsize::new(0) }))
            }
        }
    }
}
