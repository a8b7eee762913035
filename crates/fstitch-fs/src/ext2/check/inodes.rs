//! Pass 1: every inode and every block that it claims.

use fstitch_core::{BlockKind, FileKind, Result};

use super::claims::{self, Totals};
use super::state::{DIRECTORY, Dir, State, USED, Volume, XattrUse};
use super::storage::Storage;
use super::{extents, quota, values, xattrs};
use crate::ext2::layout::Field;
use crate::ext2::layout::dirent::code_of;
use crate::ext2::layout::feature::{Features, compat, incompat, ro_compat};
use crate::ext2::layout::inode::{
    CASEFOLD_FL, EA_INODE_FL, EXTENTS_FL, GOOD_OLD_SIZE, I_BLOCKS, I_BLOCKS_HIGH, I_DTIME, I_EXTRA_ISIZE,
    I_FILE_ACL, I_FILE_ACL_HIGH, I_FLAGS, I_GID, I_LINKS_COUNT, I_MODE, I_SIZE, I_SIZE_HIGH, I_UID,
    INLINE_DATA_FL, POINTERS, foreign_flags, pointer_field,
};
use crate::ext2::layout::superblock::{
    GROUP_QUOTA_INO, JOURNAL_INO, OLD_FIRST_INO, RESIZE_INO, REVISION_DYNAMIC, ROOT_INO, S_FEATURE_COMPAT,
    S_FEATURE_INCOMPAT, S_FEATURE_RO_COMPAT, S_FIRST_INO, S_INODE_SIZE, S_JOURNAL_INUM, S_MKFS_TIME, S_MTIME,
    S_RESERVED_GDT_BLOCKS, S_REV_LEVEL, S_WTIME, USER_QUOTA_INO,
};
use crate::ext2::num::{idx, low32, small, wide};

/// An extent of a node has blocks on both sides of the file's end. e2fsck clears all of it, so soft updates leave none.
pub const EXTENT_ACROSS_END: &str = "extent-across-end";
/// The inode that lists blocks of the medium that are unusable.
pub(super) const BAD_BLOCKS_INO: u32 = 1;
/// Whether written blocks are behind a file's end. One is nobody's business, but in nodes of extents, where e2fsck knows none.
fn is_behind(totals: &Totals, (size, block): (u64, u64)) -> bool {
    let last = totals.end.saturating_sub(1);
    totals.crosses_end
        || if totals.has_nodes { size <= last * block && totals.end > 0 } else { size < last * block }
}

/// The mode of a journal: a file that only the superuser may use.
const JOURNAL_MODE: u16 = 0o100_600;
/// The inode of a boot loader, which may be a file.
const BOOT_LOADER_INO: u32 = 5;
/// `i_flags` of features that a volume which we check lacks: an AFS magic directory, casefolded.
const FOREIGN_FLAGS: u32 = 0x2000 | CASEFOLD_FL;
/// `i_flags`: the directory has a hash tree.
pub(super) const INDEX: u32 = 0x1000;
/// `i_flags`: immutable and append-only.
const LOCKING_FLAGS: u32 = 0x10 | 0x20;
/// Fields that only other formats use: fragment address, high bits of the block count, high bits of the
/// attribute block.
const FOREIGN_FIELDS: [(Field<u16>, &str); 4] = [
    (Field::at(0x70), "fragment address"),
    (Field::at(0x72), "fragment address"),
    (I_BLOCKS_HIGH, "high block count"),
    (I_FILE_ACL_HIGH, "high attribute block"),
];
/// Bytes of inode table read at once.
const CHUNK: usize = 64 * 1024;

/// Examines all inodes of `group` that were ever used.
pub(super) fn scan_group(volume: &Volume<'_>, state: &mut State, group: u32) -> Result<()> {
    let size = usize::from(volume.shape.inode_size);
    let used = volume.table_used(group);
    let blocks = used.div_ceil(volume.shape.inodes_per_block());
    let table = volume.groups[idx(group)].inode_table;
    let step = small((CHUNK / volume.block_size()).max(1));
    let mut chunk = Vec::new();
    let mut raw = Vec::new();
    let mut ino = group * volume.shape.inodes_per_group + 1;
    let end = ino + used;
    for at in (0..blocks).step_by(idx(step)) {
        let count = idx(step.min(blocks - at));
        chunk.resize(count * volume.block_size(), 0);
        volume.read(table + u64::from(at), BlockKind::Inode, &mut chunk)?;
        for block in chunk.chunks_exact(volume.block_size()) {
            let garbage = !state.seals() && is_garbage(volume, ino, block);
            for bytes in block.chunks_exact(size).take(idx(end - ino)) {
                if ino < volume.shape.first_ino || bytes[..GOOD_OLD_SIZE] != [0; GOOD_OLD_SIZE] {
                    raw.clear();
                    raw.extend_from_slice(bytes);
                    examine(volume, state, (ino, garbage), &mut raw)?;
                }
                ino += 1;
            }
        }
    }
    Ok(())
}

