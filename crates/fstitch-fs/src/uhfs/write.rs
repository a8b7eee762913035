//! Writing files. The order: (zeroed tail, cleared old pointers) and contents → pointers → size; times order
//! nothing. Overwriting waits for nothing.

use std::ops::Range;
use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, Error, InodeFlags, InodeNo, Result};
use fstitch_patch::{Block, PatchId, PatchIds};
use fstitch_posix::change::{check_write, perm_after_write};
use fstitch_posix::refuse;

use crate::appended::expect_appended;

use super::low::MOVED_BLOCKS;
use super::node::{Node, Part, State};
use super::read::{BlockPart, long, short};
use super::space::Barrier;
use super::volume::ATTR_CHANGE_BLOCKS;
use super::{Allocation, AttrChange, Extent, LowLevelFs, Uhfs, Writable};

/// What a range of a file is filled with.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// Zeros, over what is there.
    Zeros,
    /// Zeros where there are holes and unwritten blocks; blocks with contents stay as they are.
    ZerosInHoles,
}

impl Source<'_> {
    /// Whether blocks that are there stay as they are, written or not.
    fn leaves(self, written: bool) -> bool {
        match self {
            Self::Bytes(_) => false,
            Self::Zeros => !written,
            Self::ZerosInHoles => written,
        }
    }
}

/// A range of a file and what it is filled with.
#[derive(Clone, Copy)]
pub(super) struct Fill<'a> {
    pub(super) caller: &'a Caller,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) source: Source<'a>,
}

/// Whose bytes are written.
#[derive(Clone, Copy)]
enum Author<'a> {
    /// Those of a program that writes now.
    Caller(&'a Caller),
    /// Those of one that was allowed to write when it did. `stamps`: nobody says when that was.
    Earlier { stamps: bool },
}

/// How far a fill came.
pub(super) struct Filled {
    /// Bytes of the range, from its start, that are in place.
    len: usize,
    /// What a larger size must come after.
    befores: PatchIds,
    /// Why it came no farther.
    error: Option<Error>,
}

/// Blocks of the volume that get their first contents in a file.
struct NewBlocks<'a> {
    /// The file blocks.
    range: Range<u64>,
    /// The first of them on the volume.
    start: BlockNo,
    /// What the contents come after.
    reuse: &'a PatchIds,
}

/// A change of one block, prepared outside the core lock.
enum Image<'a> {
    /// All of a block that the step under way has given to the file.
    New(Arc<BlockBuf>),
    Whole(Arc<BlockBuf>),
    Bytes(usize, &'a [u8]),
    Zeros(usize, usize),
}

/// Blocks that are changed under one hold of the core lock: it is held for microseconds.
const BATCH: u64 = 64;

impl<L: LowLevelFs> Uhfs<L> {
    /// Writes `data`; returns how much of it, and whether the file is marked for every change to be stable (`chattr +S`).
    pub(super) fn do_write(
        &self,
        caller: &Caller,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
    ) -> Result<(usize, bool)> {
        self.write_as(Author::Caller(caller), ino, offset, data)
    }

    /// The same for what was accepted earlier.
    pub(super) fn do_write_back(
        &self,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        stamps: bool,
    ) -> Result<(usize, bool)> {
        self.write_as(Author::Earlier { stamps }, ino, offset, data)
    }

