//! What a cut has left, recovered with another cut meanwhile, checked, read, scrubbed, and read once more from copies alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, IoOp, Overlay};
use fstitch_crashlab::medium::Progress;
use fstitch_crashlab::oracle::{Judge, Ledger, Tree, Violation, Window};
use fstitch_crashlab::{Defect, Fault as Planned, FaultPlan, Oracle, Promise, Subject, Times};
use fstitch_shepherd::disks::DiskState;
use fstitch_shepherd::engine::Scrubbed;
use fstitch_shepherd::policy::{Answer, Direction, Kind};
use fstitch_shepherd::{Shepherd, Stretch};

use crate::opened::{Opened, mount, open, open_sound, tree};
use crate::rack::{Fault, Rack, worn};
use crate::system::Made;

/// Blocks of a group, as `parity` has them.
const GROUP: u64 = 8;

/// A volume and what befell it before the power went.
pub struct Reopened<'a> {
    pub made: &'a Made,
    pub fault: Option<Fault>,
    /// Writes and flushes after which the power fails in recovery.
    pub cut_after: u64,
}

/// The trees that one image shows: with all disks that are there, and without those that died.
pub struct Trees<'a> {
    pub ledger: &'a Ledger,
    pub promise: Promise,
}

impl Oracle for Trees<'_> {
    type Shown = Vec<Tree>;

    fn at(&self, progress: Progress) -> Judge<'_, Vec<Tree>> {
        let window = Window::new(self.ledger, progress, self.promise);
        Box::new(move |trees| trees.iter().try_for_each(|tree| window.judge(tree)))
    }
}

impl Subject for Reopened<'_> {
    type Shown = Vec<Tree>;

    fn show(&self, device: Arc<dyn BlockDevice>) -> Result<Vec<Tree>, Violation> {
        let mut trees = Vec::new();
        if let Some(Fault::Death { disk, .. }) = self.fault {
            trees.push(self.view(Arc::new(Overlay::new(Arc::clone(&device))), Some(disk))?);
        }
        trees.push(self.view(device, None)?);
        Ok(trees)
    }
}