/// Whether the inodes in a block of a table are something else: most of them have wrong sums. `first` is the number of the
/// first one.
fn is_garbage(volume: &Volume<'_>, first: u32, block: &[u8]) -> bool {
    let size = usize::from(volume.shape.inode_size);
    if !volume.has_sums() {
        return false;
    }
    let inodes = (first..).zip(block.chunks_exact(size));
    let wrong = inodes.filter(|&(ino, raw)| !volume.inode_sum_matches(ino, raw)).count();
    wrong > block.len() / size / 2
}

/// Examines one inode, and writes it back if it was mended. One with a wrong sum is what it says if that makes sense, but in
/// the midst of garbage it is garbage.
fn examine(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, garbage): (u32, bool),
    raw: &mut [u8],
) -> Result<()> {
    let matches = volume.inode_sum_matches(ino, raw);
    if garbage && !matches {
        let text = format!("inode {ino} has a wrong sum, as most in its block have");
        if state.corrupt("inode-garbage", text) {
            raw.fill(0);
            return volume.write_inode(ino, raw);
        }
    }
    let mut scan = Scan { volume, state, ino, raw, changed: false };
    let links = I_LINKS_COUNT.get(scan.raw);
    if State::is_reserved(volume, ino) && ino != ROOT_INO {
        scan.reserved()?;
    } else if links == 0 && ino != ROOT_INO {
        scan.dead()?;
    } else {
        scan.live()?;
    }
    if !matches
        && !garbage
        && scan.state.wrong_sum("inode-sum", format!("the sum of inode {ino} does not match"))
    {
        scan.changed = true;
    }
    let changed = scan.changed;
    quota::note(volume, state, ino, raw);
    if changed {
        volume.write_inode(ino, raw)?;
    }
    Ok(())
}

/// One inode under examination.
pub(super) struct Scan<'s, 'v> {
    pub(super) volume: &'s Volume<'v>,
    pub(super) state: &'s mut State,
    pub(super) ino: u32,
    pub(super) raw: &'s mut [u8],
    pub(super) changed: bool,
}

impl Scan<'_, '_> {
    pub(super) fn get(&self, field: Field<u32>) -> u32 {
        field.get(self.raw)
    }

    pub(super) fn put(&mut self, field: Field<u32>, value: u32) {
        field.put(self.raw, value);
        self.changed = true;
    }

    pub(super) fn size(&self) -> u64 {
        u64::from(self.get(I_SIZE)) | u64::from(self.get(I_SIZE_HIGH)) << 32
    }

    pub(super) fn set_size(&mut self, size: u64) {
        self.put(I_SIZE, low32(size));
        self.put(I_SIZE_HIGH, low32(size >> 32));
    }

    /// An inode without links. Its pointers mean nothing.
    fn dead(&mut self) -> Result<()> {
        let (ino, dtime) = (self.ino, self.get(I_DTIME));
        if self.state.judging && dtime == 0 {
            self.about_to_be_freed()?;
        }
        if dtime == 0 && I_MODE.get(self.raw) != 0 || dtime != 0 && self.is_orphan_link(dtime) {
            // Its owners have it until it is freed.
            quota::note_nameless(self.volume, self.state, ino, self.raw);
        }
        if dtime == 0 && I_MODE.get(self.raw) != 0 {
            let text = format!("inode {ino} has no links but was not yet freed");
            if self.state.allowed("inode-unlinked", text) {
                let now = self.state.dtime();
                self.put(I_DTIME, now);
            }
        } else if dtime != 0 && self.is_orphan_link(dtime) {
            let text = format!("inode {ino} is on a list of inodes to be freed (next {dtime})");
            if self.state.allowed("inode-orphan", text) {
                let now = self.state.dtime().max(self.volume.shape.inodes_count + 1);
                self.put(I_DTIME, now);
            }
        }
        Ok(())
    }

