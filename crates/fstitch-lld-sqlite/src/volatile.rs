//! Files that nobody needs after a failure: the journals of transactions that go on. They are in memory, and beyond some size in a file
//! without a name.
//!
//! A rollback journal says how the database was before a transaction, to take back a part of it or all. After a failure there is
//! nothing to take back: the unit in which the transaction wrote has not ended. So a journal needs no place on the disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use fstitch_core::lock::Mutex;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;

/// Bytes of a journal beyond which it leaves memory.
const MEMORY_MAX: u64 = 8 << 20;

/// Such a file.
#[derive(Default)]
pub(crate) struct Volatile(Mutex<Bytes, rank::Leaf>);

#[derive(Default)]
struct Bytes {
    memory: Vec<u8>,
    /// Where they are instead, and how many.
    file: Option<(File, u64)>,
}

impl Volatile {
    /// Bytes of it.
    pub(crate) fn size(&self) -> u64 {
        self.0.lock().size()
    }

    /// Reads, with zeros behind the end; says whether all was there.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<bool> {
        let bytes = self.0.lock();
        let there = to_usize(bytes.size().saturating_sub(offset).min(to_u64(into.len())));
        let (found, missing) = into.split_at_mut(there);
        match &bytes.file {
            Some((file, _)) => file.read_exact_at(found, offset)?,
            None if there > 0 => found.copy_from_slice(&bytes.memory[to_usize(offset)..][..there]),
            None => {}
        }
        missing.fill(0);
        Ok(missing.is_empty())
    }

    /// Writes; the file grows if need be.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock();
        let end = offset + to_u64(data.len());
        if end > MEMORY_MAX && bytes.file.is_none() {
            bytes.leave_memory()?;
        }
        if let Some((file, size)) = &mut bytes.file {
            file.write_all_at(data, offset)?;
            *size = end.max(*size);
            return Ok(());
        }
        if bytes.size() < end {
            bytes.memory.resize(to_usize(end), 0);
        }
        bytes.memory[to_usize(offset)..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    /// Makes it shorter, or longer with zeros.
    pub(crate) fn truncate(&self, size: u64) -> io::Result<()> {
        let mut bytes = self.0.lock();
        if size == 0 {
            *bytes = Bytes::default();
            return Ok(());
        }
        match &mut bytes.file {
            Some((file, end)) => {
                file.set_len(size)?;
                *end = size;
            }
            None => bytes.memory.resize(to_usize(size), 0),
        }
        Ok(())
    }
}

impl Bytes {
    fn size(&self) -> u64 {
        self.file.as_ref().map_or(to_u64(self.memory.len()), |(_, size)| *size)
    }

    fn leave_memory(&mut self) -> io::Result<()> {
        let file = tempfile::tempfile()?;
        file.write_all_at(&self.memory, 0)?;
        self.file = Some((file, to_u64(self.memory.len())));
        self.memory = Vec::new();
        Ok(())
    }
}

/// Those of a disk, by their names.
#[derive(Default)]
pub(crate) struct Volatiles(Mutex<BTreeMap<String, Arc<Volatile>>, rank::Leaf>);

impl Volatiles {
    /// The one of a name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Volatile>> {
        self.0.lock().get(name).cloned()
    }

    /// The one of a name, empty if there was none.
    pub(crate) fn find_or_make(&self, name: &str) -> Arc<Volatile> {
        Arc::clone(self.0.lock().entry(name.to_owned()).or_default())
    }

    /// Forgets the name; who has it open still has it.
    pub(crate) fn remove(&self, name: &str) -> bool {
        self.0.lock().remove(name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In memory and beside it: what was written is read, what is beyond the end is not.
    #[test]
    fn large_ones_leave_memory_and_read_the_same() {
        for far in [100, MEMORY_MAX - 2, MEMORY_MAX, 3 * MEMORY_MAX] {
            let journal = Volatile::default();
            journal.write(0, b"head").unwrap();
            journal.write(far, b"abcd").unwrap();
            assert_eq!(journal.size(), far + 4);
            assert_eq!(journal.0.lock().file.is_some(), far + 4 > MEMORY_MAX, "{far}");
            let mut read = [9; 6];
            assert!(!journal.read(far, &mut read).unwrap());
            assert_eq!(&read, b"abcd\0\0");
            assert!(journal.read(0, &mut read).unwrap());
            assert_eq!(&read, b"head\0\0");
            assert!(!journal.read(u64::MAX / 2, &mut read).unwrap());
            journal.truncate(2).unwrap();
            journal.truncate(5).unwrap();
            assert!(!journal.read(0, &mut read).unwrap());
            assert_eq!(&read, b"he\0\0\0\0");
            journal.truncate(0).unwrap();
            assert_eq!((journal.size(), journal.0.lock().file.is_some()), (0, false));
        }
    }
}
