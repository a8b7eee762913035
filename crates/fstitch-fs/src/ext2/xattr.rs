//! Extended attributes of an inode: in its own bytes where they fit, else in a block that inodes may share.
//!
//! **Orderings** (arrows read "comes after").
//! - the attributes in the inode's bytes change in one patch, and so do those in a block that is the inode's alone: each
//!   crash finds the old set or the new one;
//! - a shared block is not changed: the inode points at a copy, → the copy's initialisation and bit;
//! - the old block's reference count falls, or its bit is cleared, → the change of the pointer: the count on the medium
//!   is never below the number of pointers there;
//! - a block that others have left is changed or freed by its last owner → the changes of their pointers;
//! - an attribute that moves between inode and block is removed from its old place → it is in the new one;
//! - the first attribute of a volume → the feature bit in the superblock.
//!
//! **Crash cases.** Reference counts too high, leaked blocks, an attribute in both places (the inode's own counts).

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, FileKind, Result, Structure, XattrSetMode};
use fstitch_patch::{Block, PatchId, PatchIds, PatchState, Tx};

use super::acl;
use super::alloc::{FreedAfter, Goal, Run};
use super::inode::Inode;
use super::layout::feature::{compat, incompat};
use super::layout::inode::{EA_INODE_FL, GOOD_OLD_SIZE, I_BLOCKS, I_FILE_ACL, I_FILE_ACL_HIGH};
use super::layout::xattr::{BLOCK_HEADER, H_REFCOUNT, Xattr, XattrSet, full_name, split_name};
use super::num::{high32, idx64, low16, low32};
use super::values::References;
use super::volume::Ext2;

/// The attributes of an inode, by place.
#[derive(Clone, Default)]
pub(super) struct Places {
    pub(super) body: XattrSet,
    pub(super) block: XattrSet,
}

/// How the attribute block changes.
enum BlockChange {
    None,
    /// It goes.
    Remove,
    /// It is the inode's alone and gets new contents.
    Rewrite(Block, BlockBuf),
    /// A new one takes its place.
    Replace(Run, Block, BlockBuf),
}

/// A change of attributes of which nothing is left that may fail before its entries are there.
struct Planned {
    inode_block: Block,
    change: BlockChange,
    /// To values, if these may be elsewhere; those that come are counted.
    references: Option<References>,
}

/// Bytes for attributes in an inode of `size` bytes, from its start; empty if it has none.
pub(super) fn body_range(size: u16, extra_isize: u16) -> std::ops::Range<usize> {
    let size = usize::from(size);
    match extra_isize {
        0 => size..size,
        extra => GOOD_OLD_SIZE + usize::from(extra)..size,
    }
}

impl Ext2 {
    /// Bytes for attributes in the inode itself, from the inode's start; empty if it has none.
    pub(super) fn body_range(&self, inode: &Inode) -> std::ops::Range<usize> {
        body_range(self.sb.inode_size, inode.disk.extra_isize)
    }

    pub(super) fn read_places(&self, inode: &Inode) -> Result<Places> {
        let body = self.read_body(inode)?;
        let block = match inode.disk.xattr_block {
            0 => XattrSet::default(),
            no => {
                let block = self.read_xattr_block(inode, no)?;
                XattrSet::parse_block(&block.snapshot(), block.no())?.0
            }
        };
        Ok(Places { body, block })
    }

    fn read_xattr_block(&self, inode: &Inode, no: u64) -> Result<Block> {
        if !self.is_file_run(no, 1)? {
            return Err(inode.damaged(format!("its attribute block {no} is outside the blocks for files")));
        }
        self.cache.read(BlockNo(no), BlockKind::Attribute)
    }

    /// An attribute's value.
    pub(super) fn read_xattr(&self, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let (index, name) = split_name(name).ok_or(Errno::OPNOTSUPP)?;
        if inode.disk.xattr_block == 0 && !inode.body_attributes {
            return Err(Errno::NODATA.into());
        }
        let places = self.read_places(inode)?;
        let found = places.body.find(index, name).or_else(|| places.block.find(index, name));
        let found = found.ok_or(Errno::NODATA)?;
        let elsewhere;
        let value = match found.elsewhere {
            Some(at) => {
                elsewhere = self.read_value(inode, at)?;
                &elsewhere
            }
            None => &found.value,
        };
        acl::wire(index, value).ok_or_else(|| inode.damaged("malformed access control list"))
    }