    /// Claims what an inode has whose names are gone: freeing it frees that as well.
    fn about_to_be_freed(&mut self) -> Result<()> {
        let Some(kind) = FileKind::from_mode(I_MODE.get(self.raw)) else { return Ok(()) };
        self.attributes()?;
        let has_blocks = match kind {
            FileKind::Regular | FileKind::Directory => !self.is_inline(),
            FileKind::Symlink => self.size() >= 60 && !self.is_inline(),
            _ => false,
        };
        if has_blocks {
            claims::claim_map(self, kind, &mut Totals::default())?;
        }
        Ok(())
    }

    /// Whether a deletion time is rather a link of ext3's list of orphans: that many seconds after 1970 no
    /// volume existed, unless its own times say so.
    fn is_orphan_link(&self, dtime: u32) -> bool {
        let count = self.volume.shape.inodes_count;
        let early = [S_WTIME, S_MTIME, S_MKFS_TIME]
            .into_iter()
            .map(|field| field.get(&self.volume.raw_super))
            .any(|time| time != 0 && time < count);
        dtime < count && !early
    }

    /// A journal may also be a device of its own, and then this inode is as unused as without any.
    fn has_internal_journal(&self) -> bool {
        let features = self.volume.shape.features;
        features.compat & compat::HAS_JOURNAL != 0 && S_JOURNAL_INUM.get(&self.volume.raw_super) == self.ino
    }

    /// Whether the inode says that it is none.
    fn is_empty(&self) -> bool {
        I_MODE.get(self.raw) == 0
            && I_LINKS_COUNT.get(self.raw) == 0
            && self.get(I_BLOCKS) == 0
            && self.get(pointer_field(0)) == 0
    }

    /// Inodes below the first ordinary one, apart from the root.
    fn reserved(&mut self) -> Result<()> {
        let ino = self.ino;
        self.state.inodes[idx(ino)] |= USED | 1;
        let features = self.volume.shape.features;
        let mode = I_MODE.get(self.raw);
        let lawful = match ino {
            RESIZE_INO if features.compat & compat::RESIZE_INODE != 0 => {
                // Its shape was checked with the superblock; only its root block is not metadata already.
                claims::claim_resize(self);
                return Ok(());
            }
            JOURNAL_INO if self.has_internal_journal() => mode & 0xf000 == 0x8000,
            // An empty one gets a file when all usage is known.
            USER_QUOTA_INO | GROUP_QUOTA_INO if self.volume.shape.has_quotas_in(ino) => {
                mode & 0xf000 == 0x8000 || self.is_empty()
            }
            BAD_BLOCKS_INO => mode == 0 && I_LINKS_COUNT.get(self.raw) == 0 && self.get(I_FILE_ACL) == 0,
            BOOT_LOADER_INO => mode & 0xf000 != 0x4000,
            RESIZE_INO => mode == 0 || mode & 0xf000 == 0x8000,
            JOURNAL_INO | USER_QUOTA_INO | GROUP_QUOTA_INO => self.is_empty(),
            _ => mode == 0,
        };
        if ino == BAD_BLOCKS_INO && (I_UID.get(self.raw) != 0 || I_GID.get(self.raw) != 0) || !lawful {
            let text = format!("reserved inode {ino} is not as it must be (mode {mode:#o})");
            let mended = if ino == JOURNAL_INO && mode == JOURNAL_MODE && I_LINKS_COUNT.get(self.raw) == 1 {
                self.state
                    .allowed("journal-inode-unused", "inode 8 is a journal that the superblock does not know")
            } else {
                self.state.corrupt("inode-reserved", text)
            };
            if mended {
                self.raw.fill(0);
                self.changed = true;
                return Ok(());
            }
        }
        self.deletion_time();
        self.flags(FileKind::Regular);
        self.foreign_fields();
        // Without a kind the pointers mean nothing, except in the list of bad blocks.
        if ino == BAD_BLOCKS_INO {
            return claims::claim_map(self, FileKind::Regular, &mut Totals::default());
        }
        let mut totals = Totals { blocks: self.attributes()?, ..Totals::default() };
        if mode != 0 {
            claims::claim_map(self, FileKind::Regular, &mut totals)?;
        }
        self.file_size(&totals)?;
        self.block_count(totals.blocks);
        Ok(())
    }

