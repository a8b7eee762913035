//! Compressed clusters: sixteen blocks of a file whose bytes are a zstd frame in fewer blocks.
//!
//! **Layout**: `docs/spec/waffle.md`, *compressed clusters*. The frame's blocks are in the cluster's first leaves, each with the flag
//! *packed*; the others have none. So whatever follows references (commits, snapshots, clones, shared blocks) need not know of clusters.
//!
//! **States** of a cluster: *loose* (blocks as they are) ⇄ *packed*. What is written as a whole is packed at once. A part of a packed one
//! cannot change: it is made loose first, with blocks of this generation. A commit packs those whose blocks are all of this generation.
//!
//! **Invariants.** 1. A packed cluster has fewer blocks than what is in it, and no holes. 2. What it holds does not reach behind the
//! file's end, but for zeros in the last block. 3. Packing at a commit changes no node that has not changed, takes no block, and has read
//! all that it needs before it changes anything.
//!
//! **Crash cases**: none of its own. A cluster's references are all of one root.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::lock::Mutex;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, FileKind, InodeFlags, Result};
use zstd::bulk::{Compressor, Decompressor};

use super::layout::inode::Inode;
use super::layout::pointer::{PACKED, Ref};
use super::layout::root::feature;
use super::layout::{BLOCK, BLOCK_BYTES, CLUSTER, CLUSTER_BYTES, FAN, sum};
use super::state::State;
use super::tree::Obj;

/// How hard it is tried: zstd's own default.
const LEVEL: i32 = 3;
/// Bytes of a whole cluster.
pub(super) const WHOLE: usize = CLUSTER as usize * BLOCK;

/// The references of a cluster.
pub(super) type Refs = [Ref; CLUSTER as usize];

/// A packed cluster, and what is in it.
type Unpacked = (Refs, Arc<Vec<u8>>);

/// What packing and unpacking needs, and the cluster that was read last.
#[derive(Default)]
pub(super) struct Clusters {
    packer: Option<Compressor<'static>>,
    unpacker: Mutex<Option<Decompressor<'static>>, rank::Table>,
    last: Mutex<Option<Unpacked>, rank::Table>,
    /// Clusters that were written in part since the last commit. A hint: what is none any more is passed over.
    pub(super) loose: BTreeSet<(u64, u64)>,
}

/// The cluster of a leaf.
pub(super) fn cluster_of(index: u64) -> u64 {
    index / CLUSTER
}

/// A failure of the library for want of memory.
fn failed(error: &std::io::Error) -> Error {
    Error::Unsupported(format!("compression: {error}"))
}

impl Inode {
    /// Whether what is written to it is to be compressed.
    pub(super) fn is_packing(&self) -> bool {
        self.kind == FileKind::Regular && self.flags & InodeFlags::COMPR != 0
    }
}

impl State {
    /// Whether clusters of the volume may be compressed.
    pub(super) fn has_packed(&self) -> bool {
        self.root.incompat & feature::ZSTD != 0
    }

    /// The references of a cluster of a file.
    ///
    /// # Errors
    /// `Io`; `Corrupt` also if one leads to nowhere.
    pub(super) fn cluster(&self, tree: usize, ino: u64, cluster: u64) -> Result<Refs> {
        let (obj, first) = (Obj::Data(ino), cluster * CLUSTER);
        let mut refs = [Ref::NONE; CLUSTER as usize];
        for (reference, index) in refs.iter_mut().zip(first..) {
            *reference = self.leaf(tree, obj, index)?;
            self.check_leaf(*reference, (obj, 0, index))?;
        }
        Ok(refs)
    }

