//! What users, groups and projects have, against what their files of quotas say.
//!
//! **Layout.** [`crate::ext2::quota`]. A file that is wrong in anything is made anew, in its own blocks as far as they go, with the limits
//! that could be read.
//!
//! **Crash cases.** The file is written over in place: cut in the middle, the next check finds a damaged one, and may find fewer limits.

use std::collections::BTreeMap;

use fstitch_core::{BlockKind, BlockNo, Error, InodeNo, Result};

use super::claims::allocate;
use super::grow::put_pointer;
use super::state::{State, Volume};
use super::storage::Storage;
use crate::ext2::layout::extent::Node;
use crate::ext2::layout::feature::{incompat, ro_compat};
use crate::ext2::layout::inode::{
    DiskInode, EA_INODE_FL, EXTENTS_FL, GOOD_OLD_SIZE, I_CTIME, I_EXTRA_ISIZE, I_FLAGS, I_LINKS_COUNT,
    I_MODE, I_MTIME, I_SIZE, I_SIZE_HIGH, new_extra_isize, pointer_field,
};
use crate::ext2::layout::quota::{Dquot, Header, QUOTA_BLOCK, QuotaKind};
use crate::ext2::layout::superblock::Superblock;
use crate::ext2::num::{idx, low32, small, wide};
use crate::ext2::quota::offline::OfflineFile;
use crate::ext2::quota::tree::{Source, Tree, build};
use crate::ext2::quota::{FILE_FLAGS, FILE_MODE, Usage};

/// What everybody has, by kind and id.
pub(super) type Usages = [BTreeMap<u32, Usage>; 3];

/// Nothing yet, on a volume where usage is counted.
pub(super) fn usages_of(shape: &Superblock) -> Option<Usages> {
    shape.features.has_ro_compat(ro_compat::QUOTA).then(Usages::default)
}

/// Counts an inode with names for its owners.
pub(super) fn note(volume: &Volume<'_>, state: &mut State, ino: u32, raw: &[u8]) {
    if state.usage.is_some() && I_LINKS_COUNT.get(raw) != 0 && state.is_used(ino) {
        note_nameless(volume, state, ino, raw);
    }
}

/// Counts an inode for its owners.
pub(super) fn note_nameless(volume: &Volume<'_>, state: &mut State, ino: u32, raw: &[u8]) {
    let Some(usage) = &mut state.usage else { return };
    let is_files = volume.shape.is_files_inode(ino) && I_FLAGS.get(raw) & EA_INODE_FL == 0;
    // What is no inode is found by others, and is nobody's when it was mended.
    let disk = DiskInode::parse(raw, InodeNo(u64::from(ino)), BlockNo(0), &volume.shape);
    if let (true, Ok(disk)) = (is_files, disk) {
        let own = disk.usage();
        for (usage, id) in usage.iter_mut().zip(disk.owners()) {
            let entry = usage.entry(id).or_default();
            entry.inodes = entry.inodes.saturating_add(own.inodes);
            entry.space = entry.space.saturating_add(own.space);
        }
    }
}

/// Compares all files of quotas with what was counted.
pub(super) fn run(volume: &Volume<'_>, state: &mut State) -> Result<()> {
    if state.judging {
        // Inodes have moved since they were counted.
        return Ok(());
    }
    let Some(usage) = state.usage.take() else { return Ok(()) };
    for (kind, usage) in QuotaKind::ALL.into_iter().zip(&usage) {
        let ino = volume.shape.quota_inodes[kind.index()];
        if volume.shape.is_quota_inode(kind, ino) {
            compare(volume, state, (kind, ino), usage)?;
        }
    }
    state.usage = Some(usage);
    Ok(())
}

/// A file's blocks.
struct FileBlocks<'v> {
    volume: &'v Volume<'v>,
    file: &'v OfflineFile,
    kind: QuotaKind,
}

impl Source for FileBlocks<'_> {
    fn block(&self, no: u32) -> Result<Vec<u8>> {
        let (block, at) = self.file.place(self.kind, no)?;
        let mut bytes = vec![0; self.volume.block_size()];
        self.volume.source.read(block, BlockKind::Indirect, &mut bytes)?;
        Ok(bytes[at..at + QUOTA_BLOCK].to_vec())
    }
}

/// What could be read of a file.
struct Found {
    header: Header,
    entries: BTreeMap<u32, Dquot>,
    /// Why it is none.
    damage: Option<String>,
}

impl Found {
    fn damaged(header: Header, entries: BTreeMap<u32, Dquot>, error: Error) -> Result<Self> {
        let Error::Corrupt(problem) = error else { return Err(error) };
        Ok(Self { header, entries, damage: Some(problem.to_string()) })
    }
}

fn read(volume: &Volume<'_>, kind: QuotaKind, raw: &[u8]) -> Result<Found> {
    let file = match disk_of(volume, raw)
        .and_then(|disk| OfflineFile::of(volume.source, &volume.shape, (kind, &disk)))
    {
        Ok(file) => file,
        Err(error) => return Found::damaged(Header::EMPTY, BTreeMap::new(), error),
    };
    let source = FileBlocks { volume, file: &file, kind };
    let header = match source.block(0).and_then(|raw| Header::parse(&raw, kind, file.len)) {
        Ok(header) => header,
        Err(error @ Error::Corrupt(_)) => {
            // The rest of it may be whole.
            let blocks = small(idx(low32(file.len)) / QUOTA_BLOCK);
            let header = Header { blocks: blocks.max(Header::EMPTY.blocks), ..Header::EMPTY };
            let entries = Tree { source: &source, kind, header }.salvage();
            return Found::damaged(header, entries, error);
        }
        Err(error) => return Err(error),
    };
    let tree = Tree { source: &source, kind, header };
    match tree.all() {
        Ok(entries) => Ok(Found { header, entries, damage: None }),
        Err(error) => Found::damaged(header, tree.salvage(), error),
    }
}