    /// An inode with links.
    fn live(&mut self) -> Result<()> {
        let ino = self.ino;
        if self.raw[..GOOD_OLD_SIZE].iter().all(|&b| b == 0) {
            return Ok(());
        }
        let links = I_LINKS_COUNT.get(self.raw);
        self.state.links[idx(ino)] = links;
        if self.get(I_FLAGS) & EA_INODE_FL & !foreign_flags(&self.volume.shape.features) != 0 {
            self.state.value_inodes.insert(ino);
        }
        let until = self.state.until;
        self.state.leftovers.note(self.raw, until);
        self.state.inodes[idx(ino)] |= USED;
        self.deletion_time();
        let mode = I_MODE.get(self.raw);
        let Some(kind) = self.kind(mode)? else {
            self.bad("inode-bad-mode");
            return Ok(());
        };
        self.state.inodes[idx(ino)] |= code_of(kind);
        if kind == FileKind::Directory {
            self.state.dirs.push(Dir { ino, dotdot: 0, parent: 0, children: 0 });
        } else if ino == ROOT_INO && self.state.corrupt("root-not-directory", "the root is no directory") {
            // Pass 3 makes a new one where there is none.
            self.raw.fill(0);
            self.changed = true;
            return Ok(());
        }
        self.extra_fields();
        self.flags(kind);
        self.foreign_fields();
        self.extents_inside(kind);
        let attributes = self.attributes()?;
        match kind {
            FileKind::Regular | FileKind::Directory => self.mapped(kind, attributes),
            FileKind::Symlink => self.symlink(attributes),
            _ => {
                self.special();
                self.block_count(attributes);
                Ok(())
            }
        }
    }

    /// What has links was not deleted.
    fn deletion_time(&mut self) {
        let links = I_LINKS_COUNT.get(self.raw);
        if links != 0 && self.get(I_DTIME) != 0 {
            let text = format!("inode {} has {links} links and a deletion time", self.ino);
            if self.state.corrupt("inode-dtime", text) {
                self.put(I_DTIME, 0);
            }
        }
    }

    /// Notes the inode as senseless; whether that is damage depends on whether anything names it.
    pub(super) fn bad(&mut self, code: &'static str) {
        self.state.mark_bad(self.ino, code);
    }

    /// Fields beyond the first 128 bytes.
    fn extra_fields(&mut self) {
        if self.raw.len() <= GOOD_OLD_SIZE {
            return;
        }
        let ino = self.ino;
        let extra = usize::from(I_EXTRA_ISIZE.get(self.raw));
        let room = self.raw.len() - GOOD_OLD_SIZE;
        if extra != 0 && (extra < 4 || extra > room || !extra.is_multiple_of(4)) {
            let text = format!("inode {ino} has {extra} bytes of extra fields, room is for {room}");
            if self.state.corrupt("inode-extra-size", text) {
                I_EXTRA_ISIZE.put(self.raw, u16::try_from(room.min(32)).expect("at most 32"));
                self.raw[GOOD_OLD_SIZE + 2..].fill(0);
                self.changed = true;
            }
        }
    }

    fn flags(&mut self, kind: FileKind) {
        let (ino, flags) = (self.ino, self.get(I_FLAGS));
        let index_allowed =
            kind == FileKind::Directory && self.volume.shape.features.compat & compat::DIR_INDEX != 0;
        let unknown =
            FOREIGN_FLAGS | foreign_flags(&self.volume.shape.features) & !self.flags_of_lost_features();
        let foreign = flags & unknown | if index_allowed { 0 } else { flags & INDEX };
        if foreign != 0 {
            let text = format!("inode {ino} has flags {foreign:#x}, which mean nothing here");
            if self.state.corrupt("inode-bad-flags", text) {
                let target = kind == FileKind::Symlink && self.has_target_inside();
                if foreign & EXTENTS_FL != 0 && !target {
                    for at in 0..POINTERS {
                        self.put(pointer_field(at), 0);
                    }
                }
                self.put(I_FLAGS, flags & !foreign);
            }
        }
        let locking = flags & LOCKING_FLAGS;
        if locking != 0 && !matches!(kind, FileKind::Regular | FileKind::Directory) {
            let text = format!("inode {ino} is no file or directory, but immutable or append-only");
            if self.state.corrupt("inode-special-flags", text) {
                self.put(I_FLAGS, flags & !(foreign | LOCKING_FLAGS));
            }
        }
    }

