//! Taking and giving back blocks.
//!
//! **Orderings.** A bit in the free map is set without dependencies: what a new life of a block must come after
//! is the clearing of the old pointer, and setting the bit overlaps the patch that freed it. Its *contents*
//! come after that clearing explicitly ([`Run::reuse`]). A bit is cleared after the pointer to the block was
//! ([`FreedAfter::Pointer`]), or at once if the medium never held that pointer.
//!
//! **Clusters.** A bit stands for a cluster, so blocks are wished for and taken in whole ones: a [`Run`] begins with the first block of one and has what
//! was asked for of it, the rest of its last cluster is taken with it. Blocks that are given back or freed take all of their clusters with them: who
//! keeps some of a cluster does not free it ([`super::clusters`]).
//!
//! **Placement.** Data goes where the caller wants it, in runs as long as possible. Indirect and attribute
//! blocks come from the group's end, downwards, so that they do not cut data runs in two ([D] §2.2.5).
//! Blocks whose old pointer may still be on the medium are taken only when nothing else is free.

use fstitch_core::{BlockNo, Caller, Errno, Error, Result, Structure};
use fstitch_patch::{PatchId, PatchIds, PatchState, Tx};

use super::bitmap;
use super::groups::{Map, OpenGroup};
use super::inode::Inode;
use super::layout::feature::incompat;
use super::layout::group::BG_FREE_BLOCKS_COUNT;
use super::layout::superblock::Superblock;
use super::num::low32;
use super::volume::Ext2;
use super::windows::Avoid;

/// Runs of at least this many blocks are looked for in the neighbourhood before shorter ones are taken.
const GOOD_RUN: u32 = 8;
/// How many groups are searched for a good run.
const NEIGHBOURHOOD: u32 = 16;
/// How many blocks' changes are dropped under one hold of the core lock.
const DROP_STEP: u32 = 64;

/// Where to look for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// This block and what follows.
    Block(u64),
    /// Anywhere in this group, behind the last new file.
    Group(u32),
    /// At the end of this group, apart from data.
    Apart(u32),
}

/// Blocks taken, contiguous.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) count: u32,
    /// The bits in the free map.
    pub(super) bits: PatchIds,
    /// What the contents must come after.
    pub(super) reuse: PatchIds,
}

impl Run {
    /// So many blocks of it at most: others lie in its last cluster, which goes with it.
    fn of(self, blocks: u32) -> Self {
        Self { count: self.count.min(blocks), ..self }
    }
}

/// When blocks and inodes are free on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreedAfter {
    /// After this patch, which clears the last pointer.
    Pointer(PatchId),
    /// At once: the medium never held a pointer to them.
    Nothing,
}

impl FreedAfter {
    /// The patch, as a list of befores.
    pub(super) fn befores(&self) -> &[PatchId] {
        match self {
            Self::Pointer(patch) => std::slice::from_ref(patch),
            Self::Nothing => &[],
        }
    }
}

/// What one search accepts, in clusters once it is under way.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    goal: Goal,
    /// Blocks in a run.
    want: u32,
    least: u32,
    /// So many of them are taken, and what is behind them is kept for the inode.
    take: u32,
    /// Only at the goal itself.
    only_there: bool,
    /// Also blocks whose old pointer may still be on the medium.
    pending: bool,
    /// For whom it is; 0 for nobody.
    ino: u32,
    /// How far from the windows of others, in lengths of these; without it, in them too.
    berth: Option<u32>,
    /// Only blocks that pointers can name.
    low: bool,
}

impl Wish {
    pub(super) fn new(goal: Goal, want: u32) -> Self {
        let (only_there, pending, berth) = (false, false, Some(0));
        Self { goal, want, least: 1, take: want, only_there, pending, ino: 0, berth, low: false }
    }

    /// The same for an inode.
    pub(super) fn of(self, ino: u32) -> Self {
        Self { ino, ..self }
    }

    /// The same in a run of `want` blocks, or `least`, of which the rest is kept.
    pub(super) fn keeping(self, (want, least): (u32, u32), berth: u32) -> Self {
        Self { want, least, berth: Some(berth), ..self }
    }

