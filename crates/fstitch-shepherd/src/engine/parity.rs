//! Parity: one block for a group of neighbours, by which any one of them is computed from the others.
//!
//! A group is `K` blocks in a row, whatever they hold; the shepherd's own among them count as zeros. It has parity from the first write of a
//! block whose chain asks for it; from then on every write to any of its blocks brings it up to date, in the same batch. While the run of one
//! of its blocks is in doubt after a crash its parity is nothing; opening computes it anew from the blocks (S8).

use std::collections::BTreeMap;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, BlockNo, BlockRead, BlockWrite};

use super::write::SPARES_TRIED;
use super::{Shepherd, State, Trouble};
use crate::map::shape::RUN;
use crate::map::sums::sum_of;
use crate::policy::{Direction, Kind, MapKind};

/// Of a group, what its parity is about to be; `None` if that cannot be computed, and the group has none any more.
pub(super) type Renewed = (u64, Option<Vec<u8>>);

/// How the parity of a group is computed anew.
struct Plan<'w> {
    group: u64,
    /// What is written of it.
    new: BTreeMap<BlockNo, &'w [u8]>,
    /// Where its old parity is, if that is taken.
    parity: Option<BlockNo>,
    /// Blocks that are read: those that are written, as they were, beside the old parity; else all others.
    blocks: Vec<BlockNo>,
}

impl Plan<'_> {
    /// Everything that is read, the parity last.
    fn reads(&self) -> impl Iterator<Item = BlockNo> + '_ {
        self.blocks.iter().copied().chain(self.parity)
    }
}

fn take_in(sum: &mut [u8], block: &[u8]) {
    // Word by word, in whatever build: a scrub of parity spends half of its time here otherwise.
    let (words, others) = (sum.as_chunks_mut::<8>().0, block.as_chunks::<8>().0);
    for (word, other) in words.iter_mut().zip(others) {
        *word = (u64::from_ne_bytes(*word) ^ u64::from_ne_bytes(*other)).to_ne_bytes();
    }
}

impl Shepherd {
    pub(super) fn group_of(&self, block: BlockNo) -> u64 {
        block.get() / self.group
    }

    /// Whether a block is one of a group that has parity.
    pub(super) fn has_parity(&self, state: &State, block: BlockNo) -> bool {
        self.group > 0 && state.owners.parity(self.group_of(block)).is_some()
    }