    /// Whether a leaf of a file is one of a compressed cluster.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn is_packed(&self, tree: usize, inode: &Inode, index: u64) -> Result<bool> {
        let first = index - index % CLUSTER;
        Ok(self.has_packed() && self.leaf(tree, Obj::Data(inode.ino), first)?.flags & PACKED != 0)
    }

    /// Fails if a reference to contents is none.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn check_leaf(&self, reference: Ref, key: super::tree::Key) -> Result<()> {
        let checked = if self.has_packed() { reference.unpacked() } else { reference };
        match checked.problem(self.data(), self.generation()) {
            Some(problem) => Err(Self::damaged(key, None, problem)),
            None => Ok(()),
        }
    }

    /// What is in a packed cluster: whole blocks. `None` if it is loose.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn unpacked(&self, ino: u64, cluster: u64, refs: &Refs) -> Result<Option<Arc<Vec<u8>>>> {
        if refs[0].flags & PACKED == 0 {
            return match refs.iter().position(|reference| reference.flags & PACKED != 0) {
                Some(at) => Err(Self::bad_cluster(ino, cluster, format!("block {at} alone is packed"))),
                None => Ok(None),
            };
        }
        if let Some((known, plain)) = &*self.clusters.last.lock()
            && known == refs
        {
            return Ok(Some(Arc::clone(plain)));
        }
        let plain = Arc::new(self.unpack_anew(ino, cluster, refs)?);
        let before = self.clusters.last.lock().replace((*refs, Arc::clone(&plain)));
        // Not under the lock, if it was the last one.
        drop(before);
        Ok(Some(plain))
    }

    fn bad_cluster(ino: u64, cluster: u64, problem: impl std::fmt::Display) -> Error {
        Self::damaged((Obj::Data(ino), 0, cluster * CLUSTER), None, format!("compressed cluster: {problem}"))
    }

    fn unpack_anew(&self, ino: u64, cluster: u64, refs: &Refs) -> Result<Vec<u8>> {
        let bad = |problem: String| Self::bad_cluster(ino, cluster, problem);
        let len = to_usize(u64::from(refs[0].extra));
        let count = len.div_ceil(BLOCK);
        let is_one = (1..refs.len()).contains(&count)
            && refs[..count].iter().all(|reference| reference.flags & PACKED != 0)
            && refs[1..].iter().all(|reference| reference.extra == 0)
            && refs[count..].iter().all(Ref::is_none);
        if !is_one {
            return Err(bad(format!("{len} bytes in blocks that are not these")));
        }
        for (&reference, index) in refs[..count].iter().zip(cluster * CLUSTER..) {
            self.check_leaf(reference, (Obj::Data(ino), 0, index))?;
        }
        let wanted: Vec<_> =
            refs[..count].iter().map(|reference| (BlockNo(reference.block), BlockKind::Data)).collect();
        let mut frame = Vec::with_capacity(count * BLOCK);
        let blocks = self.cache.snapshots(&wanted)?;
        for ((reference, bytes), index) in refs.iter().zip(&blocks).zip(cluster * CLUSTER..) {
            self.compare(*reference, (Obj::Data(ino), 0, index), bytes)?;
            frame.extend_from_slice(bytes);
        }
        let unpacker = self.clusters.unpacker.lock().take();
        let mut unpacker = unpacker.map_or_else(Decompressor::new, Ok).map_err(|error| failed(&error))?;
        let plain = unpacker.decompress(&frame[..len], WHOLE);
        *self.clusters.unpacker.lock() = Some(unpacker);
        let plain = plain.map_err(|error| bad(error.to_string()))?;
        if plain.len() % BLOCK != 0 || plain.len() / BLOCK <= count {
            return Err(bad(format!("{} bytes are in {count} blocks", plain.len())));
        }
        Ok(plain)
    }

    /// Puts whole blocks in a cluster's place, compressed if that needs fewer; returns how many leaves it had and has, or `None` where it
    /// does not pay and nothing was done.
    ///
    /// # Errors
    /// `ENOSPC`, `Io`, `Corrupt`.
    pub(super) fn put_packed(
        &mut self,
        ino: u64,
        cluster: u64,
        plain: &[u8],
        goal: &mut Option<u64>,
    ) -> Result<Option<(u64, u64)>> {
        debug_assert!(
            plain.len().is_multiple_of(BLOCK) && plain.len() <= WHOLE,
            "whole blocks of one cluster"
        );
        match self.frame(plain)? {
            Some(frame) => self.put_frame(ino, cluster, &frame, goal).map(Some),
            None => Ok(None),
        }
    }

    /// The same with its frame.
    fn put_frame(
        &mut self,
        ino: u64,
        cluster: u64,
        frame: &[u8],
        goal: &mut Option<u64>,
    ) -> Result<(u64, u64)> {
        let old = self.cluster(self.head, ino, cluster)?;
        let obj = Obj::Data(ino);
        let mut pieces = frame.chunks(BLOCK);
        let count = pieces.len();
        for ((slot, index), old) in (0_usize..).zip(cluster * CLUSTER..).zip(old) {
            let Some(piece) = pieces.next() else {
                if !old.is_none() {
                    self.set_leaf(obj, index, Ref::NONE)?;
                    self.release(obj, old)?;
                }
                continue;
            };
            let mut bytes = BlockBuf::zeroed(BLOCK);
            bytes[..piece.len()].copy_from_slice(piece);
            let extra = if slot == 0 { u32::try_from(frame.len()).expect("less than a cluster") } else { 0 };
            self.put_leaf(ino, index, old, (bytes, PACKED, extra), goal)?;
        }
        self.root.incompat |= feature::ZSTD;
        let had = old.iter().filter(|old| !old.is_none()).count();
        Ok((to_u64(had), to_u64(count)))
    }

    /// Compresses blocks, if that saves one.
    fn frame(&mut self, plain: &[u8]) -> Result<Option<Vec<u8>>> {
        if plain.len() < 2 * BLOCK {
            return Ok(None);
        }
        let packer = match &mut self.clusters.packer {
            Some(packer) => packer,
            none => none.insert(Compressor::new(LEVEL).map_err(|error| failed(&error))?),
        };
        // A frame that needs as many blocks has no room here, which the library answers with a failure.
        let mut frame = vec![0; plain.len() - BLOCK];
        match packer.compress_to_buffer(plain, &mut frame[..]) {
            Ok(len) => {
                frame.truncate(len);
                Ok(Some(frame))
            }
            Err(_) => Ok(None),
        }
    }

    /// A cluster is loose, whatever it was: part of it is about to be changed.
    ///
    /// # Errors
    /// `ENOSPC`, `Io`, `Corrupt`.
    pub(super) fn loosen(&mut self, ino: u64, cluster: u64) -> Result<()> {
        if !self.has_packed() {
            return Ok(());
        }
        let refs = self.cluster(self.head, ino, cluster)?;
        let Some(plain) = self.unpacked(ino, cluster, &refs)? else { return Ok(()) };
        let goal = &mut Some(refs[0].block);
        for ((piece, index), old) in plain.chunks(BLOCK).zip(cluster * CLUSTER..).zip(refs) {
            self.put_leaf(ino, index, old, (BlockBuf::copy_of(piece), 0, 0), goal)?;
        }
        let had = to_u64(refs.iter().filter(|old| !old.is_none()).count());
        let added = to_u64(plain.len() / BLOCK) - had;
        self.clusters.loose.insert((ino, cluster));
        self.change_inode(ino, |inode| inode.blocks = inode.blocks.saturating_add(added))
    }

    /// The same for the cluster in which bytes are, if they begin within it.
    ///
    /// # Errors
    /// As [`State::loosen`].
    pub(super) fn loosen_at(&mut self, ino: u64, offset: u64) -> Result<()> {
        if offset.is_multiple_of(CLUSTER_BYTES) {
            return Ok(());
        }
        self.loosen(ino, offset / CLUSTER_BYTES)
    }

    /// Blocks of a loose cluster that the last root has are written anew beside those that are about to be, so that all of it can be packed.
    ///
    /// # Errors
    /// `ENOSPC`, `Io`, `Corrupt`.
    pub(super) fn gather(&mut self, ino: u64, cluster: u64) -> Result<()> {
        let refs = self.cluster(self.head, ino, cluster)?;
        for (index, old) in (cluster * CLUSTER..).zip(refs) {
            if !old.is_none() && !self.is_own(old)? {
                let bytes = self.copy(ino, index, old)?;
                self.put_leaf(ino, index, old, (bytes, 0, 0), &mut Some(old.block))?;
            }
        }
        Ok(())
    }

    /// A commit begins: packs what was written in part.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and then there is no commit. What cannot be packed stays as it is, also if it cannot be read: who reads it is told.
    pub(super) fn pack_loose(&mut self) -> Result<()> {
        for (ino, cluster) in std::mem::take(&mut self.clusters.loose) {
            let Ok(Some(frame)) = self.packable(ino, cluster) else { continue };
            let (had, has) = self.put_frame(ino, cluster, &frame, &mut None)?;
            self.change_inode(ino, |inode| {
                inode.blocks = inode.blocks.saturating_add(has).saturating_sub(had);
            })?;
            self.write_staged()?;
        }
        Ok(())
    }

    /// What a loose cluster would be packed to, if it can be without taking a block: all of its blocks are of this generation.
    fn packable(&mut self, ino: u64, cluster: u64) -> Result<Option<Vec<u8>>> {
        let (obj, first) = (Obj::Data(ino), cluster * CLUSTER);
        let inode = self.inode(self.head, ino)?;
        let end = inode.size.div_ceil(BLOCK_BYTES).min(first + CLUSTER);
        let count = to_usize(end.saturating_sub(first));
        // What has changed in this generation has these.
        let is_changed = self.nodes.contains_key(&(obj, 1, first / FAN));
        if !is_changed || !inode.is_packing() {
            return Ok(None);
        }
        let refs = self.cluster(self.head, ino, cluster)?;
        let mut plain = Vec::with_capacity(WHOLE);
        for (&reference, index) in refs[..count].iter().zip(first..) {
            // What is packed already was written as a whole.
            if reference.flags & PACKED != 0 || !self.is_own(reference)? {
                return Ok(None);
            }
            plain.extend_from_slice(&self.load(reference, (obj, 0, index), BlockKind::Data)?);
        }
        self.frame(&plain)
    }

    /// The block behind what a packed cluster holds, if block `index` of a file is in it: all of the cluster where that cannot be read.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn in_frame(&self, tree: usize, inode: &Inode, index: u64) -> Result<Option<u64>> {
        let cluster = cluster_of(index);
        if !self.is_packed(tree, inode, index)? {
            return Ok(None);
        }
        let blocks = match self.frame_blocks(tree, inode.ino, cluster) {
            Ok(blocks) => blocks,
            Err(Error::Corrupt(_)) => CLUSTER,
            Err(error) => return Err(error),
        };
        let behind = cluster * CLUSTER + blocks;
        Ok(Some(behind).filter(|&behind| index < behind))
    }

    /// How many blocks a packed cluster has, as its frame begins by saying: nothing is unpacked, and one block is read.
    fn frame_blocks(&self, tree: usize, ino: u64, cluster: u64) -> Result<u64> {
        let key = (Obj::Data(ino), 0, cluster * CLUSTER);
        let first = self.leaf(tree, key.0, key.2)?;
        self.check_leaf(first, key)?;
        let frame = self.cache.snapshots(&[(BlockNo(first.block), BlockKind::Data)])?;
        self.compare(first, key, &frame[0])?;
        match zstd::zstd_safe::get_frame_content_size(&frame[0]) {
            Ok(Some(len)) if len % BLOCK_BYTES == 0 && len <= to_u64(WHOLE) => Ok(len / BLOCK_BYTES),
            _ => Err(Self::bad_cluster(ino, cluster, "its frame does not say how long its contents are")),
        }
    }

    /// Fails where clusters of a file are not as they should be. `end`: blocks of the file.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn check_cluster(&self, tree: usize, ino: u64, cluster: u64, end: u64) -> Result<()> {
        let refs = self.cluster(tree, ino, cluster)?;
        let Some(plain) = self.unpacked(ino, cluster, &refs)? else { return Ok(()) };
        if cluster * CLUSTER + to_u64(plain.len() / BLOCK) > end {
            return Err(Self::bad_cluster(ino, cluster, "it reaches behind the end"));
        }
        Ok(())
    }

    /// Stages a block for a leaf of a file.
    pub(super) fn put_leaf(
        &mut self,
        ino: u64,
        index: u64,
        old: Ref,
        (bytes, flags, extra): (BlockBuf, u32, u32),
        goal: &mut Option<u64>,
    ) -> Result<()> {
        let obj = Obj::Data(ino);
        let is_own = self.is_own(old)?;
        let block = if is_own { old.block } else { self.take(*goal)? };
        *goal = Some(block + 1);
        let reference = Ref { block, birth: self.generation(), sum: sum(&bytes), flags, extra };
        self.set_leaf(obj, index, reference)?;
        if !is_own {
            self.release(obj, old)?;
        }
        self.stage(block, Arc::new(bytes));
        Ok(())
    }
}