    /// All names.
    pub(super) fn read_xattr_names(&self, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        let places = self.read_places(inode)?;
        let mut names: Vec<Vec<u8>> =
            places.body.0.iter().chain(&places.block.0).filter_map(|x| full_name(x.index, &x.name)).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Creates or replaces an attribute.
    pub(super) fn write_xattr(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (name, value): (&[u8], &[u8]),
        mode: XattrSetMode,
    ) -> Result<PatchIds> {
        let mut new = acl::stored(name, value)?;
        let mut places = self.read_places(inode)?;
        let before = self.has_values().then(|| places.clone());
        let in_body = places.body.get(new.index, &new.name).is_some();
        let in_block = places.block.get(new.index, &new.name).is_some();
        match mode {
            XattrSetMode::Create if in_body || in_block => return Err(Errno::EXIST.into()),
            XattrSetMode::Replace if !in_body && !in_block => return Err(Errno::NODATA.into()),
            _ => {}
        }
        let feature = self.need_compat(compat::EXT_ATTR)?;
        let mut body_first = self.fits_body(inode, &places.body, &new);
        let mut made = None;
        if !body_first && !self.fits_block(&places.block, &new) {
            self.may_have_values(inode, &new)?;
            let light = Self::lightened(&new);
            body_first = self.fits_body(inode, &places.body, &light);
            if !body_first && !self.fits_block(&places.block, &light) {
                return Err(Errno::NOSPC.into());
            }
            new = self.make_value(caller, inode, &new)?;
            made = new.elsewhere.map(|at| at.inode);
        }
        if body_first {
            places.block.remove(new.index, &new.name);
            places.body.set(new);
        } else {
            places.body.remove(new.index, &new.name);
            places.block.set(new);
        }
        let touched = Touched { body: body_first || in_body, block: !body_first || in_block, body_first };
        let change = match self.plan_change(caller, inode, (before.as_ref(), &places, made), touched) {
            Ok(change) => change,
            Err(error) => {
                if let Some(made) = made {
                    let mut value = self.load_value(inode, made)?;
                    self.end_inode(&mut value, &[])?;
                }
                return Err(error);
            }
        };
        // Whatever fails from here on, an entry refers to the value.
        self.carry_out(inode, (before.as_ref(), &places), (touched, change), &[feature])
    }

    /// Removes an attribute.
    pub(super) fn erase_xattr(&self, caller: &Caller, inode: &mut Inode, name: &[u8]) -> Result<PatchIds> {
        let (index, name) = split_name(name).ok_or(Errno::OPNOTSUPP)?;
        let mut places = self.read_places(inode)?;
        let before = self.has_values().then(|| places.clone());
        let body = places.body.remove(index, name);
        let block = places.block.remove(index, name);
        if !body && !block {
            return Err(Errno::NODATA.into());
        }
        // The block first: as long as the inode's own value exists it hides the block's.
        let touched = Touched { body, block, body_first: false };
        self.store(caller, inode, (before.as_ref(), &places), touched)
    }

    /// Removes one attribute of an inode without names whose value is elsewhere and would go with the inode; false if there is none.
    pub(super) fn shed_value(&self, inode: &mut Inode) -> Result<bool> {
        if !self.has_values() || inode.disk.flags & EA_INODE_FL != 0 {
            return Ok(false);
        }
        let before = self.read_places(inode)?;
        let alone = match inode.disk.xattr_block {
            0 => false,
            no => {
                let block = self.read_xattr_block(inode, no)?;
                H_REFCOUNT.get(self.cache.lock().data(&block)) == 1
            }
        };
        let in_body = before.body.0.iter().find(|attribute| attribute.elsewhere.is_some());
        let in_block = || before.block.0.iter().find(|attribute| alone && attribute.elsewhere.is_some());
        let Some(gone) = in_body.or_else(in_block) else { return Ok(false) };
        let mut places = before.clone();
        let body = places.body.remove(gone.index, &gone.name);
        let block = !body && places.block.remove(gone.index, &gone.name);
        let touched = Touched { body, block, body_first: false };
        self.store(&Caller::default(), inode, (Some(&before), &places), touched)?;
        Ok(true)
    }

    fn fits_body(&self, inode: &Inode, body: &XattrSet, new: &Xattr) -> bool {
        let mut with = body.clone();
        with.set(new.clone());
        let mut room = vec![0; self.body_range(inode).len()];
        !room.is_empty() && with.encode_body(&mut room)
    }

    fn fits_block(&self, block: &XattrSet, new: &Xattr) -> bool {
        let mut with = block.clone();
        with.set(new.clone());
        BLOCK_HEADER + with.size() <= self.block_size()
    }

    /// The references to values that come and go. What a block that goes refers to is let go with it.
    fn references_of(
        &self,
        (before, after, made): (&Places, &Places, Option<u32>),
        touched: Touched,
        change: &BlockChange,
    ) -> References {
        let mut references = References::default();
        if touched.body {
            references.add(&before.body, -1);
            references.add(&after.body, 1);
        }
        match change {
            BlockChange::None | BlockChange::Remove => {}
            BlockChange::Rewrite(..) => {
                references.add(&before.block, -1);
                references.add(&after.block, 1);
            }
            BlockChange::Replace(..) => references.add(&after.block, 1),
        }
        made.into_iter().for_each(|value| references.without(value));
        references
    }

    /// Counts for the inode's storage what its values take.
    fn count_values(&self, inode: &mut Inode, block: &Block, (before, after): (&Places, &Places)) {
        let [had, has] = [before, after].map(|at| self.value_sectors([&at.body, &at.block]));
        if had != has {
            inode.disk.sectors = (inode.disk.sectors + has).saturating_sub(had);
            self.put_sectors(&mut self.cache.lock(), inode, block);
        }
    }

    /// Changes the places, where `before` is what they were if values may be elsewhere.
    fn store(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (before, places): (Option<&Places>, &Places),
        touched: Touched,
    ) -> Result<PatchIds> {
        let change = self.plan_change(caller, inode, (before, places, None), touched)?;
        self.carry_out(inode, (before, places), (touched, change), &[])
    }

    /// Decides how the places change, takes what that needs, and counts the references that come: all that may fail with no entry
    /// changed. One value may have been `made` for it, with its reference.
    fn plan_change(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (before, places, made): (Option<&Places>, &Places, Option<u32>),
        touched: Touched,
    ) -> Result<Planned> {
        let inode_block = self.inode_block(inode)?;
        if touched.body && !places.body.encode_body(&mut vec![0; self.body_range(inode).len()]) {
            return Err(inode.damaged("its attributes overlap"));
        }
        let change =
            if touched.block { self.plan_block(caller, inode, &places.block)? } else { BlockChange::None };
        let references = before.map(|before| self.references_of((before, places, made), touched, &change));
        if let Some(references) = &references {
            let counted = self.expect_values(inode, references);
            if let Err(error) = counted.and_then(|()| self.raise_references(inode, references)) {
                self.give_back_change(change);
                return Err(error);
            }
        }
        Ok(Planned { inode_block, change, references })
    }

    /// Writes the places that changed, each after the one before it, then lets go of what they had. What fails of that is left, and
    /// the first failure is reported, but the entries are as planned.
    fn carry_out(
        &self,
        inode: &mut Inode,
        (before, places): (Option<&Places>, &Places),
        (touched, planned): (Touched, Planned),
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        let Planned { inode_block, change, references } = planned;
        let mut left = Ok(());
        let mut order = PatchIds::from_slice(befores);
        let mut patches = PatchIds::new();
        let mut change = Some(change);
        for body_turn in [touched.body_first, !touched.body_first] {
            let done = if !body_turn {
                let change = change.take().unwrap_or(BlockChange::None);
                let (done, released) = self.store_block(inode, &inode_block, change, &order);
                left = left.and(released);
                done
            } else if touched.body {
                self.store_body(inode, &inode_block, &places.body, &order)
            } else {
                PatchIds::new()
            };
            order.extend(done.iter().copied());
            patches.extend(done);
        }
        if let (Some(references), Some(before)) = (&references, before) {
            self.count_values(inode, &inode_block, (before, places));
            left = left.and(self.lower_references(inode, references));
        }
        self.remember(inode);
        left.map(|()| patches)
    }

    /// Gives back what a change that is not made has taken.
    fn give_back_change(&self, change: BlockChange) {
        if let BlockChange::Replace(run, ..) = change {
            self.give_back_run(&run);
        }
    }

    /// Writes the inode's own attributes: one patch from the first to the last byte that changes.
    fn store_body(&self, inode: &mut Inode, block: &Block, set: &XattrSet, befores: &[PatchId]) -> PatchIds {
        let range = self.body_range(inode);
        let mut bytes = vec![0; range.len()];
        let fits = set.encode_body(&mut bytes);
        assert!(fits, "fitting was tried before");
        let mut tx = self.cache.lock();
        let now = &tx.data(block)[inode.at.1 + range.start..inode.at.1 + range.end];
        let differs = |at: &usize| now[*at] != bytes[*at];
        let (Some(first), Some(last)) = ((0..bytes.len()).find(differs), (0..bytes.len()).rfind(differs))
        else {
            return PatchIds::new();
        };
        let moved = inode.disk.has_inline_data().then(|| now.to_vec());
        let patch = inode.put_bytes(&mut tx, block, (range.start + first, &bytes[first..=last]), befores);
        drop(tx);
        inode.body_attributes = true;
        if let Some(before) = moved {
            self.carry_names(inode, (&before, &bytes));
        }
        PatchIds::from_slice(&[patch])
    }

    /// Decides how the attribute block changes and takes what that needs.
    fn plan_block(&self, caller: &Caller, inode: &Inode, set: &XattrSet) -> Result<BlockChange> {
        let old = inode.disk.xattr_block;
        if set.0.is_empty() {
            return Ok(if old == 0 { BlockChange::None } else { BlockChange::Remove });
        }
        let mut contents = BlockBuf::zeroed(self.block_size());
        if !set.encode_block(&mut contents, 1) {
            return Err(Errno::NOSPC.into());
        }
        if old != 0 {
            let block = self.read_xattr_block(inode, old)?;
            let alone = H_REFCOUNT.get(self.cache.lock().data(&block)) == 1;
            if alone {
                return Ok(BlockChange::Rewrite(block, contents));
            }
        }
        if old == 0 {
            self.blocks_by_quota(caller, inode, 1)?;
        }
        let run = self.take_blocks(caller, Goal::Apart(self.sb.group_of_inode(inode.ino)), 1)?;
        match self.cache.fresh(BlockNo(run.start), BlockKind::Attribute) {
            Ok(block) => Ok(BlockChange::Replace(run, block, contents)),
            Err(error) => {
                self.give_back_run(&run);
                Err(error)
            }
        }
    }

    /// Writes the change of the attribute block; and whether the old one was let go.
    fn store_block(
        &self,
        inode: &mut Inode,
        inode_block: &Block,
        change: BlockChange,
        befores: &[PatchId],
    ) -> (PatchIds, Result<()>) {
        let old = inode.disk.xattr_block;
        let others = self.memory.inodes().turned_away.get(&old).cloned().unwrap_or_default();
        let mut tx = self.cache.lock();
        let pointer = match change {
            BlockChange::None => return (PatchIds::new(), Ok(())),
            BlockChange::Rewrite(block, contents) => {
                // On the medium it may still be others' as well.
                let mut befores = PatchIds::from_slice(befores);
                befores.extend(others);
                let patch = tx.init(&block, Arc::new(contents), &befores);
                inode.gather(&mut tx, patch);
                return (PatchIds::from_slice(&[patch]), Ok(()));
            }
            BlockChange::Remove => self.point_at(&mut tx, inode, inode_block, 0, befores),
            BlockChange::Replace(run, block, contents) => {
                let init = tx.init(&block, Arc::new(contents), &run.reuse);
                // The pointer after the block's contents and its bit in the free map.
                let mut befores = PatchIds::from_slice(befores);
                befores.push(init);
                befores.extend(run.bits.iter().copied());
                let pointer = self.point_at(&mut tx, inode, inode_block, run.start, &befores);
                inode.attached.insert(run.start, 1, pointer);
                pointer
            }
        };
        drop(tx);
        let mut released = Ok(());
        if old != 0 {
            let made = inode.attached.covering(old);
            let never = self.cache.optimizations().elimination
                && made.is_some_and(|(_, made)| self.cache.lock().same(made, pointer));
            let after = if never { FreedAfter::Nothing } else { FreedAfter::Pointer(pointer) };
            inode.attached.remove(old, old + 1);
            released = self.release_xattr_block(inode, old, after);
        }
        (PatchIds::from_slice(&[pointer]), released)
    }

    /// Changes the pointer to the attribute block, and the count of blocks with it. For symbolic links both
    /// are one patch, because the count tells whether the target is in the inode.
    fn point_at(
        &self,
        tx: &mut Tx<'_>,
        inode: &mut Inode,
        block: &Block,
        to: u64,
        befores: &[PatchId],
    ) -> PatchId {
        let had = inode.disk.xattr_block != 0;
        inode.disk.xattr_block = to;
        match (had, to != 0) {
            (false, true) => inode.disk.sectors += self.sectors_per_cluster(),
            (true, false) => {
                inode.disk.sectors = inode.disk.sectors.saturating_sub(self.sectors_per_cluster());
            }
            _ => {}
        }
        // Both halves are one patch, with what lies between them: halves of two pointers would be a third one.
        let (high, raw) = (low16(high32(to)), &tx.data(block)[inode.at.1..]);
        let is_large = self.sb.features.has_incompat(incompat::BIT64);
        let end = if is_large && I_FILE_ACL_HIGH.get(raw) != high {
            I_FILE_ACL_HIGH.end()
        } else {
            I_FILE_ACL.end()
        };
        let is_link = inode.disk.kind == FileKind::Symlink;
        if !is_link && had != (to != 0) {
            self.put_sectors(tx, inode, block);
        }
        let (sectors, _) = inode.disk.storage_fields(self.sb.block_size);
        let from = if is_link { I_BLOCKS.offset() } else { I_FILE_ACL.offset() };
        let mut bytes = tx.data(block)[inode.at.1..inode.at.1 + end].to_vec();
        if is_link {
            I_BLOCKS.put(&mut bytes, sectors);
        }
        I_FILE_ACL.put(&mut bytes, low32(to));
        if end > I_FILE_ACL.end() {
            I_FILE_ACL_HIGH.put(&mut bytes, high);
        }
        inode.put_bytes(tx, block, (from, &bytes[from..]), befores)
    }

    /// Gives up one reference to an attribute block: its count falls, or the last one frees it, after the pointer
    /// was cleared.
    pub(super) fn release_xattr_block(&self, of: &Inode, no: u64, after: FreedAfter) -> Result<()> {
        let damaged =
            |problem: &str| fstitch_core::Error::corrupt(Structure::AttributeBlock, BlockNo(no), problem);
        if !self.is_file_run(no, 1)? {
            return Err(damaged("outside the blocks for files"));
        }
        let block = self.cache.read(BlockNo(no), BlockKind::Attribute)?;
        let (attributes, _) = XattrSet::parse_block(&block.snapshot(), block.no())?;
        self.watch.blocks(no, 1);
        // Listed before the count falls: whoever finds the block alone finds this, too.
        let others = self.turn_away(no, after);
        let mut tx = self.cache.lock();
        let count = H_REFCOUNT.get(tx.data(&block));
        if count > 1 {
            tx.bytes(&block, H_REFCOUNT.offset(), &(count - 1).to_le_bytes(), after.befores());
            return Ok(());
        }
        let mut pointers: PatchIds =
            others.into_iter().filter(|&patch| tx.state(patch) != PatchState::Committed).collect();
        let after = if pointers.is_empty() {
            after
        } else {
            // Free on the medium only when nobody points at it there any more.
            pointers.extend(after.befores().iter().copied());
            FreedAfter::Pointer(tx.empty(&pointers))
        };
        drop(tx);
        drop(block);
        self.memory.inodes().turned_away.remove(&no);
        self.free_blocks(no, 1, after)?;
        if self.has_values() { self.release_values(of, &attributes) } else { Ok(()) }
    }

    /// Lists a pointer that was turned away from an attribute block, and returns those listed before.
    fn turn_away(&self, no: u64, after: FreedAfter) -> PatchIds {
        let mut inodes = self.memory.inodes();
        let others = inodes.turned_away.get(&no).cloned().unwrap_or_default();
        let mut all = others.clone();
        all.extend(after.befores().iter().copied());
        inodes.turned_away.insert(no, all, &self.cache);
        others
    }

    /// Bytes that an operation on attributes dirties at most.
    #[must_use]
    pub fn xattr_reserve(&self) -> usize {
        idx64(6 * u64::from(self.sb.block_size))
    }
}

/// Which places change, and which first.
#[derive(Clone, Copy)]
struct Touched {
    body: bool,
    block: bool,
    body_first: bool,
}
