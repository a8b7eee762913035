//! Sending: which leaves a snapshot has that another one has not. Subtrees that are the same in both are passed over, by their references.

use std::io::Write;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockKind, Errno, Error, FileKind, Result};

use super::frame::{Begin, Frame, Writer};
use crate::waffle::Waffle;
use crate::waffle::cluster::cluster_of;
use crate::waffle::layout::inode::{INODE_BYTES, INODES_IN_BLOCK, Inode, Slot, clear_forks, place};
use crate::waffle::layout::pointer::{Fork, PACKED, Ref, slot_of, span};
use crate::waffle::layout::record::{Record, Source, TreeKind};
use crate::waffle::layout::{BLOCK, CLUSTER, FAN};
use crate::waffle::state::State;
use crate::waffle::tree::{Key, Obj};

/// The part of a fork at a place: nothing, a reference, or all of a lower fork below its first slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    None,
    At(Ref),
    Above,
}

/// Two forks of one object, in two trees.
#[derive(Clone, Copy)]
struct Pair {
    obj: Obj,
    kind: BlockKind,
    old: Fork,
    new: Fork,
}

impl State {
    fn snapshot_named(&self, name: &[u8]) -> Result<usize> {
        let is_it = |tree: &Option<Record>| {
            tree.as_ref().is_some_and(|tree| tree.name == name && tree.kind == TreeKind::Snapshot)
        };
        self.trees.iter().position(is_it).ok_or_else(|| Errno::NOENT.into())
    }
}

impl Waffle {
    /// Writes a snapshot to a stream; with `base`, what it has beyond that one. `progress` hears the bytes so far.
    ///
    /// # Errors
    /// `ENOENT` if there is no such snapshot; `Corrupt` where its blocks are damaged; when the stream cannot be written.
    pub fn send(
        &self,
        name: &[u8],
        base: Option<&[u8]>,
        to: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (new, old, begin) = {
            let state = &self.share().state;
            let new = state.record(state.snapshot_named(name)?)?.clone();
            let old = base.map(|base| state.record(state.snapshot_named(base)?)).transpose()?.cloned();
            let base = old.as_ref().map_or_else(Source::default, |old| old.source);
            let begin = Begin {
                source: new.source,
                base,
                seed: new.seed,
                ino_end: new.ino_end,
                free_ino: new.free_ino,
                orphan: new.orphan,
                used: new.used,
                orphans: new.orphans,
                made: new.made,
                name: new.name.clone(),
            };
            (new, old, begin)
        };
        if let Some(old) = old.as_ref().filter(|old| old.seed != new.seed || old.ino_end > new.ino_end) {
            let (old, new) = (String::from_utf8_lossy(&old.name), String::from_utf8_lossy(&new.name));
            return refuse(format!(
                "what `{new}` has beyond `{old}`, which is no earlier snapshot of the same tree"
            ));
        }
        let mut writer = Writer::new(to)?;
        writer.put(&Frame::Begin(begin))?;
        let mut sending = Sending { fs: self, writer, leaves: 0, progress };
        let inodes = old.as_ref().map_or_else(Fork::default, |old| old.inodes);
        sending.compare(Pair { obj: Obj::Inodes, kind: BlockKind::Inode, old: inodes, new: new.inodes })?;
        let is_there = |tree: &Record| self.share().state.snapshot_named(&tree.name).is_ok();
        if !is_there(&new) || old.is_some_and(|old| !is_there(&old)) {
            return refuse("a snapshot that is removed meanwhile");
        }
        sending.writer.end()
    }
}

