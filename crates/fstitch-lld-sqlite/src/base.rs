//! A database in a volume: what all connections of the process share of it.
//!
//! **Layout.** The volume is of a fixed size, larger than any database; what is not written takes nothing.
//!
//! ```text
//!   0 ┌────────────────────────────────┐
//!     │ the bytes of the database      │  as in a file, so that who reads the volume finds a database
//!     ├ size ──────────────────────────┤
//!     │ no blocks                      │
//!   2^48 ──────────────────────────────┤  beyond the largest database of SQLite
//!     │ magic "FSLDSQLT", version, size│  one block; none, and no others, is a database of no bytes
//!     └────────────────────────────────┘
//! ```
//!
//! **Invariants.** 1. The size is changed in the unit that changes the database. 2. Bytes of a block beyond the size are zeros, and
//! blocks beyond it are not there. 3. What is remembered here is committed.

use std::sync::Arc;

use fstitch_core::lock::Mutex;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{BlockDevice, Le};
use fstitch_lld::{Aru, Disk, ListId, Volume};

use crate::abi::code;
use crate::failure::{Failure, Result};
use crate::locks::Locks;

/// Bytes beyond which no database of SQLite is.
const BYTES_MAX: u64 = 1 << 48;
const MAGIC: &[u8; 8] = b"FSLDSQLT";
const VERSION: u32 = 1;
const SIZE_AT: usize = 16;

/// Bytes of the volume of a database.
pub(crate) fn volume_bytes(block_size: usize) -> u64 {
    BYTES_MAX + to_u64(block_size)
}

/// A part of some bytes that is in one block.
pub(crate) struct Piece {
    pub(crate) position: u64,
    /// Where in the block it begins.
    pub(crate) start: usize,
    /// Where in the bytes.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// A database that is open.
pub(crate) struct Base {
    pub(crate) disk: Arc<Disk>,
    pub(crate) list: ListId,
    pub(crate) block_size: usize,
    /// As long as somebody has it the volume is not removed.
    _volume: Volume,
    pub(crate) shared: Mutex<Shared, rank::Leaf>,
}

/// What changes of it.
pub(crate) struct Shared {
    /// Bytes of the database.
    pub(crate) size: u64,
    /// The first block, which every transaction looks at.
    pub(crate) head: Option<Arc<[u8]>>,
    pub(crate) locks: Locks,
    /// The medium has failed at the end of a unit, and nobody knows whether that has happened.
    is_unknown: bool,
    /// The next connection's number.
    next: u64,
}

impl Base {
    /// The database in a volume.
    ///
    /// # Errors
    /// `NOTADB` if the volume holds something else; those of the disk.
    pub(crate) fn open(disk: &Arc<Disk>, volume: Volume) -> Result<Self> {
        let (block_size, list) = (disk.block_size(), volume.list());
        let of = |error| Failure::of(code::CANTOPEN, &error);
        let bytes = volume.geometry().block_count * to_u64(block_size);
        if bytes != volume_bytes(block_size) {
            let text = format!("the volume is of {bytes} bytes, and not one that was made for a database");
            return Err(Failure::new(code::NOTADB, text));
        }
        let mut meta = vec![0; block_size];
        let at = BYTES_MAX / to_u64(block_size);
        disk.read_at(list, at, &mut meta).map_err(of)?;
        let is_empty = disk.list_len(list).map_err(of)? == 0;
        let size = if is_empty { 0 } else { decode(&meta)? };
        let shared = Shared { size, head: None, locks: Locks::default(), is_unknown: false, next: 0 };
        let shared = Mutex::new(shared);
        Ok(Self { disk: Arc::clone(disk), list, block_size, _volume: volume, shared })
    }

    /// A number for a connection that nobody had.
    pub(crate) fn number(&self) -> u64 {
        let mut shared = self.shared.lock();
        shared.next += 1;
        shared.next
    }

    /// The position of the block that says the size.
    pub(crate) fn meta_at(&self) -> u64 {
        BYTES_MAX / to_u64(self.block_size)
    }

    /// Whether so many bytes can be a database's.
    pub(crate) fn fits(&self, end: u64) -> bool {
        end <= BYTES_MAX
    }

    /// Writes the size.
    pub(crate) fn put_size(&self, unit: &Aru<'_>, size: u64) -> fstitch_core::Result<()> {
        let mut meta = vec![0; self.block_size];
        meta[..8].copy_from_slice(MAGIC);
        Le::put_u32(&mut meta, 8, VERSION);
        Le::put_u64(&mut meta, SIZE_AT, size);
        unit.write_at(self.list, self.meta_at(), &meta)
    }

    /// Remembers what was committed.
    pub(crate) fn publish(&self, size: u64, head: Option<Arc<[u8]>>) {
        let mut shared = self.shared.lock();
        shared.size = size;
        if head.is_some() {
            shared.head = head;
        }
    }

    /// A unit of it did not end. If that was not for want of room, what is there is known when the disk is opened again.
    pub(crate) fn has_failed(&self) {
        // Who can make stable what is there has lost nothing.
        if self.disk.flush().is_err() {
            self.shared.lock().is_unknown = true;
        }
    }

    /// Whether what is there is known.
    ///
    /// # Errors
    /// If it is not.
    pub(crate) fn check(&self) -> Result<()> {
        match self.shared.lock().is_unknown {
            true => Err(Failure::new(
                code::READ,
                "the medium failed in a commit: open the disk again to see what is there",
            )),
            false => Ok(()),
        }
    }

    /// The parts of `len` bytes from one on, block by block.
    pub(crate) fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = Piece> + use<> {
        let block = to_u64(self.block_size);
        let mut at = 0;
        std::iter::from_fn(move || {
            let from = offset + to_u64(at);
            let start = to_usize(from % block);
            let count = (len - at).min(to_usize(block) - start);
            let piece = Piece { position: from / block, start, at, len: count };
            at += count;
            (count > 0).then_some(piece)
        })
    }
}

/// The size that a block says.
fn decode(meta: &[u8]) -> Result<u64> {
    if &meta[..8] != MAGIC {
        return Err(Failure::new(code::NOTADB, "the volume holds something else than a database"));
    }
    match (Le::u32(meta, 8), Le::u64(meta, SIZE_AT)) {
        (VERSION, size) if size <= BYTES_MAX => Ok(size),
        (VERSION, size) => Err(Failure::new(code::CORRUPT, format!("a database of {size} bytes"))),
        (version, _) => Err(Failure::new(code::NOTADB, format!("version {version} of a database's volume"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let meta = |version, size| {
            let mut meta = vec![0; 512];
            meta[..8].copy_from_slice(MAGIC);
            Le::put_u32(&mut meta, 8, version);
            Le::put_u64(&mut meta, SIZE_AT, size);
            decode(&meta).map_err(|failure| failure.code)
        };
        assert_eq!(meta(1, 12), Ok(12));
        assert_eq!(meta(1, BYTES_MAX), Ok(BYTES_MAX));
        assert_eq!(meta(1, BYTES_MAX + 1), Err(code::CORRUPT));
        assert_eq!(meta(2, 12), Err(code::NOTADB));
        assert_eq!(decode(&[0; 512]).unwrap_err().code, code::NOTADB);
    }
}