    /// The blocks of a group that are not the shepherd's.
    fn members(&self, group: u64) -> impl Iterator<Item = BlockNo> + '_ {
        let end = ((group + 1) * self.group).min(self.area.shape.volume);
        (group * self.group..end).map(BlockNo).filter(|block| !self.owns(*block))
    }

    /// What some blocks hold, if all of them can be read and are what was written.
    fn verified(&self, blocks: &[BlockNo]) -> Option<Vec<Vec<u8>>> {
        let found: Vec<Vec<u8>> =
            self.area.read_each(blocks, BlockKind::Data).into_iter().collect::<Option<_>>()?;
        self.are_right(blocks, &found).then_some(found)
    }

    /// Whether blocks hold what was written.
    fn are_right(&self, blocks: &[BlockNo], found: &[Vec<u8>]) -> bool {
        if !self.keeps_sums {
            return true;
        }
        let sums: Vec<u32> = {
            let mut state = self.state();
            blocks.iter().map(|block| state.sums.get(&self.area, *block)).collect()
        };
        let fits = |((block, data), sum): ((&BlockNo, &Vec<u8>), u32)| {
            sum == 0 || sum == sum_of(&self.area.uuid, *block, data)
        };
        blocks.iter().zip(found).zip(sums).all(fits)
    }

    fn zeros(&self) -> Vec<u8> {
        vec![0; to_usize(self.area.shape.block_size)]
    }

    /// The parity that groups have after a batch; before its sums are noted. The caller holds the lock of parity.
    pub(super) fn new_parity(&self, writes: &[BlockWrite<'_>]) -> Vec<Renewed> {
        let mut groups: BTreeMap<u64, BTreeMap<BlockNo, &[u8]>> = BTreeMap::new();
        {
            let state = self.state();
            for write in writes.iter().filter(|write| write.block.get() < self.area.shape.volume) {
                let group = self.group_of(write.block);
                let asks = self.chain(write.kind, Direction::Write).keeps_parity();
                if asks || state.owners.parity(group).is_some() {
                    groups.entry(group).or_default();
                }
            }
            // Whatever is written of a group is in its parity, whether it asks for that or not.
            for write in writes {
                if let Some(new) = groups.get_mut(&self.group_of(write.block)) {
                    new.insert(write.block, write.data);
                }
            }
        }
        let plans: Vec<Plan<'_>> = groups.into_iter().map(|(group, new)| self.plan(group, new)).collect();
        // All groups at once: a disk reads several blocks in the time of one.
        let at: Vec<BlockNo> = plans.iter().flat_map(Plan::reads).collect();
        let mut found = self.area.read_each(&at, BlockKind::Data).into_iter();
        plans.into_iter().map(|plan| (plan.group, self.carry_out(plan, &mut found))).collect()
    }

    /// Which blocks give a group's parity: the old parity and the old blocks, or the others, whichever are fewer.
    fn plan<'w>(&self, group: u64, new: BTreeMap<BlockNo, &'w [u8]>) -> Plan<'w> {
        let others = self.members(group).filter(|block| !new.contains_key(block)).collect::<Vec<_>>();
        let spare = self.state().owners.parity(group).filter(|_| new.len() < others.len());
        let parity = spare.map(|spare| self.area.spare(spare));
        let blocks = if parity.is_some() { new.keys().copied().collect() } else { others };
        Plan { group, new, parity, blocks }
    }

    /// The parity that a plan gives, of the blocks that were read for it; in another way if one of them is not what it should be.
    fn carry_out(
        &self,
        plan: Plan<'_>,
        found: &mut impl Iterator<Item = Option<Vec<u8>>>,
    ) -> Option<Vec<u8>> {
        let mut read: Vec<Option<Vec<u8>>> = found.take(plan.reads().count()).collect();
        let parity = if plan.parity.is_some() { read.pop().flatten() } else { Some(self.zeros()) };
        let blocks: Option<Vec<Vec<u8>>> = read.into_iter().collect();
        let (Some(mut sum), Some(blocks)) =
            (parity, blocks.filter(|found| self.are_right(&plan.blocks, found)))
        else {
            return self.parity_with(plan.group, &plan.new);
        };
        blocks.iter().for_each(|block| take_in(&mut sum, block));
        plan.new.values().for_each(|block| take_in(&mut sum, block));
        Some(sum)
    }

    /// From the old parity and the old blocks, or from the others, whichever takes fewer reads; the other way if that fails.
    fn parity_with(&self, group: u64, new: &BTreeMap<BlockNo, &[u8]>) -> Option<Vec<u8>> {
        let members: Vec<BlockNo> = self.members(group).collect();
        let spare = self.state().owners.parity(group);
        let by_old = || {
            let mut sum = self.area.read_at(self.area.spare(spare?), BlockKind::Data).ok()?;
            let written: Vec<BlockNo> = new.keys().copied().collect();
            self.verified(&written)?.iter().for_each(|block| take_in(&mut sum, block));
            new.values().for_each(|block| take_in(&mut sum, block));
            Some(sum)
        };
        let by_others = || {
            let others: Vec<BlockNo> =
                members.iter().copied().filter(|block| !new.contains_key(block)).collect();
            let mut sum = self.zeros();
            self.verified(&others)?.iter().for_each(|block| take_in(&mut sum, block));
            new.values().for_each(|block| take_in(&mut sum, block));
            Some(sum)
        };
        if spare.is_some() && 2 * new.len() < members.len() {
            by_old().or_else(by_others)
        } else {
            by_others().or_else(by_old)
        }
    }

    /// The parity of a group as its blocks are; none if one of them is not what it should be.
    fn parity_now(&self, group: u64) -> Option<Vec<u8>> {
        let members: Vec<BlockNo> = self.members(group).collect();
        let mut sum = self.zeros();
        self.verified(&members)?.iter().for_each(|block| take_in(&mut sum, block));
        Some(sum)
    }

    /// Gives groups their spares, or takes them away; where each parity goes.
    pub(super) fn assign_parity<'w>(
        &self,
        state: &mut State,
        renewed: &'w [Renewed],
        mut put: impl FnMut(u64, &'w [u8], BlockNo),
    ) {
        for (group, parity) in renewed {
            let Some(parity) = parity else {
                self.lose_parity(state, *group);
                continue;
            };
            match state.owners.parity(*group).or_else(|| self.give_parity(state, *group)) {
                Some(spare) => put(*group, parity, self.area.spare(spare)),
                None => self.lose_parity(state, *group),
            }
        }
    }

    /// Gives a group a spare for its parity, if there is one.
    fn give_parity(&self, state: &mut State, group: u64) -> Option<u64> {
        let wish = BlockNo((group * self.group + state.head.volume / 2) % state.head.volume.max(1));
        self.pick_or_wait(state, |this, state| state.owners.give_parity(&this.area, group, wish))
    }

    /// Writes the parity of a group, to another spare where one cannot be written; whether it is there. The maps are not told yet.
    fn put_parity(&self, state: &mut State, group: u64, parity: &[u8]) -> bool {
        for _ in 0..SPARES_TRIED {
            let given = state.owners.parity(group).or_else(|| self.give_parity(state, group));
            let Some(spare) = given else { break };
            if self.area.write_each(&[self.area.spare(spare)], &[parity]).is_empty() {
                return true;
            }
            state.owners.take_parity(&self.area, group, true);
        }
        self.lose_parity(state, group);
        false
    }

    fn lose_parity(&self, state: &mut State, group: u64) {
        state.owners.take_parity(&self.area, group, false);
        self.health.lock().unpoisoned().add(Kind::Map(MapKind::Parity), Trouble::CopyLost, 1);
    }

    /// Computes the parity of groups anew from their blocks, and writes it. Those of which a block cannot be read have none any more.
    /// The caller holds the lock of parity; the maps are not told yet.
    pub(super) fn mend_parity(&self, groups: impl Iterator<Item = u64>) {
        for group in groups {
            if self.state().owners.parity(group).is_none() {
                continue;
            }
            let computed = self.parity_now(group);
            let mut state = self.state();
            match computed {
                Some(sum) => {
                    self.put_parity(&mut state, group, &sum);
                }
                None => self.lose_parity(&mut state, group),
            }
        }
    }

    /// The groups of some blocks; none if the policy has no parity.
    pub(super) fn groups_of(&self, blocks: impl Iterator<Item = BlockNo>) -> std::collections::BTreeSet<u64> {
        if self.group == 0 {
            std::collections::BTreeSet::new()
        } else {
            blocks.map(|block| self.group_of(block)).collect()
        }
    }

    /// After a crash: the parity of all groups with a block in these runs is computed anew, but of those by which some blocks are right. Those
    /// without one may have lost it, and their blocks may be in use without a sum that was stable: they get some, if data have it.
    pub(super) fn renew_parity(&self, runs: &[u64], right: &[BlockNo]) {
        let blocks: Vec<BlockNo> = runs
            .iter()
            .flat_map(|run| run * RUN..((run + 1) * RUN).min(self.area.shape.volume))
            .map(BlockNo)
            .collect();
        {
            let _alone = self.parity.lock().unpoisoned();
            let (all, kept) = (blocks.iter().copied(), self.groups_of(right.iter().copied()));
            self.mend_parity(self.groups_of(all).into_iter().filter(|group| !kept.contains(group)));
        }
        if self.chain(BlockKind::Data, Direction::Write).keeps_parity() {
            self.take_in_parity(&blocks);
        }
    }

    /// Makes the parity of the groups of some blocks that have none, as far as it can be computed; how many have some now.
    pub(super) fn take_in_parity(&self, blocks: &[BlockNo]) -> u64 {
        let _alone = self.parity.lock().unpoisoned();
        let groups = self.groups_of(blocks.iter().copied());
        let missing = |group: &u64| {
            self.members(*group).next().is_some() && self.state().owners.parity(*group).is_none()
        };
        let computed = |group| Some((group, Some(self.parity_now(group)?)));
        let renewed: Vec<Renewed> = groups.into_iter().filter(missing).filter_map(computed).collect();
        if renewed.is_empty() {
            return 0;
        }
        let mut writes: Vec<(&[u8], BlockNo)> = Vec::new();
        let mut state = self.state();
        self.assign_parity(&mut state, &renewed, |_, parity, at| writes.push((parity, at)));
        let at: Vec<BlockNo> = writes.iter().map(|(_, at)| *at).collect();
        let contents: Vec<&[u8]> = writes.iter().map(|(parity, _)| *parity).collect();
        let mut made = to_u64(at.len());
        for no in self.area.write_each(&at, &contents) {
            let Some(group) = state.owners.group_at(&self.area, at[no]) else { continue };
            state.owners.take_parity(&self.area, group, true);
            made -= u64::from(!self.put_parity(&mut state, group, contents[no]));
        }
        made
    }

    /// Computes a block from the others of its group; whether that is believed.
    pub(super) fn read_parity(&self, read: &mut BlockRead<'_>) -> bool {
        let Some(mut computed) = self.computed_by_parity(read.block) else { return false };
        let copy = BlockRead { block: read.block, kind: read.kind, data: &mut computed };
        if self.believe(&copy, Ok(())).is_err() {
            return false;
        }
        read.data.copy_from_slice(&computed);
        true
    }

    /// What a block holds by the others of its group and their parity.
    pub(super) fn computed_by_parity(&self, block: BlockNo) -> Option<Vec<u8>> {
        if self.group == 0 {
            return None;
        }
        let _alone = self.parity.lock().unpoisoned();
        let group = self.group_of(block);
        let spare = self.state().owners.parity(group)?;
        let others: Vec<BlockNo> = self.members(group).filter(|other| *other != block).collect();
        let blocks = self.verified(&others)?;
        let mut sum = self.area.read_at(self.area.spare(spare), BlockKind::Data).ok()?;
        blocks.iter().for_each(|other| take_in(&mut sum, other));
        Some(sum)
    }

    /// The groups that begin in a range of blocks and have parity, and where it is.
    pub(super) fn parity_of(&self, range: &std::ops::Range<u64>) -> Vec<(u64, BlockNo)> {
        if self.group == 0 {
            return Vec::new();
        }
        let state = self.state();
        let groups = range.start.div_ceil(self.group)..range.end.div_ceil(self.group);
        let spare = |group| state.owners.parity(group).map(|spare| (group, self.area.spare(spare)));
        groups.filter_map(spare).collect()
    }

    /// Whether the parity of a group is what blocks hold that are known to be right.
    pub(super) fn is_parity<'f>(
        &self,
        group: u64,
        parity: &[u8],
        known: &dyn Fn(BlockNo) -> Option<&'f [u8]>,
    ) -> bool {
        let mut sum = self.zeros();
        let mut members = self.members(group);
        let are_known = members.all(|block| known(block).map(|block| take_in(&mut sum, block)).is_some());
        are_known && sum == parity
    }

    /// Compares the parity of some groups; how many were wrong and are right again. Groups with a block that is not what was written are left alone.
    pub(super) fn scrub_parity(&self, groups: &[(u64, BlockNo)]) -> u64 {
        let _alone = self.parity.lock().unpoisoned();
        let mut mended = 0;
        for (group, at) in groups {
            let Some(sum) = self.parity_now(*group) else { continue };
            if self.area.read_at(*at, BlockKind::Data).is_ok_and(|parity| parity == sum) {
                continue;
            }
            mended += 1;
            self.mend_parity(std::iter::once(*group));
        }
        mended
    }
}
