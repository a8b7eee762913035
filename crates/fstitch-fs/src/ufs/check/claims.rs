//! Which fragments an inode has, and what becomes of those that another one has as well.

use fstitch_core::{BlockKind, FindingClass, Result};
use rustc_hash::FxHashSet;

use super::groups;
use super::raw::RawInode;
use super::state::{Shared, State};
use super::volume::Volume;
use super::walk::{Pointer, Slot, Verdict, put, walk, walk_extra};
use crate::ufs::layout::inode::flag;

/// Pointers of snapshots up to this one are marks, not places.
const SNAPSHOT_MARKS: u64 = 2;
/// Claims of what was claimed before that one run keeps in mind; the next one finds the others.
const SHARED_MAX: usize = 1 << 20;

/// Of so many words that can be pointers in a block of them one may be none.
const WRONG_PER: usize = 8;

/// What one inode's pointers came to.
#[derive(Default)]
struct Claims {
    /// Fragments.
    taken: u64,
    beyond: u64,
    truncated: u64,
    invalid: u64,
    shared: u64,
    /// One of those that are invalid or shared.
    example: u64,
}

/// Claims what is the volume's own: the metadata of groups, all that is before those of the first, and the counts of all groups.
pub(super) fn claim_metadata(volume: &Volume<'_>, state: &mut State) {
    let mut claim = |from: u64, to: u64| {
        for at in from..to.min(volume.shape.fragments) {
            state.claimed.set(at);
        }
    };
    claim(0, volume.part(0, 0));
    for group in 0..volume.shape.groups {
        claim(volume.part(group, 0), volume.part(group, 3));
    }
    let (at, bytes) = volume.shape.summaries;
    claim(at, at + u64::from(bytes).div_ceil(volume.fragment()));
}

/// Claims the fragments of inode `ino`, whose blocks are to be looked at if `has_blocks`; how many there are, and whether the inode was
/// changed.
pub(super) fn claim(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, inode): (u32, &mut RawInode),
    has_blocks: bool,
) -> Result<(u64, bool)> {
    let mut claims = Claims::default();
    let marks = if inode.flags() & flag::SNAPSHOT != 0 { SNAPSHOT_MARKS } else { 0 };
    let mut judge = |pointer: &Pointer| Ok(judge(volume, state, (ino, marks), pointer, &mut claims));
    let mut changed = walk_extra(volume, inode, &mut judge)?;
    if has_blocks {
        changed |= walk(volume, inode, &mut judge)?;
    }
    report(state, ino, &claims);
    Ok((claims.taken, changed))
}

fn judge(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, marks): (u32, u64),
    pointer: &Pointer,
    claims: &mut Claims,
) -> Verdict {
    let Pointer { slot, start, count, .. } = *pointer;
    if start <= marks {
        return Verdict::Skip;
    }
    let clear = |state: &State, class| if state.mends(class) { Verdict::Clear } else { Verdict::Skip };
    if pointer.is_beyond {
        return if matches!(slot, Slot::Map { .. }) {
            claims.truncated += 1;
            clear(state, FindingClass::Allowed)
        } else {
            claims.beyond += 1;
            clear(state, FindingClass::Corrupt)
        };
    }
    if !volume.is_valid(start, count) {
        claims.invalid += 1;
        claims.example = start;
        return clear(state, FindingClass::Corrupt);
    }
    claims.taken += count;
    if state.claimed.set_run(start, count) {
        return Verdict::Follow;
    }
    claims.shared += 1;
    claims.example = start;
    // Blocks of pointers have twice that: what they lead to must be known before there is room for copies.
    if state.shared.len() < SHARED_MAX * if pointer.level > 0 { 2 } else { 1 } {
        state.shared.push(Shared { ino, slot, start, count, level: pointer.level });
    }
    // What is another's, or was met before, is not followed: so this ends.
    Verdict::Skip
}

