//! Records of names: entries of directories, and what they mean for the inodes that they name.
//!
//! An index is dropped by the first name that is added, as everywhere here: its blocks become leaves.

use std::collections::BTreeMap;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, FileKind, InodeFlags, Result};
use fstitch_patch::journal::fast::Entry;

use super::super::pass::Loaded;
use super::{Apply, Waiting, damaged};
use crate::ext2::layout::checksum::{
    DIRECTORY_TAIL, has_directory_tail, index_counts, place, put_directory_tail,
};
use crate::ext2::layout::dirent::{
    D_INODE, D_REC_LEN, ENTRY_MIN, Slot, entries, entry_size, put_empty_leaf, put_entry, put_first_entries,
    rec_len_field,
};
use crate::ext2::layout::extent::{Extent, LOGICAL_END};
use crate::ext2::layout::inode::DIRECTORY_LINK_MAX;
use crate::ext2::num::{idx64, small, wide};

/// The names of a directory.
pub(super) struct Names {
    blocks: Vec<BlockNo>,
    /// In which of the blocks each name is.
    places: BTreeMap<Vec<u8>, usize>,
    /// The longest entry that each block has room for.
    room: Vec<usize>,
}

impl Apply<'_, '_, '_> {
    // ---- what records say ----

    /// An inode is made, with this name.
    pub(super) fn create(&mut self, entry: Entry<'_>) -> Result<()> {
        let Some(mut made) = self.load(entry.inode)? else {
            return Err(damaged(format!("inode {} is made, and not said how", entry.inode)));
        };
        if made.disk.kind == FileKind::Directory {
            self.lift(&made)?;
            self.make_directory(&mut made, entry.parent)?;
        } else {
            made.disk.nlink = 1;
            self.put(&made)?;
        }
        self.add_name(entry.parent, &made, entry.name)?;
        Ok(())
    }

    /// An inode has this name.
    pub(super) fn link(&mut self, entry: Entry<'_>) -> Result<()> {
        let Some(mut named) = self.load(entry.inode)? else {
            let Entry { inode, parent, name } = entry;
            self.waiting.push(Waiting { inode, parent, name: name.to_vec() });
            return Ok(());
        };
        self.lift(&named)?;
        if !self.add_name(entry.parent, &named, entry.name)? {
            return Ok(());
        }
        let known = self.known.entry(entry.inode).or_default();
        known.is_dead = false;
        if named.disk.kind == FileKind::Directory {
            known.more_names += 1;
            return self.set_parent(&named, entry.parent);
        }
        named.disk.nlink = named.disk.nlink.saturating_add(1);
        self.put(&named)
    }

    /// It has not.
    pub(super) fn unlink(&mut self, entry: Entry<'_>) -> Result<()> {
        let named = self.load(entry.inode)?;
        if !self.drop_name(&entry, named.as_ref())? {
            return Ok(());
        }
        let Some(mut named) = named else { return Ok(()) };
        self.lift(&named)?;
        let known = self.known.entry(entry.inode).or_default();
        if named.disk.kind == FileKind::Directory {
            known.is_dead = known.more_names == 0;
            known.more_names = known.more_names.saturating_sub(1);
            return Ok(());
        }
        named.disk.nlink = named.disk.nlink.saturating_sub(1);
        known.is_dead = named.disk.nlink == 0;
        self.put(&named)
    }

    /// Gives an inode that has come into use the names that waited for it.
    pub(super) fn link_waiting(&mut self, ino: u32) -> Result<()> {
        let (mine, others) =
            std::mem::take(&mut self.waiting).into_iter().partition(|name| name.inode == ino);
        self.waiting = others;
        let mine: Vec<Waiting> = mine;
        let links = self.load(ino)?.map(|named| named.disk.nlink);
        for Waiting { inode, parent, name } in mine {
            self.link(Entry { parent, inode, name: &name })?;
        }
        // The record counts them already.
        if let (Some(links), Some(mut named)) = (links, self.load(ino)?) {
            named.disk.nlink = links;
            self.put(&named)?;
        }
        Ok(())
    }

    // ---- names ----

    /// Adds a name; false if it is there.
    fn add_name(&mut self, parent: u32, named: &Loaded, name: &[u8]) -> Result<bool> {
        let mut dir = self.directory(parent)?;
        let names = self.names(&dir)?;
        if let Some(&at) = names.places.get(name) {
            let no = names.blocks[at];
            let bytes = self.pass.read(no, BlockKind::Directory)?;
            let (slot, _) = self.find(&bytes, no, name)?;
            if slot.ino != named.ino {
                let (found, wanted) = (slot.ino, named.ino);
                return Err(damaged(format!("a name leads to inode {found}, not to {wanted}")));
            }
            return Ok(false);
        }
        self.drop_index(&mut dir)?;
        let need = entry_size(name.len());
        let at = match self.names(&dir)?.room.iter().position(|&room| room >= need) {
            Some(at) => at,
            None => self.grow(&mut dir)?,
        };
        let no = self.names(&dir)?.blocks[at];
        let mut bytes = self.pass.read(no, BlockKind::Directory)?;
        let slots = entries(&bytes, no, &self.pass.shape).slots();
        let slot = slots.into_iter().find(|slot| slot.rec_len - slot.used() >= need);
        let slot = slot.ok_or_else(|| damaged("a directory's block has less room than it had"))?;
        let kind = self.pass.shape.has_filetype().then_some(named.disk.kind);
        let (start, rest) = (slot.offset + slot.used(), slot.rec_len - slot.used());
        if slot.ino != 0 {
            D_REC_LEN.put(&mut bytes[slot.offset..], rec_len_field(slot.used()));
        }
        put_entry(&mut bytes[start..], named.ino, rest, name, kind);
        self.put_names(&dir, at, bytes)?;
        self.names(&dir)?.places.insert(name.to_vec(), at);
        let more = i32::from(named.disk.kind == FileKind::Directory);
        self.touch(&mut dir, more)?;
        Ok(true)
    }

    /// Takes a name away; false if it is not there, or leads elsewhere.
    fn drop_name(&mut self, entry: &Entry<'_>, named: Option<&Loaded>) -> Result<bool> {
        let mut dir = self.directory(entry.parent)?;
        let names = self.names(&dir)?;
        let Some(&at) = names.places.get(entry.name) else { return Ok(false) };
        let no = names.blocks[at];
        let mut bytes = self.pass.read(no, BlockKind::Directory)?;
        let (slot, before) = self.find(&bytes, no, entry.name)?;
        if slot.ino != entry.inode {
            return Ok(false);
        }
        match before {
            Some(before) => {
                let len = before.rec_len + slot.rec_len;
                D_REC_LEN.put(&mut bytes[before.offset..], rec_len_field(len));
            }
            None => D_INODE.put(&mut bytes[slot.offset..], 0),
        }
        self.put_names(&dir, at, bytes)?;
        self.names(&dir)?.places.remove(entry.name);
        let is_directory = named.is_some_and(|named| named.disk.kind == FileKind::Directory);
        self.touch(&mut dir, -i32::from(is_directory))?;
        Ok(true)
    }

    /// The entry of a name in a block, and the one before it.
    fn find(&self, bytes: &[u8], no: BlockNo, name: &[u8]) -> Result<(Slot, Option<Slot>)> {
        let mut before = None;
        for slot in entries(bytes, no, &self.pass.shape).slots() {
            if slot.ino != 0 && bytes[slot.name()] == *name {
                return Ok((slot, before));
            }
            before = Some(slot);
        }
        Err(damaged("a directory's block reads differently the second time"))
    }

    /// The directory's times, and its links if it has `more` subdirectories.
    fn touch(&mut self, dir: &mut Loaded, more: i32) -> Result<()> {
        (dir.disk.mtime, dir.disk.ctime) = (self.pass.now, self.pass.now);
        if dir.disk.nlink > 1 {
            let links = i64::from(dir.disk.nlink) + i64::from(more);
            let links = if links >= i64::from(DIRECTORY_LINK_MAX) { 1 } else { links.max(2) };
            dir.disk.nlink = u16::try_from(links).expect("at most 65,000");
        }
        self.put(dir)
    }

    // ---- directories ----

    fn directory(&mut self, ino: u32) -> Result<Loaded> {
        let dir = self.load(ino)?.filter(|dir| dir.disk.kind == FileKind::Directory);
        let dir = dir.ok_or_else(|| damaged(format!("inode {ino} is no directory")))?;
        if dir.disk.has_inline_data() {
            return Err(Error::Unsupported(
                "fast commits with names of a directory that lies in its inode".into(),
            ));
        }
        self.lift(&dir)?;
        Ok(dir)
    }

    /// The names of a directory, which are looked at once.
    fn names(&mut self, dir: &Loaded) -> Result<&mut Names> {
        if !self.dirs.contains_key(&dir.ino) {
            let names = self.read_names(dir)?;
            self.dirs.insert(dir.ino, names);
        }
        Ok(self.dirs.get_mut(&dir.ino).expect("just inserted"))
    }

    fn read_names(&self, dir: &Loaded) -> Result<Names> {
        let count = dir.disk.size / u64::from(self.pass.shape.block_size);
        if count > self.pass.shape.blocks_count {
            return Err(damaged(format!("directory {} has {count} blocks", dir.ino)));
        }
        let mut names = Names { blocks: Vec::new(), places: BTreeMap::new(), room: Vec::new() };
        for at in 0..count {
            let no = self.pass.block_at(dir, at)?;
            let no = no.ok_or_else(|| damaged(format!("directory {} has a hole", dir.ino)))?;
            let bytes = self.pass.read(no, BlockKind::Directory)?;
            for entry in entries(&bytes, no, &self.pass.shape) {
                let entry = entry?;
                if entry.ino != 0 {
                    names.places.insert(entry.name.to_vec(), idx64(at));
                }
            }
            names.blocks.push(no);
            names.room.push(self.room(&bytes, no));
        }
        Ok(names)
    }

    fn room(&self, bytes: &[u8], no: BlockNo) -> usize {
        let slots = entries(bytes, no, &self.pass.shape).slots();
        slots.map(|slot| slot.rec_len - slot.used()).max().unwrap_or(0)
    }

    /// Block `at` of a directory holds this, with its sum.
    fn put_names(&mut self, dir: &Loaded, at: usize, mut bytes: BlockBuf) -> Result<()> {
        let sums = self.pass.shape.sums.of_inode(dir.ino, dir.disk.generation);
        if has_directory_tail(&bytes)
            && let Some(placed) = sums.directory_leaf(&bytes)
        {
            place(&mut bytes, placed);
        }
        let names = self.names(dir)?;
        let no = names.blocks[at];
        let room = self.room(&bytes, no);
        self.names(dir)?.room[at] = room;
        *self.pass.change(no, BlockKind::Directory)? = bytes;
        Ok(())
    }

    /// Gives a directory one more block, which is empty. Says which of its blocks it is.
    fn grow(&mut self, dir: &mut Loaded) -> Result<usize> {
        if !dir.disk.has_extents() {
            let problem = "fast commits that need one more block for a directory without extents";
            return Err(Error::Unsupported(problem.into()));
        }
        let block = self.space.take(self.pass, self.pass.shape.group_start(dir.group))?;
        let no = BlockNo(block);
        let at = self.names(dir)?.blocks.len();
        let extent = Extent { block: small(at), len: 1, start: block, unwritten: false };
        self.edit_tree(dir, |tree| tree.insert(extent))?;
        dir.disk.size = wide(at + 1) * u64::from(self.pass.shape.block_size);
        self.put(dir)?;
        let mut bytes = BlockBuf::zeroed(self.pass.volume.block_size());
        put_empty_leaf(&mut bytes, self.pass.shape.features.has_sums());
        let names = self.names(dir)?;
        names.blocks.push(no);
        names.room.push(0);
        self.put_names(dir, at, bytes)?;
        Ok(at)
    }

    /// Makes an inode an empty directory in `parent`.
    fn make_directory(&mut self, dir: &mut Loaded, parent: u32) -> Result<()> {
        if !dir.disk.has_extents() {
            return Err(Error::Unsupported("fast commits that make a directory without extents".into()));
        }
        dir.disk.flags &= !InodeFlags::INDEX;
        (dir.disk.nlink, dir.disk.size) = (2, 0);
        self.edit_tree(dir, |tree| tree.remove(&(0..LOGICAL_END)))?;
        let names = Names { blocks: Vec::new(), places: BTreeMap::new(), room: Vec::new() };
        self.dirs.insert(dir.ino, names);
        let at = self.grow(dir)?;
        let mut bytes = BlockBuf::zeroed(self.pass.volume.block_size());
        let shape = (self.pass.shape.has_filetype(), self.pass.shape.features.has_sums());
        put_first_entries(&mut bytes, dir.ino, parent, shape);
        self.put_names(dir, at, bytes)?;
        let places = &mut self.names(dir)?.places;
        places.extend([(b".".to_vec(), at), (b"..".to_vec(), at)]);
        Ok(())
    }

    /// The directory's `..` names `parent`.
    fn set_parent(&mut self, dir: &Loaded, parent: u32) -> Result<()> {
        let names = self.names(dir)?;
        let Some(&at) = names.places.get(&b".."[..]) else {
            return Err(damaged(format!("directory {} has no ..", dir.ino)));
        };
        let no = names.blocks[at];
        let mut bytes = self.pass.read(no, BlockKind::Directory)?;
        let (slot, _) = self.find(&bytes, no, b"..")?;
        if slot.ino == parent {
            return Ok(());
        }
        D_INODE.put(&mut bytes[slot.offset..], parent);
        self.put_names(dir, at, bytes)
    }

    /// Takes a directory's index away, before a name comes that is not in it.
    fn drop_index(&mut self, dir: &mut Loaded) -> Result<()> {
        if dir.disk.flags & InodeFlags::INDEX == 0 {
            return Ok(());
        }
        dir.disk.flags &= !InodeFlags::INDEX;
        self.put(dir)?;
        if !self.pass.shape.features.has_sums() {
            return Ok(());
        }
        for at in 0..self.names(dir)?.blocks.len() {
            let no = self.names(dir)?.blocks[at];
            let mut bytes = self.pass.read(no, BlockKind::Directory)?;
            // A leaf that was emptied looks like a block of the index, but for its tail's place: it is empty all the same.
            if index_counts(&bytes).is_none() {
                continue;
            }
            if at == 0 {
                let len = bytes.len() - ENTRY_MIN - DIRECTORY_TAIL;
                D_REC_LEN.put(&mut bytes[ENTRY_MIN..], rec_len_field(len));
                bytes[2 * ENTRY_MIN..].fill(0);
                put_directory_tail(&mut bytes);
            } else {
                put_empty_leaf(&mut bytes, true);
            }
            self.put_names(dir, at, bytes)?;
        }
        Ok(())
    }
}