fn disk_of(volume: &Volume<'_>, raw: &[u8]) -> Result<DiskInode> {
    DiskInode::parse(raw, InodeNo(0), BlockNo(0), &volume.shape)
}

fn compare(
    volume: &Volume<'_>,
    state: &mut State,
    (kind, ino): (QuotaKind, u32),
    usage: &BTreeMap<u32, Usage>,
) -> Result<()> {
    let raw = volume.read_inode(ino)?;
    let Found { header, mut entries, damage } = read(volume, kind, &raw)?;
    let before = state.report.total;
    let mut mend = false;
    let is_whole = damage.is_none();
    if let Some(problem) = damage {
        mend |= state.corrupt("quota-file", problem);
    }
    let ids: Vec<u32> = entries.keys().chain(usage.keys()).copied().collect();
    for id in ids {
        let has = usage.get(&id).copied().unwrap_or_default();
        let said = entries.get(&id).map(|entry| Usage { inodes: entry.inodes, space: entry.space });
        if said == Some(has) {
            continue;
        }
        if is_whole {
            let said = said.map_or("has no entry".to_owned(), |Usage { inodes, space }| {
                format!("is said to have {inodes} inodes and {space} bytes")
            });
            let text = format!("{} {id} {said}, but has {} and {}", kind.name(), has.inodes, has.space);
            mend |= state.corrupt("quota-usage", text);
        }
        let entry = entries.entry(id).or_default();
        (entry.inodes, entry.space) = (has.inodes, has.space);
    }
    if mend && !rewrite(volume, state, (kind, ino, raw), (&header, &entries))? {
        // There is no room: it stays as it is, and so does what was said about it.
        state.mended -= state.report.total - before;
    }
    Ok(())
}

/// Writes a file of these entries; false if there is no room.
fn rewrite(
    volume: &Volume<'_>,
    state: &mut State,
    (kind, ino, mut raw): (QuotaKind, u32, Vec<u8>),
    (header, entries): (&Header, &BTreeMap<u32, Dquot>),
) -> Result<bool> {
    let contents = build(kind, header, entries)?;
    let unit = volume.block_size();
    let file =
        disk_of(volume, &raw).and_then(|disk| OfflineFile::of(volume.source, &volume.shape, (kind, &disk)));
    let mut blocks = match file {
        Ok(file) => (0..file.blocks()).map(|at| file.block(at)).collect::<Result<Vec<_>>>()?,
        // What its blocks were is not known: they are free when nobody has them.
        Err(Error::Corrupt(_)) => {
            begin_anew(volume, state, &mut raw);
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    if volume.shape.has_clusters() && blocks.len() * unit < contents.len() {
        // Blocks of a cluster lie together, which nothing here sees to.
        return Ok(false);
    }
    while blocks.len() * unit < contents.len() {
        let Some(block) = allocate(volume, state)? else { return Ok(false) };
        volume.write(block, BlockKind::Indirect, &vec![0; unit])?;
        let at = (blocks.len(), block);
        let Some(made) = put_pointer(volume, state, (ino, &mut raw), at)? else { return Ok(false) };
        let mut storage = Storage::of(volume, &raw);
        storage.add_clusters(made);
        storage.put(&mut raw);
        blocks.push(BlockNo(block));
    }
    for (at, &block) in blocks.iter().enumerate() {
        let part = contents.get(at * unit..).unwrap_or_default();
        let mut bytes = part[..part.len().min(unit)].to_vec();
        bytes.resize(unit, 0);
        volume.source.write(block, BlockKind::Indirect, &bytes)?;
    }
    volume.source.flush()?;
    let size = wide(blocks.len() * unit);
    I_SIZE.put(&mut raw, low32(size));
    I_SIZE_HIGH.put(&mut raw, low32(size >> 32));
    volume.write_inode(ino, &raw)?;
    Ok(true)
}

/// An inode of a file without blocks.
fn begin_anew(volume: &Volume<'_>, state: &State, raw: &mut [u8]) {
    raw.fill(0);
    I_MODE.put(raw, FILE_MODE);
    I_LINKS_COUNT.put(raw, 1);
    let now = state.dtime();
    I_CTIME.put(raw, now);
    I_MTIME.put(raw, now);
    let by_extents = volume.shape.features.has_incompat(incompat::EXTENTS);
    I_FLAGS.put(raw, FILE_FLAGS | if by_extents { EXTENTS_FL } else { 0 });
    if by_extents {
        for (at, word) in Node::empty_root().root_words().into_iter().enumerate() {
            pointer_field(at).put(raw, word);
        }
    }
    if raw.len() > GOOD_OLD_SIZE {
        I_EXTRA_ISIZE.put(raw, new_extra_isize(&volume.shape));
    }
}