/// Reports what was found; what shall be mended is mended already, but for shared blocks.
fn report(state: &mut State, ino: u32, claims: &Claims) {
    let Claims { beyond, truncated, invalid, shared, example, .. } = *claims;
    // The answers are known: the pointers were cleared by the same rule.
    let mut note = |class, code, text| state.note(class, code, text);
    if beyond > 0 {
        let text = format!("inode {ino}: {beyond} pointers behind its end");
        note(FindingClass::Corrupt, "pointer-beyond", text);
    }
    if truncated > 0 {
        let text = format!("inode {ino}: {truncated} pointers in its blocks of them behind its end");
        note(FindingClass::Allowed, "inode-truncated", text);
    }
    if invalid > 0 {
        let text =
            format!("inode {ino}: {invalid} pointers to what can be no contents, as fragment {example}");
        note(FindingClass::Corrupt, "pointer", text);
    }
    if shared > 0 {
        let text =
            format!("inode {ino}: {shared} pointers to what is somebody else's, as fragment {example}");
        note(FindingClass::Corrupt, "block-shared", text);
    }
}

/// Gives each who claims what another has a copy of it. A block of pointers is followed in the next run, and copied once in a run; what
/// is used as one and holds none, and what there is no room for, is taken from who came later.
pub(super) fn settle_shared(volume: &Volume<'_>, state: &mut State) -> Result<()> {
    if !state.mends(FindingClass::Corrupt) {
        return Ok(());
    }
    let mut all = std::mem::take(&mut state.shared);
    // What they lead to must not become room, and they need it more than contents do.
    all.sort_by_key(|shared| shared.level == 0);
    let mut maps = FxHashSet::default();
    for shared in all.iter().filter(|shared| shared.level > 0) {
        if !maps.contains(&shared.start) && holds_pointers(volume, shared.start)? {
            maps.insert(shared.start);
            reserve(volume, state, (shared.start, shared.level))?;
        }
    }
    for shared in all {
        let is_copied = shared.level == 0 || maps.remove(&shared.start);
        let room = if is_copied { allocate(volume, state, shared.count)? } else { None };
        if let Some(at) = room {
            let bytes = volume.read(shared.start, shared.count, BlockKind::Data)?;
            volume.write(at, BlockKind::Data, &bytes)?;
        }
        put(volume, shared.ino, shared.slot, room.unwrap_or(0))?;
    }
    Ok(())
}

/// Whether nearly all that is in a block can be pointers.
fn holds_pointers(volume: &Volume<'_>, start: u64) -> Result<bool> {
    let bytes = volume.read(start, volume.per_block(), BlockKind::Indirect)?;
    let used = (0..volume.pointers()).map(|index| volume.pointer(&bytes, index)).filter(|&to| to != 0);
    let (valid, wrong): (Vec<u64>, Vec<u64>) = used.partition(|&to| volume.is_valid(to, volume.per_block()));
    Ok(!valid.is_empty() && wrong.len() * WRONG_PER <= valid.len())
}

/// Claims what is behind a block of pointers, as far as nobody has.
fn reserve(volume: &Volume<'_>, state: &mut State, (at, level): (u64, u32)) -> Result<()> {
    let bytes = volume.read(at, volume.per_block(), BlockKind::Indirect)?;
    // Recursion is at most three levels deep.
    for index in 0..volume.pointers() {
        let next = volume.pointer(&bytes, index);
        let is_new =
            volume.is_valid(next, volume.per_block()) && state.claimed.set_run(next, volume.per_block());
        if is_new && level > 1 {
            reserve(volume, state, (next, level - 1))?;
        }
    }
    Ok(())
}

/// Takes `count` fragments, at most a block, that nobody has; `None` if there are none. Their bits are written before anybody can
/// point at them.
pub(super) fn allocate(volume: &Volume<'_>, state: &mut State, count: u64) -> Result<Option<u64>> {
    let found = find_free(volume, state, count);
    if let Some(at) = found {
        groups::take_fragments(volume, at, count)?;
    }
    Ok(found)
}

fn find_free(volume: &Volume<'_>, state: &mut State, count: u64) -> Option<u64> {
    let per_block = volume.per_block();
    let blocks = volume.shape.fragments.div_ceil(per_block);
    let first = state.rotor;
    if count >= state.too_many {
        return None;
    }
    for step in 0..blocks {
        let block = (first + step) % blocks;
        let start = block * per_block;
        let fits = (start..=start + per_block - count)
            .find(|&at| at + count <= volume.shape.fragments && state.claimed.is_clear(at, count));
        if let Some(at) = fits.filter(|&at| volume.is_valid(at, count)) {
            state.claimed.set_run(at, count);
            state.rotor = block;
            return Some(at);
        }
    }
    state.too_many = count;
    None
}
