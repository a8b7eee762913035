//! Persistent memory that remembers everything that is done to it.
//!
//! **Layout.** A region of cache lines of 64 bytes; below it lies a device whose blocks are these lines, such as an
//! [`Image`](super::Image) of [`Base::of_memory`](super::Base::of_memory). What is stored is read at once.
//!
//! **States of a word:** stored (in the cache, and perhaps evicted from it), flushed (its line is being written back),
//! durable (a fence returned after that). A program that is done with a word has brought it through all three; the log
//! leaves open what a power cut before that shows ([`History`](super::History)).

use std::io::{Error as IoError, ErrorKind};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, IoOp, Result};

use super::image::{LINE, WORD, size};
use super::log::{Access, Event, Log, Mark, RequestNo};

/// A region of persistent memory.
///
/// ```
/// use fstitch_crashlab::medium::{Base, Image, PersistentMemory};
///
/// let memory = PersistentMemory::new(Image::new(Base::of_memory(vec![0; 4096])));
/// memory.store(128, b"a record")?;
/// memory.flush(128..136)?;
/// memory.fence();
/// assert_eq!(memory.load::<8>(128)?, *b"a record");
/// assert_eq!(memory.take().events.len(), 3);
/// # Ok::<(), fstitch_core::Error>(())
/// ```
pub struct PersistentMemory<D> {
    device: D,
    state: Mutex<State>,
}

struct State {
    log: Log,
    next: u32,
}

impl<D: BlockDevice> PersistentMemory<D> {
    /// Records what is done to the lines of `device` from now on. Panics where its blocks are no lines.
    #[must_use]
    pub fn new(device: D) -> Self {
        let geometry = device.geometry();
        assert_eq!(geometry.block_size, LINE, "a region of memory has blocks of one cache line");
        Self { device, state: Mutex::new(State { log: Log::new(geometry), next: 0 }) }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.device.geometry().bytes()
    }

    /// Reads what was stored last.
    ///
    /// # Errors
    /// Outside the region, or when the device fails.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        self.check(IoOp::Read, offset, data.len())?;
        let mut at = offset;
        for piece in pieces(offset, data.len(), LINE) {
            let line = self.line(at / u64::from(LINE))?;
            let within = BlockNo(at % u64::from(LINE)).index();
            at += as_u64(piece.len());
            data[piece.clone()].copy_from_slice(&line[within..within + piece.len()]);
        }
        Ok(())
    }

    /// The `N` bytes at `offset`.
    ///
    /// # Errors
    /// As [`PersistentMemory::read`].
    pub fn load<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut data = [0; N];
        self.read(offset, &mut data)?;
        Ok(data)
    }

    /// Stores bytes: one store for each word of eight bytes that they touch, by ascending address.
    ///
    /// # Errors
    /// Outside the region, or when the device fails.
    pub fn store(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check(IoOp::Write, offset, data.len())?;
        // The log has the stores in the order in which they reach the lines.
        let mut state = self.state();
        for piece in pieces(offset, data.len(), WORD) {
            let (at, data) = (offset + as_u64(piece.start), &data[piece]);
            let no = at / u64::from(LINE);
            let mut line = self.line(no)?;
            let within = BlockNo(at % u64::from(LINE)).index();
            line[within..within + data.len()].copy_from_slice(data);
            let request = RequestNo(state.next);
            state.next += 1;
            state.log.events.push(Event::Memory(Access::Store { request, offset: at, data: data.into() }));
            let write = BlockWrite { block: BlockNo(no), kind: BlockKind::Data, data: &line };
            self.device.write(&[write])?;
        }
        Ok(())
    }

    /// Begins to write back the lines that these bytes touch.
    ///
    /// # Errors
    /// Outside the region.
    pub fn flush(&self, bytes: Range<u64>) -> Result<()> {
        let len = bytes.end.saturating_sub(bytes.start);
        self.check(IoOp::Flush, bytes.start, to_usize(len))?;
        if len > 0 {
            let lines = bytes.start / u64::from(LINE)..bytes.end.div_ceil(u64::from(LINE));
            self.state().log.events.push(Event::Memory(Access::Flush { lines }));
        }
        Ok(())
    }

    /// Waits until what was flushed is durable.
    pub fn fence(&self) {
        self.state().log.events.push(Event::Memory(Access::Fence));
    }

    /// Stores bytes and makes them durable.
    ///
    /// # Errors
    /// As [`PersistentMemory::store`].
    pub fn persist(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.store(offset, data)?;
        self.flush(offset..offset + as_u64(data.len()))?;
        self.fence();
        Ok(())
    }

    /// Sets a mark.
    pub fn mark(&self, mark: Mark) {
        self.state().log.events.push(Event::Mark(mark));
    }

    /// The log so far; recording goes on with an empty one.
    #[must_use]
    pub fn take(&self) -> Log {
        let geometry = self.device.geometry();
        std::mem::replace(&mut self.state().log, Log::new(geometry))
    }

    /// The device below.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn line(&self, line: u64) -> Result<Vec<u8>> {
        let mut data = vec![0; size(LINE)];
        self.device.read(&mut [BlockRead {
            block: BlockNo(line),
            kind: BlockKind::Data,
            data: &mut data,
        }])?;
        Ok(data)
    }

    fn check(&self, op: IoOp, offset: u64, len: usize) -> Result<()> {
        if offset.checked_add(as_u64(len)).is_some_and(|end| end <= self.bytes()) {
            return Ok(());
        }
        let reason = IoError::new(ErrorKind::InvalidInput, "outside the region");
        Err(Error::io(op, BlockNo(offset / u64::from(LINE)), reason))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }
}

/// The parts of `len` bytes at `offset` that lie in one unit each, as ranges of these bytes.
fn pieces(offset: u64, len: usize, unit: u32) -> impl Iterator<Item = Range<usize>> {
    let (into, unit) = (BlockNo(offset % u64::from(unit)).index(), size(unit));
    let mut start = 0;
    std::iter::from_fn(move || {
        let end = len.min((into + start) / unit * unit + unit - into);
        let piece = start..end;
        start = end;
        (!piece.is_empty()).then_some(piece)
    })
}

fn as_u64(n: usize) -> u64 {
    to_u64(n)
}