    fn write_as(&self, author: Author<'_>, ino: InodeNo, offset: u64, data: &[u8]) -> Result<(usize, bool)> {
        let change = self.change(0)?;
        let node = self.node(ino)?;
        let moving = {
            let state = node.read()?;
            self.expect_regular(&state)?;
            self.ask_to_sync(&state)?;
            self.moving(&state)
        };
        if data.is_empty() {
            return Ok((0, false));
        }
        let room = self.low.limits().size_max.saturating_sub(offset);
        if room == 0 {
            return Err(Errno::FBIG.into());
        }
        let data = &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let (mut done, mut synchronous) = (0, false);
        {
            let _writer = self.writer(&change, &node)?;
            node.refuse_pinned()?;
            if let Author::Earlier { .. } = author {
                self.refuse_changes_of_appended(&node, offset, data)?;
            }
            self.trim_before_growth(&change, &node, offset + long(data.len()))?;
            let mut barrier = Barrier::new(self);
            while done < data.len() {
                let at = offset + long(done);
                let len = self.step_len(at, data.len() - done);
                let step = &data[done..done + len];
                if done > 0 {
                    change.may_end();
                }
                let reserved = change.reserve(len, ATTR_CHANGE_BLOCKS + moving);
                let (wrote, failure) = match reserved.and_then(|()| self.write_step(&node, author, at, step))
                {
                    Ok((wrote, is_synchronous)) => {
                        synchronous = is_synchronous;
                        (wrote, None)
                    }
                    Err(error) => (0, Some(error)),
                };
                done += wrote;
                if wrote == len || barrier.lift(&change, wrote > 0, failure.as_ref()) {
                    continue;
                }
                match failure {
                    Some(error) if done == 0 => return Err(error),
                    // What is written is written; the next call meets the same failure and reports it.
                    _ => break,
                }
            }
        }
        Ok((done, synchronous))
    }

    /// Writes one step and returns how much of it was written, at least one byte, and whether the file is marked `+S`.
    fn write_step(
        &self,
        node: &Node<L::Inode>,
        author: Author<'_>,
        offset: u64,
        data: &[u8],
    ) -> Result<(usize, bool)> {
        let mut state = node.write()?;
        let size = self.low.attr(state.inode()).size;
        match author {
            Author::Caller(_) => check_write(&self.seen(&state), offset)?,
            Author::Earlier { .. } => refuse(self.low.flags(state.inode()), InodeFlags::IMMUTABLE)?,
        }
        // Nobody knows who it was, but whose the file is.
        let attr = self.low.attr(state.inode());
        let owner = Caller { uid: attr.uid, gid: attr.gid, ..Caller::default() };
        let caller = if let Author::Caller(caller) = author { caller } else { &owner };
        self.move_out(&mut state, caller, u64::MAX)?;
        if offset > size {
            self.zero_gap(&mut state, size)?;
        }
        let fill = Fill { caller, offset, len: data.len(), source: Source::Bytes(data) };
        let len = self.fill_and_grow(&mut state, &fill, true)?;
        if let Author::Caller(caller) = author {
            self.drop_privileges(&mut state, caller)?;
        }
        if !matches!(author, Author::Earlier { stamps: false }) {
            self.touch_written(&mut state)?;
        }
        Ok((len, self.low.flags(state.inode()).has(InodeFlags::SYNC)))
    }