    /// Flags of features that the superblock does not have, but this inode has by what is in it: then the superblock lost them. Without
    /// their flags all files would be empty.
    fn flags_of_lost_features(&mut self) -> u32 {
        let (flags, features) = (self.get(I_FLAGS), self.volume.shape.features);
        let mapped = flags & EXTENTS_FL != 0 && extents::header(&self.raw[extents::ROOT], None).is_ok();
        let inside = flags & INLINE_DATA_FL != 0 && xattrs::inline_value(self.raw).is_some();
        let mut lost = 0;
        for (is_here, flag, feature) in
            [(mapped, EXTENTS_FL, incompat::EXTENTS), (inside, INLINE_DATA_FL, incompat::INLINE_DATA)]
        {
            if is_here && !features.has_incompat(feature) {
                lost |= flag;
                self.state.lost_features |= feature;
            }
        }
        lost
    }

    fn foreign_fields(&mut self) {
        let features = &self.volume.shape.features;
        let huge = features.has_ro_compat(ro_compat::HUGE_FILE);
        let large = features.has_incompat(incompat::BIT64);
        for (field, what) in FOREIGN_FIELDS {
            let value = field.get(self.raw);
            let is_counted = huge && field.offset() == I_BLOCKS_HIGH.offset();
            if value == 0 || is_counted || (large && field.offset() == I_FILE_ACL_HIGH.offset()) {
                continue;
            }
            let text = format!("inode {} has {what} {value:#x}, expected 0", self.ino);
            if self.state.corrupt("inode-foreign-field", text) {
                field.put(self.raw, 0);
                self.changed = true;
            }
        }
    }

    /// Checks extended attributes; the number of blocks that they take, those of values in other inodes included.
    fn attributes(&mut self) -> Result<u64> {
        let inside = xattrs::check_body(self)?;
        self.state.refer_values(&inside.values);
        Ok(inside.value_blocks + self.attribute_block()?)
    }

    /// The block of attributes that the inode names.
    fn attributes_at(&self) -> u64 {
        let high = if self.volume.shape.features.has_incompat(incompat::BIT64) {
            u64::from(I_FILE_ACL_HIGH.get(self.raw)) << 32
        } else {
            0
        };
        u64::from(self.get(I_FILE_ACL)) | high
    }

    fn clear_attributes_at(&mut self) {
        self.put(I_FILE_ACL, 0);
        I_FILE_ACL_HIGH.put(self.raw, 0);
    }

    fn attribute_block(&mut self) -> Result<u64> {
        let block = self.attributes_at();
        if block == 0 {
            return Ok(0);
        }
        let ino = self.ino;
        if self.volume.source.inode_moves(ino) || self.volume.source.block_moves(block) {
            return Ok(0);
        }
        let enabled = self.volume.shape.features.compat & compat::EXT_ATTR != 0;
        if !enabled || !self.volume.is_valid(block) {
            let text = format!("inode {ino} has attribute block {block}, which cannot be");
            if self.state.corrupt("xattr-bad-pointer", text) {
                self.clear_attributes_at();
            }
            return Ok(0);
        }
        if let Some(known) = self.state.xattrs.get_mut(&block) {
            known.seen += 1;
            return Ok(1 + known.value_blocks);
        }
        let mut bytes = vec![0; self.volume.block_size()];
        self.volume.read(block, BlockKind::Attribute, &mut bytes)?;
        match xattrs::check_block(self.volume, &bytes)? {
            Ok((counted, entries)) => {
                let value_blocks = entries.value_blocks;
                self.state.refer_values(&entries.values);
                self.state.xattrs.insert(block, XattrUse { seen: 1, counted, value_blocks });
                self.claim_attribute_block(block);
                self.attribute_sum(block, &mut bytes)?;
                Ok(1 + value_blocks)
            }
            Err(problem) => {
                let text = format!("attribute block {block} of inode {ino}: {problem}");
                if self.state.corrupt("xattr-bad-block", text) {
                    self.clear_attributes_at();
                    return Ok(0);
                }
                self.state.claim(block);
                Ok(1)
            }
        }
    }

    fn attribute_sum(&mut self, block: u64, bytes: &mut [u8]) -> Result<()> {
        let text = format!("the sum of attribute block {block} does not match");
        if !self.volume.attribute_sum_matches(block, bytes) && self.state.wrong_sum("xattr-sum", text) {
            self.volume.write_attributes(block, bytes)?;
        }
        Ok(())
    }

