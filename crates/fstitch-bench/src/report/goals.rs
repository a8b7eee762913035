//! What shall hold, as ratios in one run, and whether it does.

use fstitch_core::Consistency;

use crate::contender::{Contender, Kernel, Side, Way};
use crate::meter::{Sample, seconds};
use crate::results::{Place, Results, Spread};
use crate::workload::ALL;

/// A ratio that shall hold.
pub struct Checked {
    /// What is compared, and on which medium.
    pub what: String,
    /// In which workload.
    pub workload: String,
    /// The ratio.
    pub ratio: Spread,
    /// What it shall be.
    pub wanted: Wanted,
}

/// What a ratio shall be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
}

/// Ratios that belong together.
pub struct Goal {
    /// What they are about.
    pub title: &'static str,
    /// The ratios.
    pub checked: Vec<Checked>,
}

impl Checked {
    /// Whether the median is as wanted.
    #[must_use]
    pub fn is_met(&self) -> bool {
        match self.wanted {
            Wanted::AtMost(limit) => self.ratio.median <= limit,
            Wanted::AtLeast(limit) => self.ratio.median >= limit,
        }
    }
}

const SOFT: Contender = Contender::Mounted(Consistency::Soft);
const CACHED: Contender = Contender::Cached(Consistency::Soft);
const MEDIA: [&str; 2] = ["disk", "memory"];

fn wall(sample: &Sample) -> f64 {
    sample.wall_s
}

fn wall_each(sample: &Sample) -> f64 {
    sample.wall_s / seconds(sample.operations.max(1))
}

fn rate(sample: &Sample) -> f64 {
    seconds(sample.operations) / sample.work_s
}

fn bytes(sample: &Sample) -> f64 {
    seconds(sample.device.map_or(0, |device| device.bytes_written))
}

fn requests(sample: &Sample) -> f64 {
    seconds(sample.device.map_or(0, |device| device.write_requests))
}

/// A workload and a phase.
type Phase = (&'static str, &'static str);

/// Collects the ratios of a goal, where both sides were measured.
struct Collector<'a> {
    results: &'a Results,
    checked: Vec<Checked>,
}

impl Collector<'_> {
    fn check(
        &mut self,
        (medium, (workload, phase)): (&str, (&str, &str)),
        (ours, theirs): (Contender, &[Contender]),
        number: fn(&Sample) -> f64,
        wanted: Wanted,
    ) {
        let at = Place { medium, workload, phase };
        if let Some(ratio) = self.results.ratio(at, ours, theirs, number) {
            let others: Vec<String> = theirs.iter().map(|one| one.name()).collect();
            let what = format!("{medium}: {workload}, {phase}: {} / {}", ours.name(), others.join(" or "));
            self.checked.push(Checked { what, workload: workload.to_owned(), ratio, wanted });
        }
    }
}

/// All goals that are ratios of the race.
#[must_use]
pub fn goals(results: &Results) -> Vec<Goal> {
    let make = |title, collect: fn(&mut Collector<'_>)| {
        let mut collector = Collector { results, checked: Vec::new() };
        collect(&mut collector);
        Goal { title, checked: collector.checked }
    };
    vec![
        make(FOUND_TITLE, found),
        make(
            "Processor time of client and server, against the same with idle processors left alone",
            found_processors,
        ),
        make(
            "Operations per second over FUSE, against a file system in memory behind the same front end",
            fuse_limit,
        ),
        make("Time of `ordered` on a volume that follows a policy, against one that follows none", following),
        make("Time, against fuse2fs", fuse2fs),
        make("Time of safe configurations, against the kernel's driver", kernel),
        make(
            "Time on ext4, against fuse2fs and the kernel's driver there, and rates of a stream against ext3's",
            ext4,
        ),
        make("Time of UFS2, against ext2, both with soft updates", ufs),
        make("Time of waffle, against ext3 that logs contents too (`full`)", waffle),
        make("Time of soft updates, against no order at all, where nothing calls fsync", soft_and_async),
        make("Time of the conventional, synchronous mode, against soft updates", conventional),
        make("Bytes and requests that unpacking the tree writes, against the kernel's ext2", written),
    ]
}

/// What people get.
pub const FOUND_TITLE: &str =
    "Time of the defaults on the machine as it is found, against fuse2fs and the kernel's ext2";

fn found(collector: &mut Collector<'_>) {
    const PHASES: [(Phase, f64); 4] = [
        (("tree-found", "untar"), 1.0 / 3.0),
        (("tree-found", "delete"), 1.0 / 3.0),
        (("postmark-found", "all"), 0.5),
        (("postmark-program-found", "all"), 0.5),
    ];
    for medium in MEDIA {
        for (phase, limit) in PHASES {
            let sides = (Contender::Defaults, &[Contender::Fuse2fs][..]);
            collector.check((medium, phase), sides, wall, Wanted::AtMost(limit));
        }
        for (phase, _) in &PHASES[..2] {
            let sides = (Contender::Defaults, &[Contender::Kernel(Kernel::Ext2)][..]);
            collector.check((medium, *phase), sides, wall, Wanted::AtMost(1.5));
        }
    }
}

