//! Receiving: a stream becomes changes of a tree that only streams change, and a snapshot of it.
//!
//! **States** of the tree: *whole*, as its last snapshot is → *receiving* (its record says so before the first change) → *whole*, in the commit
//! that makes the new snapshot.
//!
//! **Invariants.** 1. A tree that is not being received and differs from its last snapshot has changes of somebody, and takes no stream. 2. Nothing
//! that a stream says becomes a reference.
//!
//! **Crash cases.** A cut, or a stream that ends early, leaves a tree that says that it is being received: it cannot be mounted, and the next
//! stream for it begins with what the tree's last snapshot has; without one the tree is removed.

use std::io::Read;
use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockDevice, Clock, FileKind, Result};
use fstitch_patch::CacheOptions;

use super::frame::{Begin, Frame, Reader, damaged};
use super::send::refuse;
use crate::waffle::cluster::cluster_of;
use crate::waffle::layout::inode::{
    INODE_BYTES, INODES_IN_BLOCK, Slot, clear_forks, place, put_blocks, put_forks,
};
use crate::waffle::layout::pointer::Fork;
use crate::waffle::layout::record::{INO_END, Record, Source, TreeKind, is_tree_name};
use crate::waffle::layout::{BLOCK, CLUSTER, FIRST_INO, NANOS_END, SIZE_MAX};
use crate::waffle::state::{Class, State};
use crate::waffle::tree::Obj;
use crate::waffle::{Options, Waffle};

/// What was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The snapshot.
    pub name: Vec<u8>,
    /// Leaves that came.
    pub leaves: u64,
}

/// Takes a stream in, on a volume that nobody uses: it becomes the next snapshot of the tree `tree`, or the first of a new one.
///
/// # Errors
/// `Corrupt` if the stream is damaged or ends early; `Unsupported`, saying why, if it does not fit what the volume has; `ENOSPC`; those of
/// the medium. What came so far is no snapshot then; the next stream for the tree begins anew.
pub fn receive(
    device: &Arc<dyn BlockDevice>,
    clock: &Arc<dyn Clock>,
    tree: &[u8],
    from: &mut dyn Read,
    progress: &mut dyn FnMut(u64),
) -> Result<Received> {
    let mut reader = Reader::new(from)?;
    let Frame::Begin(begin) = reader.take()? else { return Err(damaged("it does not say what it is of")) };
    begin.check()?;
    let open = |options: Options| {
        Waffle::mount(Arc::clone(device), CacheOptions::default(), Arc::clone(clock), options)
    };
    let fs = open(Options::default())?;
    let prepared = fs.prepare(tree, &begin);
    fs.close()?;
    prepared?;
    let fs = open(Options { tree: tree.to_vec(), receives: true, ..Options::default() })?;
    let done = fs.take_in(&begin, &mut reader, progress);
    let closed = fs.close();
    let leaves = done?;
    closed?;
    Ok(Received { name: begin.name, leaves })
}

impl Begin {
    /// What it says could be a tree's: its record is read before anything else of the volume.
    fn check(&self) -> Result<()> {
        let is_end = (FIRST_INO..INO_END).contains(&self.ino_end);
        if !is_end
            || self.free_ino >= self.ino_end
            || self.orphan >= self.ino_end
            || self.made.nanos >= NANOS_END
        {
            return Err(damaged("what it says of its inodes cannot be"));
        }
        Ok(())
    }
}

