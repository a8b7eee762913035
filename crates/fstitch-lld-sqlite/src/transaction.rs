//! What a connection has changed and nobody else sees: a unit of the logical disk.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::Result;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_lld::Aru;

use crate::base::Base;
use crate::failure::Failure;

/// A transaction that has written something.
pub(crate) struct Transaction {
    unit: Aru<'static>,
    /// Bytes of the database as it sees it.
    pub(crate) size: u64,
    /// The positions that it has written.
    written: BTreeSet<u64>,
    /// The first position from which on it has removed all.
    cut: Option<u64>,
    /// SQLite wants it to be stable when it has ended.
    pub(crate) is_durable: bool,
    /// SQLite has written all of it.
    pub(crate) is_written: bool,
}

impl Transaction {
    /// Begins in the committed state.
    pub(crate) fn begin(base: &Base) -> Self {
        let size = base.shared.lock().size;
        let unit = base.disk.begin_shared();
        Self { unit, size, written: BTreeSet::new(), cut: None, is_durable: false, is_written: false }
    }

    /// Reads a block.
    pub(crate) fn read(&self, base: &Base, position: u64, into: &mut [u8]) -> Result<()> {
        self.unit.read_at(base.list, position, into)
    }

    /// Writes; the database grows if need be. If it fails, a part may have been written.
    pub(crate) fn write(&mut self, base: &Base, offset: u64, data: &[u8]) -> Result<()> {
        for piece in base.pieces(offset, data.len()) {
            let part = &data[piece.at..piece.at + piece.len];
            if piece.len == base.block_size {
                self.put(base, piece.position, part)?;
            } else {
                let mut block = vec![0; base.block_size];
                self.read(base, piece.position, &mut block)?;
                block[piece.start..piece.start + piece.len].copy_from_slice(part);
                self.put(base, piece.position, &block)?;
            }
        }
        self.is_written = false;
        self.size = self.size.max(offset + to_u64(data.len()));
        Ok(())
    }

    fn put(&mut self, base: &Base, position: u64, block: &[u8]) -> Result<()> {
        self.unit.write_at(base.list, position, block)?;
        self.written.insert(position);
        Ok(())
    }

    /// Makes the database longer, with zeros, or shorter.
    pub(crate) fn truncate(&mut self, base: &Base, size: u64) -> Result<()> {
        if size < self.size {
            let block_size = to_u64(base.block_size);
            let (whole, rest) = (size.div_ceil(block_size), to_usize(size % block_size));
            self.unit.delete_range(base.list, whole, base.meta_at() - 1)?;
            self.written.retain(|position| *position < whole);
            self.cut = Some(self.cut.map_or(whole, |cut| cut.min(whole)));
            if rest > 0 {
                let mut block = vec![0; base.block_size];
                self.read(base, whole - 1, &mut block)?;
                block[rest..].fill(0);
                self.put(base, whole - 1, &block)?;
            }
        }
        self.size = size;
        Ok(())
    }

    /// Everything happens now, the new size with it.
    pub(crate) fn end(self, base: &Base) -> std::result::Result<(), Failure> {
        let head = self.prepare(base).map_err(|error| Failure::of_end(&error.into()))?;
        let done = if self.is_durable { self.unit.end_durable() } else { self.unit.end() };
        done.map_err(|error| {
            base.has_failed();
            Failure::of_end(&error)
        })?;
        base.publish(self.size, head);
        Ok(())
    }

    /// Writes the size if it is new. Returns the first block if it is.
    fn prepare(&self, base: &Base) -> Result<Option<Arc<[u8]>>> {
        if base.shared.lock().size != self.size {
            base.put_size(&self.unit, self.size)?;
        }
        if !self.written.contains(&0) {
            return Ok(None);
        }
        let mut head = vec![0; base.block_size];
        self.read(base, 0, &mut head)?;
        Ok(Some(head.into()))
    }

    /// Does the same in another unit. Returns the first block if it is new.
    pub(crate) fn repeat_in(&self, base: &Base, unit: &Aru<'_>) -> Result<Option<Arc<[u8]>>> {
        let head = self.prepare(base)?;
        if let Some(cut) = self.cut {
            unit.delete_range(base.list, cut, base.meta_at() - 1)?;
        }
        let mut block = vec![0; base.block_size];
        for position in &self.written {
            self.read(base, *position, &mut block)?;
            unit.write_at(base.list, *position, &block)?;
        }
        if base.shared.lock().size != self.size {
            base.put_size(unit, self.size)?;
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use fstitch_core::{BlockDevice, MemDevice};
    use fstitch_lld::{Disk, FormatOptions, Options, Volumes};

    use super::*;
    use crate::base::volume_bytes;

    fn base() -> Base {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(512, vec![0; 4 << 20]));
        Disk::format(Arc::clone(&device), &FormatOptions::for_bytes(4 << 20)).unwrap();
        let disk = Arc::new(Disk::open(device, &Options::default()).unwrap().0);
        let volumes = Volumes::open(Arc::clone(&disk)).unwrap();
        volumes.create("db", volume_bytes(disk.block_size())).unwrap();
        Base::open(&disk, volumes.volume("db").unwrap()).unwrap()
    }

    /// SQLite writes what it has made longer before it reads it. That is no reason to show what was cut off.
    #[test]
    fn what_was_cut_off_is_zeros() {
        let base = base();
        for sizes in [[5000, 100], [9000, 4096], [9000, 4095], [20_000, 0]] {
            let mut transaction = Transaction::begin(&base);
            transaction.write(&base, 0, &[7; 20_000]).unwrap();
            sizes.into_iter().for_each(|size| transaction.truncate(&base, size).unwrap());
            transaction.truncate(&base, 20_000).unwrap();
            let mut block = vec![1; base.block_size];
            for position in 0..5 {
                transaction.read(&base, position, &mut block).unwrap();
                let from = to_usize(position) * base.block_size;
                let right = |at: usize| if from + at < to_usize(sizes[1]) { 7 } else { 0 };
                assert!((0..base.block_size).all(|at| block[at] == right(at)), "{sizes:?} {position}");
            }
        }
    }

    /// Blocks are given back, and the size is there with what it is of.
    #[test]
    fn what_is_empty_takes_nothing() {
        let base = base();
        for (size, blocks) in [(20_000, 6), (0, 1)] {
            let mut transaction = Transaction::begin(&base);
            transaction.write(&base, 0, &[7; 20_000]).unwrap();
            transaction.truncate(&base, size).unwrap();
            transaction.end(&base).unwrap();
            assert_eq!(base.disk.list_len(base.list).unwrap(), blocks);
            assert_eq!(base.shared.lock().size, size);
        }
    }
}
