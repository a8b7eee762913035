//! What the blocks of an ext2 volume are for people, by the names of the files that they belong to, and which new contents of one
//! block mean nothing without those of another.
//!
//! **What is said to need what.** A new name needs the inode; an inode that is new needs its bit in the bitmap; a new pointer needs the
//! block's bit and the contents of the block; an inode's or block's cleared bit needs the cleared inode or pointer. These are the
//! rules of soft updates ([S] §2), read from the blocks themselves and not from the patches, so that the drawing does not
//! repeat the opinion of what it judges.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, FileKind, InodeNo};
use fstitch_fs::ext2::layout::dirent::entries;
use fstitch_fs::ext2::layout::group::GroupDescriptor;
use fstitch_fs::ext2::layout::inode::{DiskInode, place};
use fstitch_fs::ext2::layout::superblock::Superblock;

use fstitch_crashlab::medium::Image;
use fstitch_crashlab::{Anatomy, Need, System};

/// Direct pointers of an inode; the others point at blocks with pointers.
const DIRECT: usize = 12;
/// The inode of the root directory, and that of the journal.
const ROOT: u32 = 2;
const JOURNAL: u32 = 8;

/// A volume, as far as it could be read.
pub struct Ext2Anatomy {
    volume: Superblock,
    groups: Vec<GroupDescriptor>,
    paths: BTreeMap<u32, String>,
    owners: BTreeMap<u64, (u32, BlockKind)>,
}

impl Ext2Anatomy {
    /// Looks at the volume in `image` after `system` has replayed its journal; `None` where it is no volume of ours, or in a file of
    /// one.
    pub fn new(system: &dyn System, image: Image) -> Option<Self> {
        let image = Arc::new(image);
        let device: Arc<dyn BlockDevice> = Arc::<Image>::clone(&image);
        // What cannot be replayed is looked at as it is.
        let _ = system.before_mount(&device);
        let bytes = image.bytes();
        let volume = Superblock::parse(bytes.get(1024..2048)?, u64::try_from(bytes.len()).ok()?).ok()?;
        let unit = size(volume.block_size);
        let descriptor = |group| {
            let (block, at) = volume.descriptor_place(group);
            bytes
                .get(size(block) * unit + at..)
                .filter(|rest| rest.len() >= volume.descriptor_size())
                .map(GroupDescriptor::raw)
        };
        let groups = (0..volume.inodes_count.div_ceil(volume.inodes_per_group))
            .map(descriptor)
            .collect::<Option<_>>()?;
        let mut anatomy = Self { volume, groups, paths: BTreeMap::new(), owners: BTreeMap::new() };
        anatomy.paths.insert(ROOT, "/".to_owned());
        anatomy.walk(&bytes);
        Some(anatomy)
    }

    /// What a block of the volume is, read from the volume itself; `None` for one that nothing uses. All blocks of a journal but its
    /// pointers are contents here.
    #[must_use]
    pub fn kind(&self, block: u64) -> Option<BlockKind> {
        if let Some(&(_, kind)) = self.owners.get(&block) {
            return Some(kind);
        }
        let (no, first) = (block, self.volume.superblock_no());
        // Where blocks are larger than that, the superblock is behind a kibibyte of nothing.
        if no == first {
            return Some(BlockKind::Superblock);
        }
        if no < first || no >= self.volume.blocks_count {
            return None;
        }
        let group = self.volume.group_of(no);
        let descriptor = self.groups.get(size(group))?;
        let start = self.volume.head_of(group);
        // A copy of the superblock and the descriptors stands before the bitmaps, in some groups.
        let copies = match descriptor.block_bitmap.min(descriptor.inode_bitmap) {
            bitmap if bitmap > start + u64::from(self.volume.descriptor_blocks()) => {
                u64::from(self.volume.descriptor_blocks())
            }
            _ => 0,
        };
        let table =
            descriptor.inode_table..descriptor.inode_table + u64::from(self.volume.inode_table_blocks());
        match no {
            no if no == descriptor.block_bitmap => Some(BlockKind::BlockBitmap),
            no if no == descriptor.inode_bitmap => Some(BlockKind::InodeBitmap),
            no if table.contains(&no) => Some(BlockKind::Inode),
            no if copies > 0 && no == start => Some(BlockKind::Superblock),
            no if copies > 0 && no <= start + copies => Some(BlockKind::GroupDescriptor),
            _ => None,
        }
    }

    /// Whether a block is the journal's.
    #[must_use]
    pub fn is_journal(&self, block: u64) -> bool {
        self.owners.get(&block).is_some_and(|&(ino, _)| ino == JOURNAL)
    }

    /// Also takes the names and blocks of an older image that this one has no more.
    pub fn with_older(mut self, older: Option<Self>) -> Self {
        if let Some(older) = older {
            older.paths.into_iter().for_each(|(ino, path)| _ = self.paths.entry(ino).or_insert(path));
            older.owners.into_iter().for_each(|(block, of)| _ = self.owners.entry(block).or_insert(of));
        }
        self
    }