    /// Of an append-only file, bytes that are there stay.
    fn refuse_changes_of_appended(&self, node: &Node<L::Inode>, offset: u64, data: &[u8]) -> Result<()> {
        let state = node.read()?;
        if !self.low.flags(state.inode()).has(InodeFlags::APPEND) {
            return Ok(());
        }
        let left = self.low.attr(state.inode()).size.saturating_sub(offset);
        let mut old = vec![0; data.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        self.read_range(state.inode(), offset, &mut old)?;
        expect_appended(&old, data)
    }

    /// Sets the times of a file that was written, unless they are those of this very tick of the clock.
    fn touch_written(&self, state: &mut State<L::Inode>) -> Result<()> {
        let (attr, now) = (self.low.attr(state.inode()), self.now());
        if attr.mtime == now && attr.ctime == now { Ok(()) } else { self.touch(state, true) }
    }

    /// Fills a range and, with `grow`, raises the size to its end where that lies behind the file's. Returns
    /// how many bytes were filled, at least one.
    pub(super) fn fill_and_grow(
        &self,
        state: &mut State<L::Inode>,
        fill: &Fill<'_>,
        grow: bool,
    ) -> Result<usize> {
        let filled = self.fill(state, fill);
        let end = fill.offset + long(filled.len);
        if grow && filled.len > 0 && end > self.low.attr(state.inode()).size {
            let mut befores = filled.befores;
            befores.push(state.growth);
            self.set_size(state, end, &befores)?;
        }
        match filled.error {
            Some(error) if filled.len == 0 => Err(error),
            _ => Ok(filled.len),
        }
    }

    /// Makes sure that a file of `size` bytes ends in a block, where the format asks for that. Returns what a length of `size` comes after.
    pub(super) fn end_in_block(
        &self,
        state: &mut State<L::Inode>,
        caller: &Caller,
        size: u64,
    ) -> Result<PatchIds> {
        if size == 0 || !self.low.ends_in_block() {
            return Ok(PatchIds::new());
        }
        let fill = Fill { caller, offset: size - 1, len: 1, source: Source::ZerosInHoles };
        let filled = self.fill(state, &fill);
        filled.error.map_or(Ok(filled.befores), Err)
    }

    /// Moves contents that are elsewhere than in blocks there, as many bytes of them as are kept: before they change.
    #[inline]
    pub(super) fn move_out(&self, state: &mut State<L::Inode>, caller: &Caller, keep: u64) -> Result<()> {
        if self.low.is_inline(state.inode()) {
            let moved = self.low.move_out(caller, state.inode_mut(), keep)?;
            self.note(state, Part::Contents, &moved);
        }
        Ok(())
    }

    /// What that dirties at most.
    pub(super) fn moving(&self, state: &State<L::Inode>) -> usize {
        if self.low.is_inline(state.inode()) { MOVED_BLOCKS } else { 0 }
    }

    /// Changes the size, which comes after `befores`, and returns the patches.
    pub(super) fn set_size(
        &self,
        state: &mut State<L::Inode>,
        size: u64,
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        let change = AttrChange { size: Some(size), ..AttrChange::default() };
        let patches = self.low.set_attr(state.inode_mut(), &change, befores)?;
        if state.track.sizes != patches {
            self.note(state, Part::Contents, &patches);
            state.track.sizes.clone_from(&patches);
        }
        Ok(patches)
    }

    /// Fills a range run by run: contents → pointers.
    fn fill(&self, state: &mut State<L::Inode>, fill: &Fill<'_>) -> Filled {
        let unit = long(self.block_size());
        let range_end = fill.offset + long(fill.len);
        let end = self.blocks_of(range_end);
        let mut index = fill.offset / unit;
        let mut befores = PatchIds::new();
        let mut error = None;
        while index < end {
            match self.fill_run(state, fill, (index, (end - index).min(BATCH))) {
                Ok((count, patches)) => {
                    index += count;
                    befores.extend_from_slice(&patches);
                }
                Err(failure) => {
                    error = Some(failure);
                    break;
                }
            }
        }
        let reached = (index * unit).clamp(fill.offset, range_end);
        Filled { len: short(reached - fill.offset), befores, error }
    }

    /// Fills up to `max` blocks that are alike; returns how many, and what a larger size must come after.
    fn fill_run(
        &self,
        state: &mut State<L::Inode>,
        fill: &Fill<'_>,
        (index, max): (u64, u64),
    ) -> Result<(u64, PatchIds)> {
        let extent = self.low.map(state.inode(), index, max)?;
        match extent.start {
            Some(_) if fill.source.leaves(extent.written) => Ok((extent.count, PatchIds::new())),
            Some(start) if !extent.written => {
                let range = self.low.prepare_written(state.inode_mut(), index, extent.count)?;
                let first = BlockNo(start.get() + range.start - index);
                let reuse = self.low.unwritten_reuse(first, range.end - range.start)?;
                let place = NewBlocks { range: range.clone(), start: first, reuse: &reuse };
                let contents = self.init_blocks(state, fill, &place)?;
                let pointers = self.low.mark_written(state.inode_mut(), range.clone(), &contents)?;
                self.note_pointers(state, &pointers, contents);
                self.order_growth(state, &range, &pointers);
                Ok((range.end.min(index + extent.count) - index, pointers))
            }
            Some(_) => {
                let extent = self.writable(state, fill.caller, (index, extent))?;
                let patches = self.overwrite(state, fill, (index, extent))?;
                // Only the bytes at or behind the end matter to the size: those of the run's last blocks.
                let size = self.low.attr(state.inode()).size;
                let grows = (index + extent.count) * long(self.block_size()) > size;
                Ok((extent.count, if grows { patches } else { PatchIds::new() }))
            }
            None => {
                let (inode, count) = (state.inode_mut(), extent.count);
                let allocation = self.low.allocate(fill.caller, inode, index, count)?;
                let range = allocation.index..allocation.index + allocation.count;
                let pointers = self.fill_hole(state, fill, allocation)?;
                self.order_growth(state, &range, &pointers);
                Ok((range.end - index, pointers))
            }
        }
    }

    /// The file's last block, if it is among these, has contents now: were the file longer before `pointers`, what is written there
    /// later would read as zeros.
    fn order_growth(&self, state: &mut State<L::Inode>, range: &Range<u64>, pointers: &[PatchId]) {
        let size = self.low.attr(state.inode()).size;
        let (tail, used) = (size / long(self.block_size()), size % long(self.block_size()));
        if used > 0 && range.contains(&tail) {
            self.delay_growth(state, pointers);
        }
    }

    /// Where blocks of the file, or the first of them, may be overwritten.
    fn writable(&self, state: &mut State<L::Inode>, caller: &Caller, run: (u64, Extent)) -> Result<Extent> {
        let Writable { extent, moved } = self.low.writable(caller, state.inode_mut(), run, &[])?;
        if !moved.is_empty() {
            self.note(state, Part::Contents, &moved);
        }
        Ok(extent)
    }

    /// Overwrites blocks of the file. A block of which nothing old remains is not read.
    fn overwrite(
        &self,
        state: &mut State<L::Inode>,
        fill: &Fill<'_>,
        (index, Extent { start, count, .. }): (u64, Extent),
    ) -> Result<PatchIds> {
        let start = start.ok_or(Errno::IO)?;
        let unit = long(self.block_size());
        let size = self.low.attr(state.inode()).size;
        let mut images = Vec::with_capacity(short(count));
        for i in 0..count {
            let no = BlockNo(start.get() + i);
            let block_start = (index + i) * unit;
            let part = BlockPart::of(block_start, unit, fill.offset, long(fill.len));
            // Behind the file's end there is nothing worth keeping.
            let to_end = block_start + long(part.in_block + part.len) >= size;
            if part.in_block == 0 && (part.len == self.block_size() || to_end) {
                let image = Image::Whole(whole_block(fill, part, self.block_size()));
                images.push((self.cache().fresh(no, BlockKind::Data)?, image));
                continue;
            }
            let block = self.cache().read(no, BlockKind::Data)?;
            match fill.source {
                Source::Bytes(bytes) => {
                    let bytes = &bytes[part.in_buffer..part.in_buffer + part.len];
                    images.push((block, Image::Bytes(part.in_block, bytes)));
                }
                _ if is_zero(&block, part.in_block, part.len) => {}
                _ => images.push((block, Image::Zeros(part.in_block, part.len))),
            }
        }
        Ok(self.apply(state, images, &[]))
    }

    /// Initialises new blocks completely, each in one patch, and points the file at them.
    fn fill_hole(
        &self,
        state: &mut State<L::Inode>,
        fill: &Fill<'_>,
        allocation: Allocation,
    ) -> Result<PatchIds> {
        let Allocation { index, start, count, .. } = allocation;
        let place = NewBlocks { range: index..index + count, start, reuse: &allocation.reuse };
        let contents = match self.init_blocks(state, fill, &place) {
            Ok(contents) => contents,
            Err(error) => {
                self.low.give_back(state.inode_mut(), allocation);
                return Err(error);
            }
        };
        let pointers = self.low.attach(state.inode_mut(), allocation, &contents)?;
        self.note_pointers(state, &pointers, contents);
        Ok(pointers)
    }

    /// Initialises blocks whose old contents nobody sees, each in one patch.
    fn init_blocks(
        &self,
        state: &mut State<L::Inode>,
        fill: &Fill<'_>,
        place: &NewBlocks<'_>,
    ) -> Result<PatchIds> {
        let unit = long(self.block_size());
        let zeros = match fill.source {
            Source::Bytes(_) => None,
            _ => Some(Arc::new(BlockBuf::zeroed(self.block_size()))),
        };
        let filled = fill.offset / unit..self.blocks_of(fill.offset + long(fill.len));
        let mut images = Vec::with_capacity(short(place.range.end - place.range.start));
        for (index, no) in place.range.clone().zip(place.start.get()..) {
            let block = self.cache().fresh(BlockNo(no), BlockKind::Data)?;
            let image = match &zeros {
                Some(zeros) => Arc::clone(zeros),
                None if !filled.contains(&index) => Arc::new(BlockBuf::zeroed(self.block_size())),
                None => {
                    let part = BlockPart::of(index * unit, unit, fill.offset, long(fill.len));
                    whole_block(fill, part, self.block_size())
                }
            };
            images.push((block, Image::New(image)));
        }
        Ok(self.apply(state, images, place.reuse))
    }

    /// Gathers the pointers to new contents, and what of the contents does not come before them.
    fn note_pointers(&self, state: &mut State<L::Inode>, pointers: &PatchIds, contents: PatchIds) {
        if state.track.pointers != *pointers {
            self.note(state, Part::Contents, pointers);
            state.track.pointers.clone_from(pointers);
        }
        let loose = self.not_before(pointers, contents);
        self.note(state, Part::Contents, &loose);
    }

    /// Those of `contents` that none of `pointers` comes after: the others need not be gathered beside these.
    fn not_before(&self, pointers: &[PatchId], mut contents: PatchIds) -> PatchIds {
        let tx = self.cache().lock();
        // The pointers to the contents are the last ones.
        contents.retain(|&mut patch| !pointers.iter().rev().any(|&pointer| tx.depends_on(pointer, patch)));
        contents
    }

    /// Makes the patches of prepared changes under one hold of the core lock.
    fn apply(
        &self,
        state: &mut State<L::Inode>,
        images: Vec<(Block, Image<'_>)>,
        befores: &[PatchId],
    ) -> PatchIds {
        let zeros = match images.iter().any(|(_, image)| matches!(image, Image::Zeros(..))) {
            true => vec![0; self.block_size()],
            false => Vec::new(),
        };
        let mut patches = PatchIds::new();
        let gather = state.track.part(Part::Contents);
        let mut tx = self.cache().lock();
        for (block, image) in images {
            let patch = match image {
                Image::New(contents) => {
                    tx.note_new(&block);
                    patches.push(tx.init(&block, contents, befores));
                    // It is nobody's before it is attached.
                    continue;
                }
                Image::Whole(contents) => tx.init(&block, contents, befores),
                Image::Bytes(at, bytes) => tx.bytes(&block, at, bytes, befores),
                Image::Zeros(at, len) => tx.bytes(&block, at, &zeros[..len], befores),
            };
            *gather = tx.gather_add(*gather, patch);
            patches.push(patch);
        }
        patches
    }

    /// Zeroes, before a growth, what lies in the file's last block behind its end. Bytes that are zero already
    /// are left alone: only a crash leaves others, since every truncation zeroes them.
    pub(super) fn zero_gap(&self, state: &mut State<L::Inode>, size: u64) -> Result<()> {
        match self.tail_of(state, size)? {
            Some((block, from)) if !is_zero(&block, from, self.block_size() - from) => {
                self.zero_tail(state, (block, from), &[]);
            }
            _ => {}
        }
        self.zero_behind(state, size, &[])
    }

    /// Zeroes, after `befores`, the blocks behind a file's end that come and go together with the one in which it ends, and lets every later
    /// growth come after that.
    pub(super) fn zero_behind(
        &self,
        state: &mut State<L::Inode>,
        size: u64,
        befores: &[PatchId],
    ) -> Result<()> {
        let (unit, hole_unit) = (long(self.block_size()), long(self.low.limits().hole_unit));
        let end = size.next_multiple_of(hole_unit) / unit;
        let mut images = Vec::new();
        for index in self.blocks_of(size)..end {
            if let Some(no) = self.low.map(state.inode(), index, 1)?.contents() {
                let block = self.cache().read(no, BlockKind::Data)?;
                if !is_zero(&block, 0, self.block_size()) {
                    images.push((block, Image::Zeros(0, self.block_size())));
                }
            }
        }
        if !images.is_empty() {
            let zeroed = self.apply(state, images, befores);
            self.delay_growth(state, &zeroed);
        }
        Ok(())
    }

    /// The block in which a file of `size` bytes ends, and where in it, unless it ends with a block or in a hole. It may be
    /// overwritten.
    pub(super) fn tail_of(&self, state: &mut State<L::Inode>, size: u64) -> Result<Option<(Block, usize)>> {
        let unit = long(self.block_size());
        let from = short(size % unit);
        if from == 0 {
            return Ok(None);
        }
        let extent = self.low.map(state.inode(), size / unit, 1)?;
        if extent.contents().is_none() {
            return Ok(None);
        }
        // Cutting a file short must be possible where only the superuser has room.
        let extent = self.writable(state, &Caller::default(), (size / unit, extent))?;
        let Some(no) = extent.start else { return Ok(None) };
        Ok(Some((self.cache().read(no, BlockKind::Data)?, from)))
    }

    /// Zeroes a block from `from` on, after `befores`, and lets every later growth come after that.
    pub(super) fn zero_tail(
        &self,
        state: &mut State<L::Inode>,
        (block, from): (Block, usize),
        befores: &[PatchId],
    ) {
        let len = self.block_size() - from;
        let patches = self.apply(state, vec![(block, Image::Zeros(from, len))], befores);
        self.delay_growth(state, &patches);
    }

    /// Lets every later growth of the file come after `patches`.
    pub(super) fn delay_growth(&self, state: &mut State<L::Inode>, patches: &[PatchId]) {
        self.delay_growth_beyond(state, patches, &[]);
    }

    /// The same, where `lowered` are the patches that have lowered the size: a later growth changes the same bytes, so it
    /// joins them or comes after them, and after everything that is one patch with them. With nothing else to wait for,
    /// growth joins them, and a file that is emptied and filled over and over keeps no more than its last contents.
    pub(super) fn delay_growth_beyond(
        &self,
        state: &mut State<L::Inode>,
        patches: &[PatchId],
        lowered: &[PatchId],
    ) {
        if patches.is_empty() {
            return;
        }
        let mut tx = self.cache().lock();
        let is_with_size = |patch| lowered.iter().any(|&size| tx.same(patch, size));
        // What a transaction holds comes before everything in later ones, and together with the rest of its own.
        let mut befores: PatchIds =
            patches.iter().copied().filter(|&patch| !tx.is_logged(patch) && !is_with_size(patch)).collect();
        if !befores.is_empty() {
            befores.push(state.growth);
            state.growth = tx.empty(&befores);
        }
    }

    /// A write by anybody but root takes the rights away that the file lends to whoever executes it.
    pub(super) fn drop_privileges(&self, state: &mut State<L::Inode>, caller: &Caller) -> Result<()> {
        if let Some(kept) = perm_after_write(caller, self.low.attr(state.inode()).perm) {
            let change = AttrChange { perm: Some(kept), ..AttrChange::default() };
            let patches = self.low.set_attr(state.inode_mut(), &change, &[])?;
            self.note(state, Part::Attributes, &patches);
        }
        Ok(())
    }
}

/// A new block's contents: its part of the range, zeros around it.
fn whole_block(fill: &Fill<'_>, part: BlockPart, block_size: usize) -> Arc<BlockBuf> {
    if let Source::Bytes(bytes) = fill.source
        && part.len == block_size
    {
        return Arc::new(BlockBuf::copy_of(&bytes[part.in_buffer..part.in_buffer + part.len]));
    }
    let mut contents = BlockBuf::zeroed(block_size);
    if let Source::Bytes(bytes) = fill.source {
        contents[part.in_block..part.in_block + part.len]
            .copy_from_slice(&bytes[part.in_buffer..part.in_buffer + part.len]);
    }
    Arc::new(contents)
}

/// Whether `len` bytes of a block from `from` are all zero.
pub(super) fn is_zero(block: &Block, from: usize, len: usize) -> bool {
    block.snapshot()[from..from + len].iter().all(|&byte| byte == 0)
}