impl Waffle {
    /// The tree is there, is as the stream's base, and says that it is being received.
    fn prepare(&self, tree: &[u8], begin: &Begin) -> Result<()> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let taken = |name: &[u8]| self.share().state.find_tree(name);
        if !is_tree_name(tree) {
            return refuse(format!("a tree that is called `{}`", text(tree)));
        }
        if taken(&begin.name).is_some() {
            return refuse(format!(
                "a second snapshot `{}`: remove the one that is there, or it is the same",
                text(&begin.name)
            ));
        }
        if tree == begin.name {
            return refuse(format!("a tree that is called as its snapshot, `{}`", text(tree)));
        }
        if begin.base != Source::default() {
            return self.prepare_next(tree, begin);
        }
        if let Some(found) = taken(tree) {
            let core = self.share();
            let is_left =
                core.state.record(found)?.is_receiving && core.state.last_snapshot(found)?.is_none();
            drop(core);
            if !is_left {
                let tree = text(tree);
                return refuse(format!(
                    "a whole snapshot in `{tree}`, which is there: send what changed since one of its snapshots, or name another tree"
                ));
            }
            self.remove_clone(tree)?;
            self.purge()?;
        }
        self.change_trees(|state, now| {
            state.add_tree(Record {
                kind: TreeKind::Head,
                id: 0,
                generation: 0,
                origin: 0,
                head: state.root.next_tree,
                inodes: Fork::default(),
                ino_end: FIRST_INO,
                free_ino: 0,
                orphan: 0,
                used: 0,
                orphans: 0,
                made: now,
                seed: begin.seed,
                is_receiving: true,
                source: Source::default(),
                name: tree.to_vec(),
            })
        })
    }

    /// The same for a stream that goes on from a snapshot.
    fn prepare_next(&self, tree: &[u8], begin: &Begin) -> Result<()> {
        let text = String::from_utf8_lossy(tree).into_owned();
        self.change_trees(|state, now| {
            let Some(found) = state.find_tree(tree).filter(|&found| state.is_head(found)) else {
                return refuse(format!(
                    "what changed in a tree `{text}`: there is none; send it a whole snapshot first"
                ));
            };
            let Some(last) = state.last_snapshot(found)?.cloned() else {
                return refuse(format!("what changed in `{text}`, which has no snapshot"));
            };
            let head = state.record(found)?.clone();
            // An inode that an earlier snapshot has is never behind the end of a later one.
            let is_next = head.seed == begin.seed && last.ino_end <= begin.ino_end;
            if last.source != begin.base || !is_next {
                let last = String::from_utf8_lossy(&last.name);
                return refuse(format!(
                    "what changed since another snapshot than `{last}`, the last one of `{text}`"
                ));
            }
            let is_later = |other: &Record| {
                other.kind != TreeKind::Head && other.head == head.id && other.generation > last.generation
            };
            if state.trees.iter().flatten().any(is_later) {
                return refuse(format!("anything in `{text}`, a snapshot of which is still being removed"));
            }
            if head.inodes != last.inodes {
                if !head.is_receiving {
                    let last = String::from_utf8_lossy(&last.name);
                    return refuse(format!("anything in `{text}`: it has changes of its own since `{last}`"));
                }
                state.roll_back(found, &last, now)?;
            }
            if let Some(head) = &mut state.trees[found] {
                head.is_receiving = true;
            }
            Ok(())
        })
    }

    /// Takes the rest of a stream in, and makes the snapshot; returns how many leaves came.
    fn take_in(&self, begin: &Begin, reader: &mut Reader<'_>, progress: &mut dyn FnMut(u64)) -> Result<u64> {
        let mut leaves = 0;
        drop(self.change(Class::Takes, 0, |state| {
            let head = state.head_mut();
            head.ino_end = head.ino_end.max(begin.ino_end);
            Ok(())
        })?);
        loop {
            let frame = reader.take()?;
            match frame {
                Frame::End { .. } => break,
                Frame::Begin(_) => return Err(damaged("it begins twice")),
                _ => {}
            }
            leaves += u64::from(!matches!(frame, Frame::Cut { .. }));
            progress(super::frame::bytes_of(leaves));
            drop(self.change(Class::Takes, BLOCK, |state| state.take_frame(&frame))?);
        }
        self.change_trees(|state, now| {
            let head = state.head_mut();
            head.is_receiving = false;
            (head.ino_end, head.free_ino, head.orphan) = (begin.ino_end, begin.free_ino, begin.orphan);
            (head.used, head.orphans) = (begin.used, begin.orphans);
            let source = begin.source;
            let made = if begin.made == fstitch_core::Timestamp::default() { now } else { begin.made };
            state.note_received(&begin.name, made, source)
        })?;
        Ok(leaves)
    }
}

impl State {
    fn is_head(&self, tree: usize) -> bool {
        self.record(tree).is_ok_and(|record| record.kind == TreeKind::Head)
    }

    /// The last snapshot of a tree.
    fn last_snapshot(&self, tree: usize) -> Result<Option<&Record>> {
        let id = self.record(tree)?.id;
        let of_it = |other: &&Record| other.kind == TreeKind::Snapshot && other.head == id;
        Ok(self.trees.iter().flatten().filter(of_it).max_by_key(|other| other.generation))
    }