    fn walk(&mut self, bytes: &[u8]) {
        let mut left = vec![JOURNAL, ROOT];
        let mut seen = BTreeSet::new();
        while let Some(ino) = left.pop() {
            if !seen.insert(ino) {
                continue;
            }
            let Some(inode) = self.inode(bytes, ino) else { continue };
            let contents =
                if inode.kind == FileKind::Directory { BlockKind::Directory } else { BlockKind::Data };
            if inode.xattr_block != 0 {
                self.owners.insert(inode.xattr_block, (ino, BlockKind::Attribute));
            }
            if !inode.has_blocks(self.volume.block_size) {
                continue;
            }
            for (at, &pointer) in inode.block.iter().enumerate() {
                self.claim(bytes, (ino, contents), u64::from(pointer), at.saturating_sub(DIRECT - 1));
            }
            if inode.kind == FileKind::Directory {
                left.extend(self.names(bytes, ino));
            }
        }
    }

    /// Notes that a block, and below it as many levels of others, belong to an inode.
    fn claim(&mut self, bytes: &[u8], (ino, kind): (u32, BlockKind), pointer: u64, levels: usize) {
        let Some(block) = self.block(bytes, pointer).filter(|_| pointer != 0) else { return };
        let own = if levels > 0 { BlockKind::Indirect } else { kind };
        if self.owners.insert(pointer, (ino, own)).is_none() && levels > 0 {
            pointers(block).for_each(|below| self.claim(bytes, (ino, kind), below, levels - 1));
        }
    }

    /// Names what is in a directory, and returns the inodes.
    fn names(&mut self, bytes: &[u8], dir: u32) -> Vec<u32> {
        let path = self.paths.get(&dir).cloned().unwrap_or_default();
        let blocks = self.owners.iter().filter(|(_, of)| **of == (dir, BlockKind::Directory));
        let mut found = Vec::new();
        for &block in blocks.map(|(block, _)| block) {
            found.extend(self.block(bytes, block).into_iter().flat_map(|data| self.listed(data, block)));
        }
        let named = found.into_iter().filter(|(_, name)| name != "." && name != "..");
        let named = named.map(|(ino, name)| (ino, format!("{}/{name}", path.trim_end_matches('/'))));
        let named: Vec<(u32, String)> = named.collect();
        for (ino, path) in &named {
            self.paths.entry(*ino).or_insert_with(|| path.clone());
        }
        named.into_iter().map(|(ino, _)| ino).collect()
    }

