//! Making a volume, and giving it another name.
//!
//! **Crash cases.** A cut leaves no root, or that of the first generation, which is the new volume.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockWrite, Clock, Error, InodeFlags, ManualClock, Result, SystemClock,
    Timestamp,
};
use fstitch_patch::{Cache, CacheOptions};

use super::layout::inode::Inode;
use super::layout::pointer::{Fork, Ref};
use super::layout::record::{Record, Source, TreeKind};
use super::layout::root::Root;
use super::layout::{BLOCK, BLOCKS_MAX, BLOCKS_MIN, FIRST_INO, ROOT_INO, ROOT_PLACES};
use super::state::State;

/// Memory for making a volume.
const CACHE_BYTES: usize = 64 << 20;

/// How a volume is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsOptions {
    /// Who it is.
    pub uuid: [u8; 16],
    /// A name for people, of at most 64 bytes.
    pub label: Vec<u8>,
    /// The seed of names' keys: a random number.
    pub seed: u64,
    /// The time of its making.
    pub now: Timestamp,
    /// User and group of the root directory.
    pub owner: (u32, u32),
    /// Blocks of the volume; all of the device if none are said.
    pub blocks: Option<u64>,
    /// What is written to its files is compressed, unless they say otherwise.
    pub is_compressed: bool,
}

/// A label as the root has it.
///
/// # Errors
/// `Unsupported` if it is too long, or has a zero.
pub fn label(text: &[u8]) -> Result<[u8; 64]> {
    let mut label = [0; 64];
    if text.len() > label.len() || text.contains(&0) {
        return Err(Error::Unsupported("such a label: those of waffle have 64 bytes at most".into()));
    }
    label[..text.len()].copy_from_slice(text);
    Ok(label)
}

/// Makes an empty volume on a device.
///
/// # Errors
/// `Unsupported` for what cannot be; `Io`.
pub fn mkfs(device: Arc<dyn BlockDevice>, options: &MkfsOptions) -> Result<Root> {
    let device = super::grouped(device)?;
    let geometry = device.geometry();
    let blocks = options.blocks.unwrap_or(geometry.block_count);
    if !(BLOCKS_MIN..=BLOCKS_MAX).contains(&blocks) || blocks > geometry.block_count {
        let what = format!("a waffle volume of {blocks} blocks: {BLOCKS_MIN} are the least");
        return Err(Error::Unsupported(what));
    }
    let root = Root {
        compat: 0,
        ro_compat: 0,
        incompat: 0,
        uuid: options.uuid,
        label: label(&options.label)?,
        generation: 0,
        blocks,
        map: Ref::NONE,
        trees: Fork::default(),
        shared: Fork::default(),
        is_closed: false,
        records: 1,
        free: 0,
        next_tree: 2,
        at: options.now,
        made: options.now,
    };
    wipe(&*device)?;
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let cache =
        Cache::new(device, CacheOptions { cache_size: CACHE_BYTES, ..CacheOptions::default() }, clock);
    let mut state = State::new(cache, root, first_tree(options));
    state.begin(options.now);
    state.put_new(&root_dir(options))?;
    state.apply()?;
    // Both places have a root then.
    for _ in ROOT_PLACES {
        settle(&mut state, options.now)?;
    }
    Ok(state.root)
}

fn settle(state: &mut State, now: Timestamp) -> Result<()> {
    state.commit(now, true)?;
    state.cache.sync_patches(&[state.last_root])
}

/// What was there is gone: no root of an earlier volume may be found, and nothing that other formats have at the start.
fn wipe(device: &dyn BlockDevice) -> Result<()> {
    let zeros = vec![0; BLOCK];
    let writes: Vec<BlockWrite<'_>> = (0..=ROOT_PLACES[1])
        .map(|block| BlockWrite { block: BlockNo(block), kind: BlockKind::Superblock, data: &zeros })
        .collect();
    device.write(&writes)?;
    device.flush()
}

fn first_tree(options: &MkfsOptions) -> Record {
    Record {
        kind: TreeKind::Head,
        id: 1,
        generation: 0,
        origin: 0,
        head: 1,
        inodes: Fork::default(),
        ino_end: FIRST_INO,
        free_ino: 0,
        orphan: 0,
        used: 1,
        orphans: 0,
        made: options.now,
        seed: options.seed,
        is_receiving: false,
        source: Source::default(),
        name: Vec::new(),
    }
}

fn root_dir(options: &MkfsOptions) -> Inode {
    let (uid, gid) = options.owner;
    let flags = if options.is_compressed { InodeFlags::COMPR } else { 0 };
    Inode { uid, gid, flags, ..Inode::directory(ROOT_INO, 0o755, options.now) }
}

/// Gives a volume that nobody uses another label or UUID.
///
/// # Errors
/// `Unsupported` for such a label; `Io`, `Corrupt`.
pub fn identify(device: Arc<dyn BlockDevice>, text: Option<&[u8]>, uuid: Option<[u8; 16]>) -> Result<()> {
    let device = super::grouped(device)?;
    let root = Root::read(&*device)?;
    root.check_writable()?;
    let named = text.map(label).transpose()?;
    let options = CacheOptions { cache_size: CACHE_BYTES, ..CacheOptions::default() };
    let cache = Cache::new(device, options, Arc::new(SystemClock::new()));
    let now = cache.clock().now();
    let mut state = State::open(cache, root, b"")?;
    state.root.label = named.unwrap_or(state.root.label);
    state.root.uuid = uuid.unwrap_or(state.root.uuid);
    let is_closed = state.root.is_closed;
    state.commit(now, is_closed)?;
    state.cache.sync_patches(&[state.last_root])
}