fn following(collector: &mut Collector<'_>) {
    const LIMITS: [(&str, f64, f64); 8] = [
        ("propagate", 1.02, 1.02),
        ("checksum", 1.05, 1.05),
        ("sanity", 1.01, 1.01),
        ("parity", 1.10, 1.02),
        ("mirror-near", 1.35, 1.35),
        ("mirror-far", 1.35, 1.35),
        ("defence-in-depth", 1.10, 1.10),
        ("laptop", 1.10, 1.10),
    ];
    let none = Contender::Mounted(Consistency::Ordered);
    for medium in MEDIA {
        for (policy, mail, tree) in LIMITS {
            for (phase, limit) in
                [(("postmark", "all"), mail), (("tree", "untar"), tree), (("tree", "delete"), tree)]
            {
                let sides = (Contender::Following(policy), &[none][..]);
                collector.check((medium, phase), sides, wall, Wanted::AtMost(limit));
            }
        }
    }
}

fn found_processors(collector: &mut Collector<'_>) {
    for medium in MEDIA {
        for phase in [("tree-found", "untar"), ("tree-found", "delete"), ("postmark-found", "all")] {
            let sides = (Contender::Defaults, &[Contender::LeftAlone][..]);
            let processors = |sample: &Sample| sample.client_s + sample.server_s;
            collector.check((medium, phase), sides, processors, Wanted::AtMost(1.2));
        }
    }
}

fn fuse_limit(collector: &mut Collector<'_>) {
    for medium in MEDIA {
        for workload in ["small", "small-pinned", "small-halted"] {
            for phase in ["create", "write 4 KiB", "unlink"] {
                let at = (medium, (workload, phase));
                let sides = [(SOFT, Contender::Memory), (Contender::DeviceSoft, Contender::DeviceMemory)];
                for (ours, limit) in sides {
                    collector.check(at, (ours, &[limit]), rate, Wanted::AtLeast(0.8));
                }
            }
        }
    }
}

fn fuse2fs(collector: &mut Collector<'_>) {
    const FAR: [Phase; 7] = [
        ("tree", "untar"),
        ("tree", "delete"),
        ("postmark", "all"),
        ("creates", "without fsync"),
        ("tree-halted", "untar"),
        ("tree-halted", "delete"),
        ("creates-halted", "without fsync"),
    ];
    const NEAR: [Phase; 2] = [("stream", "write 1 MiB"), ("stream", "read 1 MiB")];
    let third = FAR.map(|phase| (phase, 1.0 / 3.0));
    let same = NEAR.map(|phase| (phase, 1.0));
    for medium in MEDIA {
        for (phase, limit) in third.into_iter().chain(same) {
            for ours in [SOFT, Contender::DeviceSoft, CACHED] {
                collector.check((medium, phase), (ours, &[Contender::Fuse2fs]), wall, Wanted::AtMost(limit));
            }
        }
    }
}

fn kernel(collector: &mut Collector<'_>) {
    const PAIRS: [(Consistency, Kernel); 2] =
        [(Consistency::Full, Kernel::Ext3Journal), (Consistency::Ordered, Kernel::Ext3Ordered)];
    const PHASES: [Phase; 5] = [
        ("tree", "untar"),
        ("tree", "delete"),
        ("postmark", "all"),
        ("creates", "with fsync"),
        ("sqlite-calls", "transactions"),
    ];
    for (mode, kernel) in PAIRS {
        let kernel = Contender::Kernel(kernel);
        for phase in PHASES {
            collector.check(
                ("disk", phase),
                (Contender::InProcess(mode), &[kernel]),
                wall,
                Wanted::AtMost(1.0),
            );
        }
        for phase in PHASES
            .into_iter()
            .filter(|phase| *phase != ("tree", "delete"))
            .chain([("sqlite", "transactions")])
        {
            let theirs = [kernel, Contender::Memory];
            for ours in [Contender::Mounted(mode), Contender::Cached(mode)] {
                collector.check(("disk", phase), (ours, &theirs), wall, Wanted::AtMost(1.25));
            }
        }
    }
}

fn ext4(collector: &mut Collector<'_>) {
    const SHARED: [Phase; 4] =
        [("tree", "untar"), ("tree", "delete"), ("postmark", "all"), ("creates", "without fsync")];
    const KERNEL: [Phase; 4] =
        [("tree", "untar"), ("tree", "delete"), ("postmark", "all"), ("creates", "with fsync")];
    let theirs = [Contender::Ext4(Way::Fuse2fs)];
    for phase in [("tree-found", "untar"), ("tree-found", "delete"), ("postmark-found", "all")] {
        let sides = (Contender::Ext4(Way::Defaults), &theirs[..]);
        collector.check(("disk", phase), sides, wall, Wanted::AtMost(0.5));
    }
    let (mounted, inside) = (Contender::Ext4(Way::Mounted), Contender::Ext4(Way::InProcess));
    for phase in SHARED {
        collector.check(("disk", phase), (mounted, &theirs), wall, Wanted::AtMost(0.5));
        let ext3 = [Contender::Mounted(Consistency::Ordered)];
        collector.check(("disk", phase), (mounted, &ext3), wall, Wanted::AtMost(1.0));
    }
    for phase in KERNEL {
        let kernel = [Contender::Kernel(Kernel::Ext4)];
        collector.check(("disk", phase), (inside, &kernel), wall, Wanted::AtMost(1.0));
    }
    for phase in [("stream", "write 1 MiB"), ("stream", "read 1 MiB")] {
        for (ours, ext3) in [
            (mounted, Contender::Mounted(Consistency::Ordered)),
            (inside, Contender::InProcess(Consistency::Ordered)),
        ] {
            collector.check(("disk", phase), (ours, &[ext3]), rate, Wanted::AtLeast(0.95));
        }
    }
}