    fn claim_attribute_block(&mut self, block: u64) {
        if !self.state.claim(block) {
            let text = format!("attribute block {block} of inode {} has another owner", self.ino);
            if self.state.corrupt("block-shared", text) {
                self.clear_attributes_at();
                self.state.xattrs.remove(&block);
            }
        }
    }

    /// Devices, pipes and sockets have neither blocks nor a length. Where a file has its map, which nobody reads here, others
    /// may have left something.
    fn special(&mut self) {
        if self.get(I_FLAGS) & (INDEX | EXTENTS_FL | INLINE_DATA_FL) != 0 {
            self.bad("inode-bad-special");
            return;
        }
        let (ino, size) = (self.ino, self.size());
        if size != 0 {
            let text = format!("inode {ino} is no file, but has {size} bytes");
            if self.state.corrupt("inode-special-size", text) {
                self.set_size(0);
            }
        }
    }

    /// Whether the contents lie in the inode.
    pub(super) fn is_inline(&self) -> bool {
        self.get(I_FLAGS) & INLINE_DATA_FL != 0
    }

    /// Files and directories.
    fn mapped(&mut self, kind: FileKind, attributes: u64) -> Result<()> {
        if self.is_inline() {
            return self.inline(kind, attributes);
        }
        self.extents_without_flag();
        let mut totals = Totals { blocks: attributes, ..Totals::default() };
        claims::claim_map(self, kind, &mut totals)?;
        if kind == FileKind::Directory {
            if totals.end == 0 {
                self.bad("dir-without-blocks");
            }
            self.directory_size(&totals);
        } else {
            self.file_size(&totals)?;
        }
        self.block_count(totals.blocks);
        Ok(())
    }

    /// A root of a tree of extents where by a flag the contents are. Those would have their attribute, or not be longer than
    /// there is room for.
    fn extents_inside(&mut self, kind: FileKind) {
        let mapped = matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
        if !mapped || !self.is_inline() || !self.has_root_of_extents() || self.fits_inside() {
            return;
        }
        let flags = self.get(I_FLAGS);
        let text = format!("inode {} is mapped by extents, but by its flags {flags:#x} is not", self.ino);
        // Also where nothing is mended, so that all see who owns its blocks.
        I_FLAGS.put(self.raw, flags & !INLINE_DATA_FL | EXTENTS_FL);
        self.changed |= self.state.corrupt("inode-extents-flag", text);
    }

    pub(super) fn has_root_of_extents(&self) -> bool {
        self.volume.shape.features.has_incompat(incompat::EXTENTS)
            && extents::header(&self.raw[extents::ROOT], None).is_ok()
    }

    /// A map that is the root of a tree of extents by its contents, but not by the inode's flag.
    fn extents_without_flag(&mut self) {
        let flags = self.get(I_FLAGS);
        let lost = flags & EXTENTS_FL == 0 && self.has_root_of_extents();
        let text = format!("inode {} is mapped by extents, but lacks the flag", self.ino);
        if lost && self.state.corrupt("inode-extents-flag", text) {
            self.put(I_FLAGS, flags | EXTENTS_FL);
        }
    }

    fn directory_size(&mut self, totals: &Totals) {
        let (ino, size, block) = (self.ino, self.size(), wide(self.volume.block_size()));
        let mapped = totals.end * block;
        if size == mapped || totals.end == 0 {
            return;
        }
        let text = format!("directory {ino} has {size} bytes, its blocks have {mapped}");
        // The pointer of a new block precedes the length.
        let mend = if size < mapped && size.is_multiple_of(block) {
            let code = if totals.crosses_end { EXTENT_ACROSS_END } else { "dir-size-behind" };
            self.state.allowed(code, text)
        } else {
            self.state.dir_problem(ino, "dir-bad-size", text)
        };
        if mend {
            self.set_size(mapped);
        }
    }