    fn block<'b>(&self, bytes: &'b [u8], block: u64) -> Option<&'b [u8]> {
        let unit = size(self.volume.block_size);
        let at = usize::try_from(block).ok()?.checked_mul(unit)?;
        bytes.get(at..at + unit)
    }

    fn table(&self, ino: u32) -> Option<(BlockNo, usize)> {
        let group = ino.checked_sub(1)? / self.volume.inodes_per_group;
        let descriptor = self.groups.get(size(group))?;
        Some(place(&self.volume, descriptor.inode_table, ino))
    }

    fn inode(&self, bytes: &[u8], ino: u32) -> Option<DiskInode> {
        let (block, at) = self.table(ino)?;
        self.parsed(self.block(bytes, block.get())?, at, ino)
    }

    fn parsed(&self, table: &[u8], at: usize, ino: u32) -> Option<DiskInode> {
        let raw = table.get(at..at + usize::from(self.volume.inode_size))?;
        DiskInode::parse(raw, InodeNo(u64::from(ino)), BlockNo(0), &self.volume).ok()
    }

    /// Inodes and names in a directory block.
    fn listed(&self, data: &[u8], block: u64) -> Vec<(u32, String)> {
        let whole = entries(data, BlockNo(block), &self.volume).map_while(Result::ok);
        whole
            .filter(|entry| entry.ino != 0)
            .map(|entry| (entry.ino, String::from_utf8_lossy(entry.name).into_owned()))
            .collect()
    }

    fn path(&self, ino: u32) -> String {
        self.paths.get(&ino).cloned().unwrap_or_else(|| format!("inode {ino}"))
    }

    /// Numbers of the first and last inode in a block of a table.
    fn inodes_of(&self, block: u64) -> String {
        let first = self.first_inode(block);
        first.map_or_else(String::new, |first| {
            format!("{first}–{}", first + self.volume.inodes_per_block() - 1)
        })
    }

    fn first_inode(&self, block: u64) -> Option<u32> {
        let per_block = self.volume.inodes_per_block();
        (0_u32..).zip(&self.groups).find_map(|(group, descriptor)| {
            let at = u32::try_from(block.checked_sub(descriptor.inode_table)?).ok()?;
            (at < self.volume.inode_table_blocks())
                .then(|| group * self.volume.inodes_per_group + at * per_block + 1)
        })
    }

    fn needs_of_names(&self, block: u64, old: &[u8], new: &[u8]) -> BTreeSet<Need> {
        let before: BTreeSet<(u32, String)> = self.listed(old, block).into_iter().collect();
        let added = self.listed(new, block).into_iter().filter(|entry| !before.contains(entry));
        added
            .filter_map(|(ino, name)| {
                let (block, _) = self.table(ino)?;
                Some(Need { block: block.get(), why: format!("the name \"{name}\" needs inode {ino}") })
            })
            .collect()
    }

    fn needs_of_inodes(&self, block: u64, old: &[u8], new: &[u8]) -> BTreeSet<Need> {
        let mut needs = BTreeSet::new();
        let Some(first) = self.first_inode(block) else { return needs };
        for (at, ino) in (0..).zip(first..first + self.volume.inodes_per_block()) {
            let at = at * usize::from(self.volume.inode_size);
            let [before, now] =
                [old, new].map(|table| self.parsed(table, at, ino).filter(|inode| inode.nlink > 0));
            let Some(now) = now else { continue };
            if before.is_none() {
                let group = size((ino - 1) / self.volume.inodes_per_group);
                let why = format!("inode {ino} needs its bit");
                needs.extend(self.groups.get(group).map(|of| Need { block: of.inode_bitmap, why }));
            }
            let list = |inode: &DiskInode| match inode.has_blocks(self.volume.block_size) {
                true => inode.block.into_iter().map(u64::from).chain([inode.xattr_block]).collect(),
                false => vec![inode.xattr_block],
            };
            let before = before.as_ref().map_or_else(Vec::new, list);
            let of = format!(" of {}", self.path(ino));
            needs.extend(self.needs_of_pointers(&of, before.into_iter(), list(&now).into_iter()));
        }
        needs
    }

    fn needs_of_pointers(
        &self,
        of: &str,
        old: impl Iterator<Item = u64>,
        new: impl Iterator<Item = u64>,
    ) -> BTreeSet<Need> {
        let before: BTreeSet<u64> = old.collect();
        let added = new.filter(|pointer| *pointer != 0 && !before.contains(pointer));
        let needs = added.flat_map(|pointer| {
            let contents = Need { block: pointer, why: format!("a pointer{of} needs block {pointer}") };
            let group = pointer
                .checked_sub(self.volume.first_data_block())
                .map(|at| at / u64::from(self.volume.blocks_per_group));
            let bitmap = group.and_then(|group| self.groups.get(size(group))).map(|group| Need {
                block: group.block_bitmap,
                why: format!("a pointer{of} needs the bit of block {pointer}"),
            });
            std::iter::once(contents).chain(bitmap)
        });
        needs.collect()
    }

    fn needs_of_freed_inodes(&self, block: u64, old: &[u8], new: &[u8]) -> BTreeSet<Need> {
        let group = (0_u32..).zip(&self.groups).find(|(_, of)| of.inode_bitmap == block);
        let Some((group, _)) = group else { return BTreeSet::new() };
        let is_set =
            |bits: &[u8], at: u32| bits.get(size(at / 8)).is_some_and(|byte| byte & (1 << (at % 8)) != 0);
        (0..self.volume.inodes_per_group)
            .filter(|&at| is_set(old, at) && !is_set(new, at))
            .filter_map(|at| {
                let ino = group * self.volume.inodes_per_group + at + 1;
                let (table, _) = self.table(ino)?;
                Some(Need {
                    block: table.get(),
                    why: format!("the cleared bit of inode {ino} needs the cleared inode"),
                })
            })
            .collect()
    }
}

impl Anatomy for Ext2Anatomy {
    fn describe(&self, block: u64, kind: BlockKind) -> String {
        if let Some(&(ino, what)) = self.owners.get(&block) {
            let of = if ino == JOURNAL { "the journal".to_owned() } else { self.path(ino) };
            return match what {
                BlockKind::Directory => format!("names in {of}"),
                BlockKind::Indirect => format!("pointers of {of}"),
                BlockKind::Attribute => format!("attributes of {of}"),
                _ => format!("contents of {of}"),
            };
        }
        let word = match kind {
            BlockKind::Superblock => "superblock",
            BlockKind::GroupDescriptor => "group descriptors",
            BlockKind::BlockBitmap => "bitmap of blocks",
            BlockKind::InodeBitmap => "bitmap of inodes",
            BlockKind::Inode => return format!("inodes {}", self.inodes_of(block)),
            other => return format!("{other:?}").to_lowercase(),
        };
        word.to_owned()
    }

    fn needs(&self, block: u64, kind: BlockKind, (old, new): (&[u8], &[u8])) -> BTreeSet<Need> {
        let kind = self.owners.get(&block).map_or(kind, |&(_, kind)| kind);
        match kind {
            BlockKind::Directory => self.needs_of_names(block, old, new),
            BlockKind::Inode => self.needs_of_inodes(block, old, new),
            BlockKind::Indirect => self.needs_of_pointers("", pointers(old), pointers(new)),
            BlockKind::InodeBitmap => self.needs_of_freed_inodes(block, old, new),
            _ => BTreeSet::new(),
        }
    }
}

fn pointers(block: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = block.chunks_exact(4);
    words.map(|word| u64::from(word.try_into().map_or(0, u32::from_le_bytes)))
}

/// An offset or a count of the format as one of memory.
fn size(number: impl Into<u64>) -> usize {
    to_usize(number.into())
}
