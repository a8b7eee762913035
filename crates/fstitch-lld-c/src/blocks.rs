//! Blocks and lists: the same calls for a disk and for a unit.

use std::ffi::{c_int, c_void};

use fstitch_lld::At;

use crate::boundary::{Out, bytes, call, found, room};
use crate::failure::{Failure, Result};
use crate::handles::{LldDisk, LldUnit, OpenUnit, Opened, find};

/// Fails if memory is not of the size of a block, also where there is no block.
fn is_block(on: &Opened, len: usize) -> Result<()> {
    let block_size = on.disk.block_size();
    if len == block_size {
        return Ok(());
    }
    Err(Failure::invalid(format!("{len} bytes for a block of {block_size}")))
}

/// Writes a call twice: for a disk (`lld_…`) and for a unit (`lld_unit_…`).
macro_rules! calls {
    ($($(#[$doc:meta])* $disk:ident $unit:ident ($($name:ident: $type:ty),*) |$on:ident, $opened:ident| $work:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are null, or lead to what the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $disk(disk: *mut LldDisk, $($name: $type),*) -> c_int {
            call(stringify!($disk), || {
                let $opened = &*find::<Opened>(disk.addr())?;
                let $on = &*$opened.disk;
                $work
            })
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are null, or lead to what the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $unit(unit: *mut LldUnit, $($name: $type),*) -> c_int {
            call(stringify!($unit), || {
                let unit = find::<OpenUnit>(unit.addr())?;
                let $opened = &*unit.on;
                unit.with(|$on| $work)
            })
        }
    )*};
}

calls! {
    /// Makes a list.
    lld_new_list lld_unit_new_list (sparse: c_int, list: *mut u64) |on, _opened| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(list, "the list's number") }?;
        place.put(on.new_list(sparse != 0)?);
        Ok(0)
    };

    /// Removes a list with its blocks.
    lld_delete_list lld_unit_delete_list (list: u64) |on, _opened| {
        on.delete_list(list)?;
        Ok(0)
    };

    /// Makes a block in front of all others of an ordered list.
    lld_new_block lld_unit_new_block (list: u64, block: *mut u64) |on, _opened| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(block, "the block's number") }?;
        place.put(on.new_block(list, At::Start)?);
        Ok(0)
    };

    /// Makes a block behind another one.
    lld_new_block_after lld_unit_new_block_after (list: u64, before: u64, block: *mut u64) |on, _opened| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(block, "the block's number") }?;
        place.put(on.new_block(list, At::After(before))?);
        Ok(0)
    };

    /// Makes a block at a position of a sparse list.
    lld_new_block_at lld_unit_new_block_at (list: u64, position: u64, block: *mut u64) |on, _opened| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(block, "the block's number") }?;
        place.put(on.new_block(list, At::Position(position))?);
        Ok(0)
    };

    /// Removes a block.
    lld_delete_block lld_unit_delete_block (block: u64) |on, _opened| {
        on.delete_block(block)?;
        Ok(0)
    };

    /// Reads a block.
    lld_read lld_unit_read (block: u64, into: *mut c_void, len: usize) |on, opened| {
        is_block(opened, len)?;
        // SAFETY: the caller's promise.
        on.read(block, unsafe { room(into.cast(), len) }?)?;
        Ok(0)
    };

    /// Writes a block.
    lld_write lld_unit_write (block: u64, from: *const c_void, len: usize) |on, opened| {
        is_block(opened, len)?;
        // SAFETY: the caller's promise.
        on.write(block, unsafe { bytes(from, len) }?)?;
        Ok(0)
    };

    /// Reads the block at a position of a sparse list.
    lld_read_at lld_unit_read_at (list: u64, position: u64, into: *mut c_void, len: usize) |on, opened| {
        is_block(opened, len)?;
        // SAFETY: the caller's promise.
        on.read_at(list, position, unsafe { room(into.cast(), len) }?)?;
        Ok(0)
    };

    /// Writes the block at a position of a sparse list.
    lld_write_at lld_unit_write_at (list: u64, position: u64, from: *const c_void, len: usize) |on, opened| {
        is_block(opened, len)?;
        // SAFETY: the caller's promise.
        on.write_at(list, position, unsafe { bytes(from, len) }?)?;
        Ok(0)
    };

    /// The block at a position of a list.
    lld_block_at lld_unit_block_at (list: u64, position: u64, block: *mut u64) |on, _opened| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(block, "the block's number") }?;
        Ok(found(&place, on.block_at(list, position)?))
    };

    /// Removes the blocks at some positions of a sparse list.
    lld_delete_range lld_unit_delete_range (list: u64, from: u64, last: u64, removed: *mut u64) |on, _opened| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::or_none(removed, "the number of blocks") }?;
        let removed = on.delete_range(list, from, last)?;
        place.iter().for_each(|place| place.put(removed));
        Ok(0)
    };

    /// The first block of a sparse list from a position on.
    lld_next_at lld_unit_next_at (list: u64, from: u64, position: *mut u64, block: *mut u64) |on, _opened| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(position, "the position") }?;
        // SAFETY: the caller's promise.
        let block_place = unsafe { Out::or_none(block, "the block's number") }?;
        let next = on.next_at(list, from)?;
        next.iter().for_each(|(_, block)| block_place.iter().for_each(|place| place.put(*block)));
        Ok(found(&place, next.map(|(position, _)| position)))
    };

    /// The block behind one in its list.
    lld_block_after lld_unit_block_after (list: u64, block: u64, after: *mut u64) |on, _opened| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(after, "the block's number") }?;
        Ok(found(&place, on.block_after(list, block)?))
    };

    /// The block in front of one in its list.
    lld_block_before lld_unit_block_before (list: u64, block: u64, before: *mut u64) |on, _opened| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(before, "the block's number") }?;
        Ok(found(&place, on.block_before(list, block)?))
    };

    /// How many blocks a list has.
    lld_list_len lld_unit_list_len (list: u64, len: *mut u64) |on, _opened| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(len, "the number of blocks") }?;
        place.put(on.list_len(list)?);
        Ok(0)
    };
}