impl Reopened<'_> {
    /// What is there, without a disk if that is said.
    fn view(&self, device: Arc<dyn BlockDevice>, away: Option<usize>) -> Result<Tree, Violation> {
        let system = &self.made.system;
        let rack = Rack::new(system.disks, Arc::clone(&device));
        if let (Rack::Several(machine), Some(disk)) = (&rack, away) {
            machine.kill(disk);
        }
        rack.cut_after(self.cut_after);
        drop(open(system, &rack));
        rack.power_is_back();
        self.wear(&rack);
        let opened = open_sound(system, &rack)?;
        let shown = tree(&*opened.fs)?;
        let ended = opened.fs.unmount();
        ended.map_err(|error| Violation::new("unmount-failed", error.to_string()))?;
        let Opened { fs, shepherd } = opened;
        drop(fs);
        let are_whole = shepherd
            .disks()
            .is_none_or(|array| (0..array.disks()).all(|disk| array.state(disk) == DiskState::Whole));
        if are_whole {
            are_redundant(&shepherd)?;
            match &rack {
                Rack::One(_) => self.without_homes(&rack, &shepherd, &shown)?,
                Rack::Several(_) => {
                    let closed = shepherd.close();
                    closed.map_err(|error| Violation::new("close-failed", error.to_string()))?;
                    drop(shepherd);
                    self.without_a_disk(&device, &shown)?;
                }
            }
        }
        Ok(shown)
    }

    /// A block that takes no writes does not take them after the crash either, if the policy moves it.
    fn wear(&self, rack: &Rack) {
        let Some(Fault::Worn { block, .. }) = self.fault else { return };
        let moves = |kind| {
            self.made.policy.chain(Kind::Block(kind), Direction::Write).answers.contains(&Answer::Remap)
        };
        if moves(BlockKind::Data) && !self.made.journal.contains(&block) {
            rack.one().set_plan(FaultPlan::one(worn(block, 1)));
        }
    }

    /// Each home of a kind that has copies is lost: everything is there all the same.
    fn without_homes(&self, rack: &Rack, shepherd: &Arc<Shepherd>, shown: &Tree) -> Result<(), Violation> {
        let system = &self.made.system;
        let census = system.keeps().census(&**shepherd);
        let census = census.map_err(|error| Violation::new("census-failed", error.to_string()))?;
        let has_copies = |kind| self.made.policy.chain(Kind::Block(kind), Direction::Write).keeps_copies();
        let lost = |blocks| Planned {
            op: Some(IoOp::Read),
            blocks: Some(blocks),
            times: Times::Sticky,
            ..Planned::new(Defect::Error)
        };
        let copied = census.iter().filter(|stretch| has_copies(stretch.kind));
        let mut faults: Vec<Planned> =
            copied.map(|stretch| lost(stretch.start.get()..stretch.start.get() + stretch.count)).collect();
        if self.made.policy.chain(Kind::Block(BlockKind::Data), Direction::Write).keeps_parity() {
            faults.extend(self.one_of_each_group(&census).into_iter().map(|block| lost(block..block + 1)));
        }
        if faults.is_empty() {
            return Ok(());
        }
        rack.one().set_plan(FaultPlan { faults, ..FaultPlan::default() });
        let fs = mount(system, shepherd).map_err(|error| Violation::new("no-copy", error.to_string()))?;
        is_the_same(&tree(&*fs)?, shown)
    }

    /// Of the blocks in use of each group one, another one in each state; none of the journal's.
    fn one_of_each_group(&self, census: &[Stretch]) -> Vec<u64> {
        let mut groups: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for stretch in census.iter().filter(|stretch| !stretch.kind.is_journal()) {
            for block in stretch.start.get()..stretch.start.get() + stretch.count {
                groups.entry(block / GROUP).or_default().push(block);
            }
        }
        let one = |blocks: Vec<u64>| blocks[to_usize(self.cut_after) % blocks.len()];
        groups.into_values().map(one).collect()
    }

    /// Each disk is away once.
    fn without_a_disk(&self, device: &Arc<dyn BlockDevice>, shown: &Tree) -> Result<(), Violation> {
        let system = &self.made.system;
        for away in 0..system.disks {
            let rack = Rack::new(system.disks, Arc::new(Overlay::new(Arc::clone(device))));
            if let Rack::Several(machine) = &rack {
                machine.kill(away);
            }
            is_the_same(&tree(&*open_sound(system, &rack)?.fs)?, shown)?;
        }
        Ok(())
    }
}

fn is_the_same(found: &Tree, shown: &Tree) -> Result<(), Violation> {
    match found == shown {
        true => Ok(()),
        false => Err(Violation::new("other-copy", "copies show another tree than homes")),
    }
}

/// A scrub makes what is lacking, and another one finds that nothing is.
fn are_redundant(shepherd: &Shepherd) -> Result<(), Violation> {
    let scrubbed = || {
        let mut all = Scrubbed::default();
        for from in (0..shepherd.blocks()).step_by(2048) {
            let part = shepherd.scrub(BlockNo(from), 2048, &|_| BlockKind::Data);
            all.add(part.map_err(|error| Violation::new("scrub-failed", error.to_string()))?);
        }
        Ok(all)
    };
    let (first, second): (Scrubbed, Scrubbed) = (scrubbed()?, scrubbed()?);
    let is_alike = |scrubbed: &Scrubbed| scrubbed.differing.is_empty() && scrubbed.lost.is_empty();
    let is_done = second.copies_written == 0 && second.restored.is_empty() && second.degraded == 0;
    if is_alike(&first) && is_alike(&second) && is_done {
        return Ok(());
    }
    Err(Violation::new("redundancy", format!("{first:?}, then {second:?}")))
}