    /// The same, but only of blocks that pointers can name, if it is `low`.
    pub(super) fn low(self, low: bool) -> Self {
        Self { low, ..self }
    }

    /// The same, but only at the goal.
    pub(super) fn only_there(self) -> Self {
        Self { only_there: true, ..self }
    }

    /// The same in clusters.
    fn in_clusters(self, shape: &Superblock) -> Self {
        let [want, least, take] = [self.want, self.least, self.take].map(|blocks| shape.clusters(blocks));
        Self { want, least, take, ..self }
    }

    /// The same in another group.
    fn at_group(self, no: u32) -> Self {
        let goal = match self.goal {
            Goal::Apart(_) => Goal::Apart(no),
            _ => Goal::Group(no),
        };
        Self { goal, ..self }
    }

    /// The run at `near`, if it is what is wished for: behind a file's last block any is, however short.
    fn find_at_once(&self, map: &[u8], near: u32, end: u32, avoid: &Avoid<'_>) -> Option<(u32, u32)> {
        let least = match self.goal {
            Goal::Block(_) if self.take == self.want => 1,
            Goal::Block(_) | Goal::Group(_) => self.least,
            Goal::Apart(_) => return None,
        };
        exactly_at(map, near, end, self.want, avoid).filter(|&(_, count)| count >= least)
    }
}

impl Ext2 {
    /// Takes 1 to `want` contiguous blocks near `goal`. `ENOSPC` respects the reserved blocks.
    pub(super) fn take_blocks(&self, caller: &Caller, goal: Goal, want: u32) -> Result<Run> {
        self.take_wish(caller, Wish::new(goal, want))
    }

    /// The same for a wish that accepts what there is.
    pub(super) fn take_wish(&self, caller: &Caller, wish: Wish) -> Result<Run> {
        let given_back = self.preallocated.given_back();
        match self.find_blocks(caller, wish) {
            // What was preallocated for others is theirs no more.
            Err(error) if error.errno() == Errno::NOSPC && self.give_back_preallocated() != given_back => {
                self.find_blocks(caller, wish)
            }
            found => found,
        }
    }

