//! An image that copies on write: many crash states share one base.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result};
use twox_hash::XxHash3_128;

/// What ordinary disks write as a whole, in bytes; smaller blocks count as one piece.
pub(crate) const SECTOR: usize = 512;

/// A cache line, in bytes: what a flush of persistent memory writes back, and the block of such a medium.
pub const LINE: u32 = 64;

/// What persistent memory stores as a whole, in bytes.
pub const WORD: u32 = 8;

/// A block's bytes and their hash, shared between the log, the versions and the images.
#[derive(Clone)]
pub struct Bytes(Arc<Hashed>);

struct Hashed {
    data: Box<[u8]>,
    hash: u128,
}

impl Bytes {
    /// The sum of the hashes of the sectors, each seeded with its place in the block: a block put together from
    /// sectors has the sum of theirs.
    #[must_use]
    pub fn hash(&self) -> u128 {
        self.0.hash
    }
}

/// The hash of the sector that starts at `offset` of a block.
pub(crate) fn hash_sector(offset: usize, data: &[u8]) -> u128 {
    XxHash3_128::oneshot_with_seed(to_u64(offset), data)
}

/// The hash of a block, see [`Bytes::hash`].
pub(crate) fn hash_block(data: &[u8]) -> u128 {
    let sectors = data.chunks(SECTOR).enumerate();
    sectors.fold(0, |sum, (at, sector)| sum.wrapping_add(hash_sector(at * SECTOR, sector)))
}

impl From<&[u8]> for Bytes {
    fn from(data: &[u8]) -> Self {
        Self(Arc::new(Hashed { hash: hash_block(data), data: data.into() }))
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(data: Vec<u8>) -> Self {
        Self(Arc::new(Hashed { hash: hash_block(&data), data: data.into() }))
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.data
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.data == other.0.data
    }
}

impl Eq for Bytes {}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes {:032x}", self.len(), self.hash())
    }
}

/// The image that everything else is compared with. It never changes.
#[derive(Debug)]
pub struct Base {
    geometry: Geometry,
    atom: usize,
    bytes: Vec<u8>,
    hashes: Vec<u128>,
}

impl Base {
    /// An image of whole blocks of `block_size` bytes; bytes after the last one are dropped.
    #[must_use]
    pub fn new(block_size: u32, bytes: Vec<u8>) -> Arc<Self> {
        Self::make(block_size, SECTOR.min(size(block_size)), block_size, bytes)
    }

    /// A region of persistent memory: its blocks are cache lines and its atoms words. Bytes after the last whole line are
    /// dropped.
    #[must_use]
    pub fn of_memory(bytes: Vec<u8>) -> Arc<Self> {
        Self::with_atoms(LINE, WORD, bytes)
    }

    /// The same of a medium that tears its blocks into atoms of `atom` bytes, where the level lets it tear them. Panics
    /// where these do not fill a block.
    #[must_use]
    pub fn with_atoms(block_size: u32, atom: u32, bytes: Vec<u8>) -> Arc<Self> {
        let fills = atom > 0 && block_size.is_multiple_of(atom);
        assert!(fills, "atoms of {atom} bytes fill no block of {block_size}");
        Self::make(block_size, size(atom), atom, bytes)
    }

    fn make(block_size: u32, atom: usize, atomic_size: u32, mut bytes: Vec<u8>) -> Arc<Self> {
        let unit = size(block_size);
        let blocks = bytes.len() / unit;
        bytes.truncate(blocks * unit);
        let block_count = to_u64(blocks);
        let hashes = bytes.chunks(unit).map(hash_block).collect();
        Arc::new(Self { geometry: Geometry { block_size, block_count, atomic_size }, atom, bytes, hashes })
    }

    /// The smallest piece that is on the medium whole, in bytes.
    #[must_use]
    pub fn atom(&self) -> usize {
        self.atom
    }

    /// The hash of a block.
    pub(crate) fn hash(&self, block: u64) -> u128 {
        self.hashes[BlockNo(block).index()]
    }

    /// The shape of the image.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// A block's bytes. Panics outside the image.
    #[must_use]
    pub fn block(&self, block: u64) -> &[u8] {
        let unit = size(self.geometry.block_size);
        let at = BlockNo(block).index() * unit;
        &self.bytes[at..at + unit]
    }
}

/// A number of bytes as memory counts them.
pub(crate) fn size(bytes: u32) -> usize {
    to_usize(bytes)
}

/// A device in memory: a base that is shared, and the blocks that differ from it.
#[derive(Debug)]
pub struct Image {
    base: Arc<Base>,
    changed: Mutex<BTreeMap<u64, Bytes>>,
}

impl Image {
    /// The base itself.
    #[must_use]
    pub fn new(base: Arc<Base>) -> Self {
        Self { base, changed: Mutex::default() }
    }

    /// The base with these blocks on top.
    #[must_use]
    pub fn with(base: Arc<Base>, changed: BTreeMap<u64, Bytes>) -> Self {
        Self { base, changed: Mutex::new(changed) }
    }

    /// A copy in which later writes to this one do not show.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::with(Arc::clone(&self.base), self.changed())
    }

    /// The blocks that were written since the base.
    #[must_use]
    pub fn changed(&self) -> BTreeMap<u64, Bytes> {
        self.changed.lock().unpoisoned().clone()
    }

    /// All bytes, for foreign programs and as a base of its own.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let unit = size(self.base.geometry.block_size);
        let mut bytes = self.base.bytes.clone();
        for (block, data) in &*self.changed.lock().unpoisoned() {
            let at = BlockNo(*block).index() * unit;
            bytes[at..at + unit].copy_from_slice(data);
        }
        bytes
    }
}

/// Fails unless the block lies inside and the buffer is one block long.
pub(crate) fn check_request(geometry: Geometry, op: IoOp, block: BlockNo, len: usize) -> Result<()> {
    if block.get() < geometry.block_count && len == size(geometry.block_size) {
        return Ok(());
    }
    let reason = std::io::Error::new(std::io::ErrorKind::InvalidInput, "outside the device");
    Err(Error::io(op, block, reason))
}

impl BlockDevice for Image {
    fn geometry(&self) -> Geometry {
        self.base.geometry
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let changed = self.changed.lock().unpoisoned();
        for read in reads {
            check_request(self.base.geometry, IoOp::Read, read.block, read.data.len())?;
            let block = read.block.get();
            read.data.copy_from_slice(match changed.get(&block) {
                Some(data) => data,
                None => self.base.block(block),
            });
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut changed = self.changed.lock().unpoisoned();
        for write in writes {
            check_request(self.base.geometry, IoOp::Write, write.block, write.data.len())?;
            changed.insert(write.block.get(), write.data.into());
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}