fn ufs(collector: &mut Collector<'_>) {
    let inside = (Contender::Ufs(Side::InProcess), Contender::InProcess(Consistency::Soft));
    let mounted = (Contender::Ufs(Side::Mounted), SOFT);
    everywhere(collector, [inside, mounted], 1.1);
}

fn waffle(collector: &mut Collector<'_>) {
    let inside = (Contender::Waffle(Side::InProcess), Contender::InProcess(Consistency::Full));
    let mounted = (Contender::Waffle(Side::Mounted), Contender::Mounted(Consistency::Full));
    everywhere(collector, [inside, mounted], 1.2);
}

/// Each of some against another of ours, in all that was measured.
fn everywhere(collector: &mut Collector<'_>, pairs: [(Contender, Contender); 2], limit: f64) {
    for (medium, workload, phase) in collector.results.phases() {
        for (ours, other) in pairs {
            let at = (medium.as_str(), (workload.as_str(), phase.as_str()));
            collector.check(at, (ours, &[other]), wall, Wanted::AtMost(limit));
        }
    }
}

fn soft_and_async(collector: &mut Collector<'_>) {
    for (medium, workload, phase) in collector.results.phases() {
        let syncs = ALL.iter().any(|known| known.name == workload && known.syncs);
        if syncs && phase != "without fsync" {
            continue;
        }
        for make in [Contender::InProcess, Contender::Mounted] {
            let sides = (make(Consistency::Soft), &[make(Consistency::Async)][..]);
            collector.check((&medium, (&workload, &phase)), sides, wall, Wanted::AtMost(1.03));
        }
    }
}

fn conventional(collector: &mut Collector<'_>) {
    const PHASES: [Phase; 5] =
        [("small", "create"), ("small", "unlink"), ("tree", "untar"), ("tree", "delete"), ("mail", "all")];
    for phase in PHASES {
        let sides = (Contender::InProcess(Consistency::Sync), &[Contender::InProcess(Consistency::Soft)][..]);
        // In memory a flush costs nothing.
        // The conventional way is given less to do.
        collector.check(("disk", phase), sides, wall_each, Wanted::AtLeast(2.0));
    }
}

fn written(collector: &mut Collector<'_>) {
    let ext2 = [Contender::Kernel(Kernel::Ext2)];
    for medium in MEDIA {
        for ours in [SOFT, Contender::InProcess(Consistency::Soft)] {
            let at = (medium, ("tree", "untar"));
            collector.check(at, (ours, &ext2), bytes, Wanted::AtMost(1.03));
            let before = collector.checked.len();
            collector.check(at, (ours, &ext2), requests, Wanted::AtMost(1.0));
            for (checked, unit) in
                collector.checked[before.saturating_sub(1)..].iter_mut().zip(["bytes", "requests"])
            {
                checked.what = format!("{} ({unit})", checked.what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Cell;

    fn cell(contender: Contender, repetition: u32, wall_s: f64) -> Cell {
        let sample = Sample {
            phase: "untar".into(),
            operations: 10,
            work_s: wall_s,
            wall_s,
            client_s: 0.0,
            server_s: 0.0,
            machine_s: 0.0,
            device: None,
        };
        let (medium, workload) = ("disk".to_owned(), "tree".to_owned());
        Cell { medium, workload, contender: contender.name(), repetition, sample }
    }

    #[test]
    fn a_ratio_is_taken_within_a_repetition_against_the_largest() {
        let (ours, kernel) = (Contender::Mounted(Consistency::Full), Contender::Kernel(Kernel::Ext3Journal));
        let cells = vec![
            cell(ours, 0, 3.0),
            cell(kernel, 0, 2.0),
            cell(Contender::Memory, 0, 6.0),
            cell(ours, 1, 9.0),
            cell(kernel, 1, 3.0),
            cell(Contender::Memory, 1, 2.0),
        ];
        let results = Results { cells, ..Results::default() };
        let goals = goals(&results);
        let found: Vec<&Checked> = goals.iter().flat_map(|goal| &goal.checked).collect();
        let [one] = &found[..] else { panic!("{} ratios", found.len()) };
        assert_eq!(one.ratio, Spread { median: 1.75, least: 0.5, most: 3.0 });
        assert!(!one.is_met());
    }
}