    fn find_blocks(&self, caller: &Caller, wish: Wish) -> Result<Run> {
        let blocks = wish.want;
        let wish = wish.in_clusters(&self.sb);
        let want = low32(self.clusters_for(caller).min(u64::from(wish.want)));
        if want == 0 {
            return Err(Errno::NOSPC.into());
        }
        let first = self.first_group(wish.goal);
        let all = self.sb.group_count();
        let good = want.min(GOOD_RUN);
        let tries = [
            (NEIGHBOURHOOD.min(all), good, false, wish.berth),
            (all, 1, false, wish.berth),
            (all, 1, false, None),
            (all, 1, true, None),
        ];
        for (groups, least, pending, berth) in tries {
            let wish = Wish { want, take: want, least, pending, berth, ..wish };
            if let Some(run) = self.search_groups(first, groups, wish)? {
                return Ok(run.of(blocks));
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Takes `least` to `want` contiguous blocks, if there is such a run anywhere.
    pub(super) fn take_whole(
        &self,
        caller: &Caller,
        (goal, low): (Goal, bool),
        want: u32,
        least: u32,
    ) -> Result<Option<Run>> {
        let wish = Wish { least, ..Wish::new(goal, want).low(low) }.in_clusters(&self.sb);
        if u64::from(wish.want) > self.clusters_for(caller) {
            return Ok(None);
        }
        let found = self.search_groups(self.first_group(goal), self.sb.group_count(), wish)?;
        Ok(found.map(|run| run.of(want)))
    }

    /// Takes blocks as wished for, if there are any nearby.
    pub(super) fn try_wish(&self, caller: &Caller, wish: Wish) -> Result<Option<Run>> {
        let blocks = wish.take;
        let wish = wish.in_clusters(&self.sb);
        if u64::from(wish.take) > self.clusters_for(caller) {
            return Ok(None);
        }
        let groups = if wish.only_there { 1 } else { NEIGHBOURHOOD.min(self.sb.group_count()) };
        let found = self.search_groups(self.first_group(wish.goal), groups, wish)?;
        Ok(found.map(|run| run.of(blocks)))
    }

    /// Whether an inode gets only blocks that pointers can name: its map is, or will be, one of pointers.
    pub(super) fn maps_low(&self, inode: &Inode) -> bool {
        let moves_out = inode.disk.has_inline_data() && self.maps_by_extents();
        !inode.has_extents() && !moves_out
    }

    /// Whether new maps are extents.
    pub(super) fn maps_by_extents(&self) -> bool {
        self.sb.features.has_incompat(incompat::EXTENTS)
    }

    /// Groups all of whose blocks pointers can name.
    fn low_groups(&self) -> u32 {
        let below = (1_u64 << 32).saturating_sub(self.sb.first_data_block());
        match self.sb.blocks_count >> 32 {
            0 => self.sb.group_count(),
            _ => low32(below / u64::from(self.sb.blocks_per_group)),
        }
    }

    /// The group in which a search begins.
    fn first_group(&self, goal: Goal) -> u32 {
        match goal {
            Goal::Block(block) if block > self.sb.first_data_block() && block < self.sb.blocks_count => {
                self.sb.group_of(block)
            }
            Goal::Block(_) => 0,
            Goal::Group(group) | Goal::Apart(group) => group,
        }
    }

    fn search_groups(&self, first: u32, groups: u32, wish: Wish) -> Result<Option<Run>> {
        let all = if wish.low { self.low_groups() } else { self.sb.group_count() };
        let (first, wish, groups) = match first < all {
            true => (first, wish, groups.min(all)),
            false if wish.only_there || all == 0 => return Ok(None),
            false => (first % all, wish.at_group(first % all), groups.min(all)),
        };
        // The group wished for is tried without looking at its descriptor, which costs least when it has room.
        if let Some(run) = self.search_group(first, wish)? {
            return Ok(Some(run));
        }
        let trusted = !self.distrusts_counters();
        let mut next = 1;
        while next < groups {
            let mut candidate = None;
            self.scan_descriptors(((first + next) % all, groups - next), all, &mut |no, descriptor| {
                next += 1;
                if !trusted || u32::from(descriptor.free_blocks) >= wish.least {
                    candidate = Some(no);
                }
                candidate.is_none()
            })?;
            let Some(no) = candidate else { break };
            if let Some(run) = self.search_group(no, wish.at_group(no))? {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    fn search_group(&self, no: u32, wish: Wish) -> Result<Option<Run>> {
        let mut open = self.open_group(no, Map::Blocks)?;
        // Whole clusters.
        let end = self.sb.group_blocks(no) >> self.sb.log_cluster;
        if end == 0 {
            return Ok(None);
        }
        let near = match wish.goal {
            Goal::Block(block) => self.sb.clusters(low32(block - self.sb.group_start(no))),
            Goal::Group(_) | Goal::Apart(_) => open.state.block_cursor,
        };
        let near = near.min(end - 1);
        let search = |map: &[u8], avoid: &Avoid<'_>| match wish.goal {
            _ if wish.only_there => None,
            Goal::Apart(_) => find_from_end(map, end, avoid).map(|bit| (bit, 1)),
            Goal::Block(_) | Goal::Group(_) => find_run(map, near, end, wish, avoid),
        };
        let mut tx = self.cache.lock();
        let found = if wish.pending {
            // Entries that became stable meanwhile are no reason to wait for anything.
            open.state.pending_blocks.purge(&tx);
            let barred = if self.bars_pending() {
                open.state.pending_blocks.clone()
            } else {
                open.state.pending_blocks.out_of_reach(&tx)
            };
            if !barred.is_empty() {
                self.barred.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            search(tx.data(&open.map), &Avoid::from(&barred))
        } else {
            let state = &open.state;
            let avoid = &Avoid::new(&state.pending_blocks, &state.windows, wish.ino, wish.berth);
            match wish.find_at_once(tx.data(&open.map), near, end, avoid) {
                None => {
                    // A fragmented group takes long to look through, and nobody else changes its map meanwhile.
                    drop(tx);
                    let found = search(&open.map.snapshot(), avoid);
                    tx = self.cache.lock();
                    found
                }
                at_once => at_once,
            }
        };
        let Some((bit, count)) = found else { return Ok(None) };
        let (run, count) = (count, count.min(wish.take));
        if matches!(wish.goal, Goal::Group(_)) {
            open.state.block_cursor = bit + count;
        }
        if run > count {
            open.state.windows.open(wish.ino, bit + count, bit + run);
        } else {
            open.state.windows.used(wish.ino, bit, bit + count);
        }
        Ok(Some(self.take_run(&mut tx, &open, bit, count)))
    }

    /// Whether nobody gets a block whose old pointer may still be on the medium. Where blocks have sums by what they are and whose, and
    /// no journal, an image of the block with its new life undone would get the new life's sum.
    fn bars_pending(&self) -> bool {
        !self.has_journal_in_use() && self.seal.as_ref().is_some_and(|seal| seal.knows_owners())
    }

    /// Marks a free run as used.
    fn take_run(&self, tx: &mut Tx<'_>, open: &OpenGroup<'_>, bit: u32, count: u32) -> Run {
        let reuse = open.state.pending_blocks.reuse(bit, bit + count);
        let start = self.sb.group_start(open.group.no) + self.sb.blocks_of(bit);
        self.watch.blocks(start, count << self.sb.log_cluster);
        // No dependencies: a bit set too early is a leak at worst. Setting it overlaps the patch that freed it.
        let mut bits = tx.bits(&open.map, bit, count, true, &[]);
        if tx.state(open.state.block_map) != PatchState::Committed {
            bits.push(open.state.block_map);
        }
        let taken = i32::try_from(count).expect("at most 32768 bits");
        open.adjust(tx, BG_FREE_BLOCKS_COUNT, -taken);
        self.adjust_free_blocks(tx, -i64::from(taken) << self.sb.log_cluster);
        Run { start, count: count << self.sb.log_cluster, bits, reuse }
    }

    /// What new contents of blocks must come after that somebody has taken, and not filled yet.
    pub(super) fn reuse_of(&self, start: u64, count: u64) -> Result<PatchIds> {
        let (mut at, end) = (start, start + count);
        let mut reuse = PatchIds::new();
        while at < end {
            let no = self.sb.group_of(at);
            let first = self.sb.group_start(no);
            let stop = end.min(first + u64::from(self.sb.group_blocks(no)));
            let open = self.open_group(no, Map::Blocks)?;
            let bits = self.sb.bit_of(at)..self.sb.clusters(low32(stop - first));
            reuse.extend(open.state.pending_blocks.reuse(bits.start, bits.end));
            reuse.extend(open.state.pending_parts.reuse(low32(at - first), low32(stop - first)));
            at = stop;
        }
        Ok(reuse)
    }

    /// What new contents of blocks must come after that lie in a file's own cluster. `ENOSPC` while it may not have them: until the running
    /// transaction ends, which it has lost them in.
    pub(super) fn own_reuse(&self, start: u64, count: u64) -> Result<PatchIds> {
        let reuse = self.reuse_of(start, count)?;
        let tx = self.cache.lock();
        if reuse.iter().any(|&patch| tx.bars_reuse(patch)) {
            self.barred.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return Err(Errno::NOSPC.into());
        }
        Ok(reuse)
    }

    /// Notes that a file has lost blocks of one cluster by `clearing`, whoever has the cluster now.
    pub(super) fn note_lost_part(&self, start: u64, count: u32, clearing: PatchId) -> Result<()> {
        let no = self.sb.group_of(start);
        let first = low32(start - self.sb.group_start(no));
        let mut open = self.open_group(no, Map::Blocks)?;
        let tx = self.cache.lock();
        open.state.pending_parts.insert(first, first + count, clearing, &tx);
        Ok(())
    }

    /// Gives back blocks that were taken and never pointed at.
    pub(super) fn give_back_run(&self, run: &Run) {
        // Failing to read the bitmap again leaks the blocks, which is lawful; the next operation reports it.
        let _leaked = self.free_blocks(run.start, run.count, FreedAfter::Nothing);
    }

    /// Frees the clusters of blocks `start..start + count`. Those that are free already are damage: they are left alone, the
    /// others are freed, and nothing is written any more.
    pub(super) fn free_blocks(&self, start: u64, count: u32, after: FreedAfter) -> Result<()> {
        let (start, end) = self.sb.whole_clusters((start, start + u64::from(count)));
        // While the bits are still set: once they are clear, the contents may be somebody else's.
        self.drop_contents(start, low32(end - start), after);
        let mut at = start;
        while at < end {
            let no = self.sb.group_of(at);
            let first = self.sb.group_start(no);
            let stop = end.min(first + u64::from(self.sb.group_blocks(no)));
            let mut open = self.open_group(no, Map::Blocks)?;
            let (from, to) = (self.sb.bit_of(at), self.sb.clusters(low32(stop - first)));
            self.free_bits(&mut open, from, to, after);
            at = stop;
        }
        Ok(())
    }

    fn free_bits(&self, open: &mut OpenGroup<'_>, from: u32, to: u32, after: FreedAfter) {
        let start = self.sb.group_start(open.group.no);
        self.watch.blocks(start + self.sb.blocks_of(from), (to - from) << self.sb.log_cluster);
        let mut tx = self.cache.lock();
        let used: Vec<_> = bitmap::runs(tx.data(&open.map), true, from, to).collect();
        let mut freed = 0;
        for (bit, count) in used {
            // After the clearing of the pointer: a block that is free on the medium has no pointer there.
            tx.bits(&open.map, bit, count, false, after.befores());
            for block in self.sb.blocks_of(bit)..self.sb.blocks_of(bit + count) {
                tx.forget(BlockNo(start + block));
            }
            if let FreedAfter::Pointer(patch) = after {
                open.state.pending_blocks.insert(bit, bit + count, patch, &tx);
            }
            freed += count;
        }
        let delta = i32::try_from(freed).expect("at most 32768 bits");
        open.adjust(&mut tx, BG_FREE_BLOCKS_COUNT, delta);
        self.adjust_free_blocks(&mut tx, i64::from(delta) << self.sb.log_cluster);
        drop(tx);
        if freed < to - from {
            let what = Structure::BlockBitmap(u64::from(open.group.no));
            let what_of = if self.sb.has_clusters() { "clusters" } else { "blocks" };
            let problem = format!("{} {what_of} of a file were free already", to - from - freed);
            self.found_damage(&Error::corrupt(what, open.map.no(), problem));
        }
    }

    /// The newest contents of freed blocks will never be seen: they need not be written.
    fn drop_contents(&self, start: u64, count: u32, after: FreedAfter) {
        if !self.cache.options().optimizations.elimination {
            return;
        }
        let (mut at, end) = (start, start + u64::from(count));
        while at < end {
            let stop = end.min(at.saturating_add(u64::from(DROP_STEP)));
            let mut tx = self.cache.lock();
            for block in at..stop {
                tx.drop_changes(BlockNo(block), after.befores());
            }
            at = stop;
        }
    }

    /// Whether `block`, a block that files may use, is marked as used.
    pub(super) fn is_used(&self, block: u64) -> Result<bool> {
        let no = self.sb.group_of(block);
        let open = self.open_group(no, Map::Blocks)?;
        let bit = self.sb.bit_of(block);
        let tx = self.cache.lock();
        Ok(bitmap::all(tx.data(&open.map), true, bit, bit + 1))
    }
}

/// The free run that starts at `bit` itself, however short.
fn exactly_at(map: &[u8], bit: u32, end: u32, want: u32, avoid: &Avoid<'_>) -> Option<(u32, u32)> {
    let stop = end.min(bit.saturating_add(want));
    let run_end = bitmap::next(map, true, bit, stop).unwrap_or(stop);
    let run_end = avoid.next_from(bit).map_or(run_end, |(start, _)| run_end.min(start.max(bit)));
    (run_end > bit).then_some((bit, run_end - bit))
}

/// The first free run of at least `least` blocks behind `near`, then before it.
fn find_run(map: &[u8], near: u32, end: u32, wish: Wish, avoid: &Avoid<'_>) -> Option<(u32, u32)> {
    let search = |from, to| {
        let mut at = from;
        while let Some(start) = bitmap::next(map, false, at, to) {
            match avoid.next_from(start) {
                Some((listed, listed_end)) if listed <= start => {
                    at = listed_end;
                    continue;
                }
                _ => {}
            }
            let (start, count) = exactly_at(map, start, end, wish.want, avoid)?;
            if count >= wish.least {
                return Some((start, count));
            }
            at = start + count;
        }
        None
    };
    search(near, end).or_else(|| search(0, near))
}

/// The last free block.
fn find_from_end(map: &[u8], end: u32, avoid: &Avoid<'_>) -> Option<u32> {
    let mut end = end;
    loop {
        let bit = bitmap::last_free(map, 0, end)?;
        match avoid.next_from(bit) {
            Some((listed, _)) if listed <= bit => end = listed,
            _ => return Some(bit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pending::Pending;

    fn wish(want: u32, least: u32) -> Wish {
        Wish { least, ..Wish::new(Goal::Group(0), want) }
    }

    #[test]
    fn a_run_starts_where_it_is_wanted_or_later_or_wraps() {
        let mut map = vec![0_u8; 16];
        map[2] = 0xff;
        let none = Pending::default();
        let none = Avoid::from(&none);
        assert_eq!(find_run(&map, 14, 128, wish(4, 4), &none), Some((24, 4)));
        assert_eq!(exactly_at(&map, 14, 128, 4, &none), Some((14, 2)));
        assert_eq!(find_run(&map, 14, 24, wish(4, 4), &none), Some((0, 4)));
        assert_eq!(find_run(&map, 16, 24, wish(40, 17), &none), None);
        assert_eq!(find_from_end(&map, 24, &none), Some(15));
        assert_eq!(find_from_end(&[0xff; 8], 64, &none), None);
    }

    #[test]
    fn what_is_found_at_once_is_what_a_search_would_find() {
        let mut map = vec![0_u8; 16];
        map[2] = 0xff;
        let none = Pending::default();
        let none = Avoid::from(&none);
        let behind = Wish { goal: Goal::Block(14), ..wish(4, 4) };
        assert_eq!(behind.find_at_once(&map, 14, 128, &none), Some((14, 2)), "a file goes on, however short");
        assert_eq!(behind.find_at_once(&map, 16, 128, &none), None);
        assert_eq!(wish(4, 4).find_at_once(&map, 14, 128, &none), None, "a new file looks for a good run");
        assert_eq!(wish(4, 4).find_at_once(&map, 24, 128, &none), find_run(&map, 24, 128, wish(4, 4), &none));
        let apart = Wish { goal: Goal::Apart(0), ..wish(1, 1) };
        assert_eq!(apart.find_at_once(&map, 24, 128, &none), None);
    }

    #[test]
    fn pending_blocks_are_stepped_over() {
        let device = std::sync::Arc::new(fstitch_core::MemDevice::new(1024, 8));
        let clock = std::sync::Arc::new(fstitch_core::ManualClock::new());
        let cache = fstitch_patch::Cache::new(device, fstitch_patch::CacheOptions::default(), clock);
        let mut tx = cache.lock();
        let held = tx.hold(&[]);
        let mut pending = Pending::default();
        pending.insert(4, 10, held, &tx);
        let pending = Avoid::from(&pending);
        let map = vec![0_u8; 16];
        assert_eq!(exactly_at(&map, 2, 128, 8, &pending), Some((2, 2)));
        assert_eq!(exactly_at(&map, 5, 128, 8, &pending), None);
        assert_eq!(find_run(&map, 2, 128, wish(8, 8), &pending), Some((10, 8)));
        assert_eq!(find_from_end(&map, 10, &pending), Some(3));
        tx.release(held);
    }
}