    /// One frame.
    fn take_frame(&mut self, frame: &Frame) -> Result<()> {
        match frame {
            Frame::Inodes { leaf, bytes } => self.take_inodes(*leaf, bytes),
            Frame::Cut { obj, from, to } => {
                let kind = self.expect_used(*obj)?;
                if from >= to {
                    return Err(damaged("a range that ends before it begins"));
                }
                let Obj::Data(ino) = *obj else { return self.cut(*obj, *from, *to).map(drop) };
                if kind == FileKind::Directory {
                    return self.cut(*obj, *from, *to).map(drop);
                }
                for edge in [*from, *to] {
                    if edge % CLUSTER != 0 && edge <= SIZE_MAX / BLOCK as u64 {
                        self.loosen(ino, cluster_of(edge))?;
                    }
                }
                let lost = self.cut(*obj, *from, *to)?;
                self.change_inode(ino, |inode| inode.blocks = inode.blocks.saturating_sub(lost))
            }
            Frame::Leaf { obj, index, bytes } => self.take_leaf(*obj, *index, bytes),
            Frame::Begin(_) | Frame::End { .. } => Err(damaged("a frame where none can be")),
        }
    }

    /// A leaf of inodes, which keep what they have.
    fn take_inodes(&mut self, leaf: u64, bytes: &[u8; BLOCK]) -> Result<()> {
        if leaf >= INO_END / INODES_IN_BLOCK {
            return Err(damaged(format!("leaf {leaf} of inodes, which no tree has")));
        }
        let mut new = Box::new(*bytes);
        for ino in leaf * INODES_IN_BLOCK..(leaf + 1) * INODES_IN_BLOCK {
            let (_, at) = place(ino);
            let slot = &mut new[at..at + INODE_BYTES];
            if ino == 0 || ino >= self.head().ino_end {
                slot.fill(0);
                continue;
            }
            // References of whoever made the stream lead nowhere here, and how many blocks of contents there are is found by counting.
            clear_forks(slot);
            let new = Slot::decode(slot, ino)?;
            if matches!(new, Slot::Used(new) if new.kind != FileKind::Directory) {
                put_blocks(slot, 0);
            }
            let Slot::Used(old) = self.slot(self.head, ino)? else { continue };
            match new {
                // Leaves of a directory are nodes, those of others contents.
                Slot::Used(new) if (new.kind == FileKind::Directory) != (old.kind == FileKind::Directory) => {
                    self.cut(Obj::Data(ino), 0, u64::MAX)?;
                    put_forks(slot, Fork::default(), old.xattrs);
                }
                Slot::Used(new) => {
                    put_forks(slot, old.data, old.xattrs);
                    if new.kind != FileKind::Directory {
                        put_blocks(slot, old.blocks);
                    }
                }
                Slot::Free(_) => {
                    self.cut(Obj::Data(ino), 0, u64::MAX)?;
                    self.cut(Obj::Xattrs(ino), 0, u64::MAX)?;
                }
            }
        }
        let node = self.touch(Obj::Inodes, 0, leaf)?;
        node.copy_from_slice(&new[..]);
        Ok(())
    }

    fn expect_used(&self, obj: Obj) -> Result<FileKind> {
        let (Obj::Data(ino) | Obj::Xattrs(ino)) = obj else { return Err(damaged("a table")) };
        match self.slot(self.head, ino) {
            Ok(Slot::Used(inode)) => Ok(inode.kind),
            Ok(Slot::Free(_)) => Err(damaged(format!("contents of inode {ino}, which is free"))),
            Err(error) if error.errno() == fstitch_core::Errno::STALE => {
                Err(damaged(format!("contents of inode {ino}, which is none")))
            }
            Err(error) => Err(error),
        }
    }

    fn take_leaf(&mut self, obj: Obj, index: u64, bytes: &[u8; BLOCK]) -> Result<()> {
        let kind = self.expect_used(obj)?;
        if index > SIZE_MAX / BLOCK as u64 {
            return Err(damaged(format!("leaf {index}, which no file has")));
        }
        match obj {
            Obj::Data(ino) if kind != FileKind::Directory => {
                self.loosen(ino, cluster_of(index))?;
                if self.inode(self.head, ino)?.is_packing() {
                    self.gather(ino, cluster_of(index))?;
                    self.clusters.loose.insert((ino, cluster_of(index)));
                }
                let old = self.leaf(self.head, obj, index)?;
                let goal =
                    index.checked_sub(1).map(|before| self.leaf(self.head, obj, before)).transpose()?;
                let mut goal = goal.map(|before| before.block + 1).filter(|&goal| goal > 1);
                self.put_block(ino, index, old, BlockBuf::copy_of(&bytes[..]), &mut goal)?;
                let added = u64::from(old.is_none());
                self.change_inode(ino, |inode| inode.blocks = inode.blocks.saturating_add(added))
            }
            _ => {
                self.touch(obj, 0, index)?.copy_from_slice(&bytes[..]);
                Ok(())
            }
        }
    }
}