/// A snapshot does not change, so that the volume is locked for one block at a time. Of one that is removed meanwhile, a sum is another one.
struct Sending<'a> {
    fs: &'a Waffle,
    writer: Writer<'a>,
    leaves: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Sending<'_> {
    fn load(&self, reference: Ref, key: Key, kind: BlockKind) -> Result<Arc<BlockBuf>> {
        self.fs.share().state.load(reference, key, kind)
    }

    fn compare(&mut self, pair: Pair) -> Result<()> {
        if pair.old == pair.new {
            return Ok(());
        }
        // A cluster that is compressed to one block may be all that a fork has: it is looked at from above.
        let level = pair.old.height.max(pair.new.height).max(1);
        let top = |fork: Fork| if fork.height == level { Part::At(fork.root) } else { Part::Above };
        self.below(pair, (level, 0), (top(pair.old), top(pair.new)))
    }

    /// The part of a fork one level down.
    fn part(&self, obj: Obj, fork: Fork, of: Part, (level, index): (u8, u64)) -> Result<Part> {
        match of {
            Part::Above if index > 0 => Ok(Part::None),
            Part::Above if fork.height == level => Ok(Part::At(fork.root)),
            Part::Above => Ok(Part::Above),
            Part::At(reference) if !reference.is_none() => {
                let node = self.load(reference, (obj, level + 1, index / FAN), obj.kind(level + 1))?;
                Ok(Part::At(Ref::slot(&node, slot_of(index))))
            }
            Part::None | Part::At(_) => Ok(Part::None),
        }
    }

    fn below(&mut self, pair: Pair, (level, index): (u8, u64), (old, new): (Part, Part)) -> Result<()> {
        let is_nothing = |part: Part| part == Part::None || part == Part::At(Ref::NONE);
        let is_same = old == new && new != Part::Above;
        if is_same || is_nothing(old) && is_nothing(new) {
            return Ok(());
        }
        if is_nothing(new) {
            return self.gone(pair.obj, level, index);
        }
        if level == 0 {
            let Part::At(reference) = new else { return Ok(()) };
            let old = if let Part::At(old) = old { old } else { Ref::NONE };
            return self.leaf(pair, index, old, reference);
        }
        let mut parts = Vec::with_capacity(to_usize(FAN));
        for slot in 0..FAN {
            let at = (level - 1, index * FAN + slot);
            parts.push((self.part(pair.obj, pair.old, old, at)?, self.part(pair.obj, pair.new, new, at)?));
        }
        for (parts, first) in parts.chunks(to_usize(CLUSTER)).zip((index * FAN..).step_by(to_usize(CLUSTER)))
        {
            let is_packed = |part: Part| matches!(part, Part::At(reference) if reference.flags & PACKED != 0);
            let is_contents = level == 1 && pair.kind == BlockKind::Data;
            if is_contents && parts.iter().any(|&(old, new)| is_packed(old) || is_packed(new)) {
                self.cluster(pair, first, parts)?;
                continue;
            }
            for (&parts, child) in parts.iter().zip(first..) {
                self.below(pair, (level - 1, child), parts)?;
            }
        }
        Ok(())
    }

    /// A cluster that is compressed in one of the two: it is sent as it is not.
    fn cluster(&mut self, pair: Pair, first: u64, parts: &[(Part, Part)]) -> Result<()> {
        if parts.iter().all(|(old, new)| old == new) {
            return Ok(());
        }
        let Obj::Data(ino) = pair.obj else { return Ok(()) };
        let mut refs = [Ref::NONE; CLUSTER as usize];
        for (reference, (_, new)) in refs.iter_mut().zip(parts) {
            *reference = if let Part::At(new) = new { *new } else { Ref::NONE };
        }
        let plain = self.fs.share().state.unpacked(ino, cluster_of(first), &refs)?;
        let Some(plain) = plain else {
            // All of it, for whoever has it compressed has other leaves.
            for (reference, index) in refs.into_iter().zip(first..) {
                match reference.is_none() {
                    true => self.gone(pair.obj, 0, index)?,
                    false => self.leaf(pair, index, Ref::NONE, reference)?,
                }
            }
            return Ok(());
        };
        for (bytes, index) in plain.chunks(BLOCK).zip(first..) {
            let mut copy: Box<[u8; BLOCK]> = Box::new([0; BLOCK]);
            copy.copy_from_slice(bytes);
            self.contents(pair.obj, index, copy)?;
        }
        for index in first + to_u64(plain.len() / BLOCK)..first + CLUSTER {
            self.gone(pair.obj, 0, index)?;
        }
        Ok(())
    }

    fn contents(&mut self, obj: Obj, index: u64, bytes: Box<[u8; BLOCK]>) -> Result<()> {
        self.leaves += 1;
        (self.progress)(super::frame::bytes_of(self.leaves));
        self.writer.put(&Frame::Leaf { obj, index, bytes })
    }

    /// The second tree has nothing below a node.
    fn gone(&mut self, obj: Obj, level: u8, index: u64) -> Result<()> {
        if obj == Obj::Inodes {
            // Once the table has inodes, they stay there, free.
            return Err(State::damaged(
                (obj, level, index),
                None,
                "inodes that an earlier snapshot has are missing",
            ));
        }
        let from = index * span(level);
        self.writer.put(&Frame::Cut { obj, from, to: from.saturating_add(span(level)) })
    }

    fn leaf(&mut self, pair: Pair, index: u64, old: Ref, new: Ref) -> Result<()> {
        let key = (pair.obj, 0, index);
        let bytes = self.load(new, key, pair.kind)?;
        let mut copy: Box<[u8; BLOCK]> = Box::new([0; BLOCK]);
        copy.copy_from_slice(&bytes);
        if pair.obj != Obj::Inodes {
            return self.contents(pair.obj, index, copy);
        }
        self.leaves += 1;
        (self.progress)(super::frame::bytes_of(self.leaves));
        let before = if old.is_none() { None } else { Some(self.load(old, key, pair.kind)?) };
        for slot in copy.chunks_exact_mut(INODE_BYTES) {
            clear_forks(slot);
        }
        self.writer.put(&Frame::Inodes { leaf: index, bytes: copy })?;
        for ino in index * INODES_IN_BLOCK..(index + 1) * INODES_IN_BLOCK {
            let (_, at) = place(ino);
            let slot = |bytes: &[u8]| Slot::decode(&bytes[at..at + INODE_BYTES], ino);
            let Slot::Used(inode) = slot(&bytes)? else { continue };
            let old = match before.as_ref().map(|bytes| slot(bytes)).transpose()? {
                Some(Slot::Used(old)) => Some(old),
                _ => None,
            };
            self.inode(old.as_ref(), &inode)?;
        }
        Ok(())
    }

    fn inode(&mut self, old: Option<&Inode>, new: &Inode) -> Result<()> {
        let data = if new.kind == FileKind::Directory { BlockKind::Directory } else { BlockKind::Data };
        let fork = |of: fn(&Inode) -> Fork| old.map_or_else(Fork::default, of);
        let ino = new.ino;
        self.compare(Pair { obj: Obj::Data(ino), kind: data, old: fork(|old| old.data), new: new.data })?;
        let (old, new) = (fork(|old| old.xattrs), new.xattrs);
        self.compare(Pair { obj: Obj::Xattrs(ino), kind: BlockKind::Attribute, old, new })
    }
}

/// A failure to be told, of what was asked for.
pub(super) fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Unsupported(why.into()))
}
