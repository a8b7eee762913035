//! Families that are tables of steps, each with a sync of every kind or none behind it, and with and without the cache writing in
//! between: the number is that of the step times eight, plus that. And families that are runs of steps drawn by a seed, which is the number.

use fstitch_core::Seed;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_crashlab::workload::{Family, Op, Workload};

/// A step, and the object that a sync behind it is about.
pub(super) type Step = (&'static str, &'static str);

/// Syncs behind a step.
const SYNCS: [&str; 4] = ["", "fsync", "fdatasync", "sync"];
/// What a step is combined with: a sync, and whether the cache writes before it.
const VARIANTS: u64 = 2 * 4;

/// Reads operations that are known to be right.
pub(super) fn ops(text: &str) -> Vec<Op> {
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().expect("the tables above are tested")).collect()
}

/// One of these.
pub(super) fn pick<'a>(seed: &mut Seed, from: &[&'a str]) -> &'a str {
    from[to_usize(seed.below(to_u64(from.len())))]
}

/// A table of steps on files.
pub(super) struct Steps {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// What is there before.
    pub(super) files: fn() -> String,
    pub(super) steps: &'static [Step],
    /// Writes out what the steps have short for.
    pub(super) spell: fn(&str) -> String,
}

impl Family for Steps {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn len(&self) -> u64 {
        to_u64(self.steps.len()) * VARIANTS
    }

    fn get(&self, index: u64) -> Option<Workload> {
        let &(step, object) = self.steps.get(usize::try_from(index / VARIANTS).ok()?)?;
        let (writes, sync) = (index % 2 == 1, usize::try_from(index % VARIANTS / 2).ok()?);
        let mut list = Vec::new();
        for (op, seed) in ops(&(self.spell)(step)).into_iter().zip(index..) {
            list.push(op);
            if writes {
                list.push(Op::WriteOut { share: 8, seed });
            }
        }
        match SYNCS[sync] {
            "" => {}
            "sync" => list.push(Op::Sync),
            verb => list.extend(ops(&(self.spell)(&format!("{verb} {object}")))),
        }
        Some(Workload { name: format!("{}/{index}", self.name), setup: ops(&(self.files)()), ops: list })
    }
}

/// Runs of steps on files, drawn by a seed.
pub(super) struct Runs {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// What is there before.
    pub(super) files: fn() -> String,
    /// Steps of a run.
    pub(super) steps: usize,
    /// Draws one.
    pub(super) step: fn(&mut Seed) -> String,
}

impl Family for Runs {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn len(&self) -> u64 {
        u64::MAX
    }

    fn get(&self, index: u64) -> Option<Workload> {
        let mut seed = Seed::new(index);
        let mut list = Vec::new();
        for _ in 0..self.steps {
            list.extend(ops(&(self.step)(&mut seed)));
        }
        Some(Workload { name: format!("{}/{index}", self.name), setup: ops(&(self.files)()), ops: list })
    }
}