    fn file_size(&mut self, totals: &Totals) -> Result<()> {
        let (ino, size, block) = (self.ino, self.size(), wide(self.volume.block_size()));
        let by_extents = self.get(I_FLAGS) & EXTENTS_FL != 0;
        let per_block = u64::from(self.volume.shape.pointers_per_block());
        let by_pointers = 12 + per_block + per_block.pow(2) + per_block.pow(3);
        let reach = if by_extents { u64::from(u32::MAX) } else { by_pointers } * block;
        if size > reach {
            let text = format!("inode {ino} has {size} bytes, a block map reaches {reach}");
            if self.state.corrupt("file-too-long", text) {
                self.set_size(totals.end * block);
            }
        } else if is_behind(totals, (size, block)) {
            let text = format!("inode {ino} has {size} bytes, but blocks up to {}", totals.end * block);
            let code = if totals.crosses_end { EXTENT_ACROSS_END } else { "blocks-beyond-size" };
            if self.state.allowed(code, text) {
                if by_extents && !self.state.leftovers.are_of_soft_updates() {
                    // A journal keeps length and map together, and what may lie behind the end reads as zeros: the length
                    // is wrong.
                    self.set_size(totals.end * block);
                } else {
                    // They were never visible, so they go; making the file longer would show them.
                    claims::cut(self, size.div_ceil(block))?;
                    self.changed = true;
                }
            }
        }
        if size >= 1 << 31 && !self.volume.source.inode_moves(ino) {
            self.state.large_file = true;
        }
        Ok(())
    }

    /// Compares what the inode counts with the clusters that it has.
    pub(super) fn block_count(&mut self, clusters: u64) {
        let ino = self.ino;
        let mut storage = Storage::of(self.volume, self.raw);
        if storage.is_of(clusters) {
            return;
        }
        let what = if self.volume.shape.has_clusters() { "clusters" } else { "blocks" };
        let text = format!("inode {ino} counts {} sectors, it has {clusters} {what}", storage.sectors);
        if self.state.allowed("inode-block-count", text) {
            storage.set_clusters(clusters);
            storage.put(self.raw);
            self.changed = true;
        }
    }
}

/// Frees an inode in its own bytes: no links, no pointers, a deletion time.
pub(super) fn clear_inode(raw: &mut [u8], dtime: u32) {
    I_LINKS_COUNT.put(raw, 0);
    I_DTIME.put(raw, dtime);
    I_SIZE.put(raw, 0);
    I_SIZE_HIGH.put(raw, 0);
    I_BLOCKS.put(raw, 0);
    I_FILE_ACL.put(raw, 0);
    I_FILE_ACL_HIGH.put(raw, 0);
    I_FLAGS.put(raw, I_FLAGS.get(raw) & !(EXTENTS_FL | INLINE_DATA_FL | EA_INODE_FL));
    for at in 0..POINTERS {
        pointer_field(at).put(raw, 0);
    }
}

/// What can only be judged when all inodes are known: attribute blocks' counts, and the feature bit for
/// large files.
pub(super) fn finish(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    xattrs::check_counts(volume, state)?;
    values::check_counts(volume, state)?;
    let lost = Features { incompat: state.lost_features, ..Features::default() }.all_names().join(", ");
    if state.lost_features != 0
        && state
            .corrupt("feature-lost", format!("inodes have the feature {lost}, which the superblock lacks"))
    {
        if !volume.shape.is_dynamic() {
            make_dynamic(&mut volume.raw_super);
        }
        let word = volume.shape.features.incompat | state.lost_features;
        S_FEATURE_INCOMPAT.put(&mut volume.raw_super, word);
        volume.shape.features.incompat = word;
        volume.write_super()?;
    }
    let word = volume.shape.features.ro_compat;
    if state.large_file && word & ro_compat::LARGE_FILE == 0 {
        let text = "a file has 2 GiB or more, but the feature large_file is off";
        if state.corrupt("large-file-feature", text) {
            if !volume.shape.is_dynamic() {
                make_dynamic(&mut volume.raw_super);
            }
            S_FEATURE_RO_COMPAT.put(&mut volume.raw_super, word | ro_compat::LARGE_FILE);
            volume.shape.features.ro_compat |= ro_compat::LARGE_FILE;
            volume.write_super()?;
        }
    }
    Ok(())
}

/// Makes a volume one of revision 1, the first that can have features; nothing else about it changes.
fn make_dynamic(raw: &mut [u8]) {
    S_REV_LEVEL.put(raw, REVISION_DYNAMIC);
    S_FIRST_INO.put(raw, OLD_FIRST_INO);
    S_INODE_SIZE.put(raw, u16::try_from(GOOD_OLD_SIZE).expect("128"));
    for field in [S_FEATURE_COMPAT, S_FEATURE_INCOMPAT, S_FEATURE_RO_COMPAT] {
        field.put(raw, 0);
    }
    S_RESERVED_GDT_BLOCKS.put(raw, 0);
}

const _: () = assert!(DIRECTORY == 2);
