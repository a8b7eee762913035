//! Soft updates on ext2 and journals on ext3 and ext4 in the laboratory, and the laboratory itself: what it must find, and that its failures replay.
//!
//! What it prevents: a crash that leaves more than soft updates allow, and a laboratory that would not notice.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod kinds;
mod peculiar;
mod torn;
mod ufs;
mod waffle;

use std::ops::ControlFlow;
use std::sync::Arc;

use fstitch_crashlab::medium::Atom;
use fstitch_crashlab::workload::Workload;
use fstitch_crashlab::{
    Base, GroupCounts, GroupOptions, Lab, LabOptions, Level, Limits, Outcome, Replay, Selection, StateId,
    judge_group_program, minimise, soak, story, svg, timeline,
};
use fstitch_systems::workloads::{families, find, spelled};
use fstitch_systems::{Ext2System, system};

/// The whole of a family, or a sample of it.
const WHOLE: u64 = u64::MAX;
/// One in so many of a whole family is run, as there are many systems, and all of them by `cargo xtask soak`.
const SAMPLED: u64 = 3;
/// As few of a family are all run.
const SMALL: u64 = 400;

/// Whether `FSTITCH_CUTS` asks for all instead of the sample that is taken by default.
fn is_thorough() -> bool {
    std::env::var_os("FSTITCH_CUTS").is_some()
}

/// As many, or by default half of them.
fn half(count: u64) -> u64 {
    if is_thorough() { count } else { count.div_ceil(2) }
}

/// Runs the first `count` workloads of a family, or a sample of all of them.
fn run(system: &str, family: &str, count: u64, options: LabOptions) -> Outcome {
    let lab = Lab::new(fstitch_systems::system(system).unwrap(), options).unwrap();
    let (family, _) = find(family).unwrap();
    let limits = Limits { states: u64::MAX, violations: options.max_violations, threads: 2 };
    let selection = if count == WHOLE && family.len() > SMALL && !is_thorough() {
        Selection::Sample { seed: 5, draws: 0..family.len().div_ceil(SAMPLED) }
    } else {
        Selection::Range(0..count.min(family.len()))
    };
    soak(&lab, &*family, &selection, limits, &|_| ControlFlow::Continue(()))
}

/// Nothing is found; enough was looked at.
fn lawful(system: &str, family: &str, count: u64, states_per_cut: u64) {
    let options = LabOptions { choices_per_cut: states_per_cut, ..LabOptions::default() };
    let outcome = run(system, family, count, options);
    println!("{system} {family}: {:?}", outcome.counts);
    for found in &outcome.found {
        println!("{}\n  replay: fstitch crash replay '{}'", found.violation, found.id);
    }
    assert!(outcome.found.is_empty(), "{} violations", outcome.found.len());
    assert!(
        outcome.counts.checked > 100 && outcome.counts.cuts > outcome.counts.workloads,
        "{:?}",
        outcome.counts
    );
}

#[test]
fn every_single_operation_with_every_sync() {
    lawful("ext2-soft", "seq1", WHOLE, 256);
}

#[test]
fn pairs_of_operations() {
    // One in a thousand; `cargo xtask soak` runs all of them.
    let lab = Lab::new(
        Arc::new(Ext2System::default()),
        LabOptions { choices_per_cut: 64, ..LabOptions::default() },
    );
    let (family, _) = find("seq2").unwrap();
    let limits = Limits { states: u64::MAX, violations: 1, threads: 2 };
    let outcome =
        soak(&lab.unwrap(), &*family, &Selection::Sample { seed: 5, draws: 0..460 }, limits, &|_| {
            ControlFlow::Continue(())
        });
    assert_eq!(outcome.found, []);
}

#[test]
fn random_runs_on_every_kind_of_volume() {
    for system in [
        "ext2-soft-o0",
        "ext2-soft-o1-c256",
        "ext2-soft-o2-b2048",
        "ext2-soft-o7-i256",
        "ext2-soft-b4096-i256",
        "ext2-soft-s16",
    ] {
        lawful(system, "random", 4, 48);
    }
}

#[test]
fn applications() {
    for family in ["writers", "postmark", "mail", "editor", "db"] {
        lawful("ext2-soft", family, 1, 32);
    }
}

/// Every operation is whole or not at all, and there is nothing to find after recovery.
#[test]
fn journals_and_every_single_operation() {
    for mode in ["ordered", "metadata", "full"] {
        lawful(&format!("ext3-{mode}"), "seq1", WHOLE, 16);
    }
}

#[test]
fn journals_and_random_runs_on_every_kind_of_volume() {
    for system in [
        "ext3-ordered-o0",
        "ext3-ordered-c256-s16",
        "ext3-ordered-b2048-i256-k8192",
        "ext3-full-o1-i256",
        "ext3-full-b4096-k16384",
        "ext3-metadata-o2-c256",
    ] {
        lawful(system, "random", 6, 24);
    }
}

#[test]
fn journals_under_applications_and_on_full_volumes() {
    for (system, family) in [
        ("ext3-ordered", "writers"),
        ("ext3-ordered", "mail"),
        ("ext3-full", "db"),
        ("ext3-full", "editor"),
        ("ext3-metadata", "writers"),
    ] {
        lawful(system, family, half(6), 24);
    }
    lawful("ext3-ordered", "brim", 3, 16);
}

/// The same promises with extents, sums of metadata and flexible groups, and a journal with sums of its own.
#[test]
fn ext4_and_every_single_operation() {
    for mode in ["ordered", "metadata", "full"] {
        lawful(&format!("ext4-{mode}"), "seq1", WHOLE, 8);
    }
}

#[test]
fn ext4_under_random_runs_and_applications() {
    for system in
        ["ext4-ordered-o0", "ext4-ordered-c256-s16", "ext4-full-b4096-k16384", "ext4-metadata-b2048-k8192"]
    {
        lawful(system, "random", half(4), 24);
    }
    for (system, family) in [("ext4-ordered", "writers"), ("ext4-full", "db"), ("ext4-metadata", "mail")] {
        lawful(system, family, half(4), 24);
    }
    lawful("ext4-ordered", "brim", 3, 16);
}

/// Trees of extents and unwritten blocks: a sample here, all of it with `fstitch crash run`.
#[test]
fn ext4_extents_of_one_level_and_of_two() {
    for mode in ["ordered", "metadata", "full"] {
        lawful(&format!("ext4-{mode}"), "extents", WHOLE, 4);
        lawful(&format!("ext4-{mode}"), "extents-random", 8, 8);
    }
    lawful("ext4-ordered", "deep", 48, 4);
    lawful("ext4-ordered-o0", "extents", 100, 16);
}

/// e2fsck clears an extent of a node that lies across the file's end, with what it maps before. The checker tells of one wherever it is,
/// and nothing of ours leaves any.
#[test]
fn no_extent_of_a_node_crosses_a_files_end() {
    lawful("ext4-soft", "extents", 120, 4);
    lawful("ext4-soft", "deep", 64, 4);
    lawful("ext4-soft", "extents-random", 48, 8);
    lawful("ext4-soft-nosum-o0", "extents-random", 12, 8);
    let punched = "create /u;allocate /u 0 102400;write /u 40960 4096|\
                   append /u 24576;write /u 10920 8536;punch /u 69632 61440;truncate /u 112640";
    // A leaf begins at file block 164; the one before it gets blocks that were in it.
    let pieces: String = (0..212).rev().map(|at| format!(";write /d {} 1024", at * 2048)).collect();
    let beheaded = format!("create /d{pieces};truncate /d 434176|punch /d 167936 2048;write /d 166912 2048");
    for workload in [spelled("extents-random/133"), format!("ops/{punched}"), format!("ops/{beheaded}")] {
        let options = LabOptions { choices_per_cut: 256, ..LabOptions::default() };
        let outcome = run("ext4-soft", &workload, 1, options);
        assert_eq!(outcome.found, [], "{workload}");
        assert!(outcome.counts.generated > 8 && outcome.counts.checked > 3, "{:?}", outcome.counts);
    }
}

/// Contents that others have put into inodes, where a journal is kept and where none is.
#[test]
fn what_lies_in_inodes() {
    for system in ["ext4-ordered-p16", "ext4-metadata-p16", "ext4-full-p16", "ext4-soft-p16"] {
        lawful(system, "inside", WHOLE, 6);
        lawful(system, "inside-random", 12, 8);
    }
    for system in ["ext4-ordered-o0-p16", "ext4-soft-nosum-o0-p16", "ext4-full-b4096-k16384-p16"] {
        lawful(system, "inside-random", 8, 8);
    }
}

/// Where blocks are taken in clusters of four.
#[test]
fn files_of_clusters() {
    for system in ["ext4-ordered-p32", "ext4-metadata-p32", "ext4-full-p32"] {
        lawful(system, "extents", WHOLE, 8);
        lawful(system, "extents-random", 8, 8);
    }
    for system in ["ext4-ordered-nosum-o0-p32", "ext4-full-b4096-k24576-p32"] {
        lawful(system, "extents-random", 12, 8);
    }
    lawful("ext4-ordered-p32", "deep", 64, 8);
}

/// Where hardly anything is free, so that what a file gives up is at once another one's: a sample here, all of it with `fstitch crash run`.
#[test]
fn crowded_volumes() {
    lawful("ext4-ordered-k1600-n32-p64", "crowded", WHOLE, 4);
    lawful("ext4-ordered-k1600-n32-p64", "crowded-random", 40, 8);
    for mode in ["metadata", "full"] {
        lawful(&format!("ext4-{mode}-k1600-n32-p64"), "crowded", 240, 3);
        lawful(&format!("ext4-{mode}-k1600-n32-p64"), "crowded-random", 20, 8);
    }
}

#[test]
fn crowded_volumes_without_extents_or_without_a_journal() {
    lawful("ext3-ordered-k1600-n32-p64", "crowded", half(240), 3);
    lawful("ext3-metadata-k1600-n32-p64", "crowded-random", half(20), 8);
    for system in ["ext4-soft-k512-n32-p64", "ext2-soft-k512-n32-p64"] {
        lawful(system, "crowded", half(80), 4);
        lawful(system, "crowded-random", 8, 4);
    }
}

#[test]
fn crowded_volumes_of_clusters() {
    lawful("ext4-ordered-k1800-n32-p96", "crowded", 320, 4);
    lawful("ext4-ordered-k1800-n32-p96", "crowded-random", 40, 8);
    for mode in ["metadata", "full"] {
        lawful(&format!("ext4-{mode}-k1800-n32-p96"), "crowded", 120, 3);
        lawful(&format!("ext4-{mode}-k1800-n32-p96"), "crowded-random", 20, 8);
    }
}

/// What runs of these families found, as small as it gets: a clearing that was dropped with its block of pointers, blocks that came back within
/// their cluster, blocks behind a file's end that were called written.
#[test]
fn what_was_found_on_crowded_volumes() {
    for (system, operations) in [
        ("ext2-soft-k1600-n32-p64", "|punch /b 19456 20480;truncate /b 10240;append /a 8192"),
        ("ext4-ordered-p32", "create /a;append /a 24576|truncate /a 12800;append /a 1024"),
        (
            "ext4-ordered-k1600-n32-p64",
            "|unlink /b;allocate-keep-size /x 1024 22528;append /a 6144;truncate /x 11323;append /x 3763;append /x 1024",
        ),
    ] {
        let options = LabOptions { choices_per_cut: 4096, ..LabOptions::default() };
        let outcome = run(system, &format!("ops/{operations}"), 1, options);
        assert_eq!(outcome.found, [], "{system}: {operations}");
        assert!(outcome.counts.generated > 20 && outcome.counts.checked > 5, "{:?}", outcome.counts);
    }
}

/// Usage is that of the inodes whenever the power fails: our checker counts.
#[test]
fn usage_of_several_owners() {
    lawful("ext4-ordered-p128", "quotas", WHOLE, 4);
    for mode in ["ordered", "metadata", "full"] {
        lawful(&format!("ext4-{mode}-p128"), "quotas-random", 20, 8);
    }
    lawful("ext4-full-p128", "quotas", 160, 3);
    lawful("ext3-metadata-i256-p128", "quotas", 160, 3);
    lawful("ext4-ordered-k1600-n48-p192", "crowded", 80, 3);
    lawful("ext4-full-k1600-n48-p192", "quotas", 80, 3);
    for impossible in [
        "ext4-soft-p128",
        "ext4-ordered-p160",
        "ext3-ordered-p128",
        "ext3-ordered-i256-x1-p128",
        "ext4-soft-p80",
    ] {
        assert!(impossible.parse::<Ext2System>().is_err(), "{impossible}");
    }
}

/// The reference checker counts as well, and finds nothing.
#[test]
fn usage_by_the_reference_checker() {
    let reference = system("ext4-ordered-p128").unwrap().reference().unwrap();
    if !reference.is_installed() {
        return;
    }
    let options = LabOptions { choices_per_cut: 4, reference_every: 12, ..LabOptions::default() };
    for (system, family, count) in [
        ("ext4-ordered-p128", "quotas", 160),
        ("ext4-full-p128", "quotas-random", 12),
        ("ext4-ordered-k1800-n32-p96", "crowded", 80),
    ] {
        let outcome = run(system, family, count, options);
        assert_eq!(outcome.found, []);
        assert!(outcome.counts.reference > 5, "{:?}", outcome.counts);
    }
}

/// An operation of several steps is whole wherever a transaction ends.
#[test]
fn operations_at_the_end_of_a_transaction() {
    for system in ["ext4-full", "ext3-full"] {
        lawful(system, "ends", WHOLE, 4);
    }
}

/// What moves in a file is seen before or behind: a sample here, all of it with `fstitch crash run`.
#[test]
fn ranges_taken_out_of_files_and_holes_put_in() {
    for mode in ["ordered", "metadata", "full"] {
        lawful(&format!("ext4-{mode}"), "shifts", WHOLE, 4);
        lawful(&format!("ext4-{mode}"), "shifts-random", half(40), 8);
        lawful(&format!("ext4-{mode}"), "shifts-deep", WHOLE, 4);
    }
    lawful("ext4-ordered-o0", "shifts", 100, 16);
    lawful("ext4-full", "shifts-ends", WHOLE, 4);
}

/// Indexes of directories begun, leaves and roots split: a sample here, all of it with `fstitch crash run`. Without a journal none is
/// begun or kept.
#[test]
fn indexes_of_directories_and_their_leaves() {
    for system in ["ext4-ordered", "ext4-metadata", "ext4-full", "ext3-ordered", "ext2-soft"] {
        lawful(system, "leaves", WHOLE, 4);
        lawful(system, "leaves-random", 8, 8);
    }
    for system in ["ext4-ordered-o0", "ext3-full"] {
        lawful(system, "roots", WHOLE, 2);
    }
}

#[test]
fn workloads_of_the_systems_are_found_by_what_they_do() {
    let (family, index) = find("extents/77").unwrap();
    let (again, none) = find(&spelled("extents/77")).unwrap();
    let (one, other) = (family.get(index.unwrap()).unwrap(), again.get(none.unwrap()).unwrap());
    assert_eq!((one.setup, one.ops), (other.setup, other.ops));
    assert_eq!(spelled("seq1/5"), "seq1/5");
    assert!(find("nothing").is_err_and(|error| error.to_string().contains("deep")));
}

/// Soft updates on extents, sums and flexible groups.
#[test]
fn ext4_without_a_journal_and_every_single_operation() {
    for system in ["ext4-soft", "ext4-soft-nosum", "ext4-sync"] {
        lawful(system, "seq1", WHOLE, 8);
    }
}

#[test]
fn ext4_without_a_journal_under_random_runs_and_applications() {
    for system in ["ext4-soft-o0", "ext4-soft-c256-s16", "ext4-soft-nosum-b4096", "ext4-soft-o2-b2048"] {
        lawful(system, "random", half(4), 24);
    }
    for (system, family) in [("ext4-soft", "writers"), ("ext4-soft-nosum", "mail"), ("ext4-soft", "db")] {
        lawful(system, family, half(4), 24);
    }
    assert_eq!("ext4-soft-nosum-c256".parse::<Ext2System>().unwrap().to_string(), "ext4-soft-nosum-c256");
}

/// The same promises where the journal is a device of its own.
#[test]
fn journals_on_their_own_device_and_every_single_operation() {
    for mode in ["ordered", "metadata", "full"] {
        lawful(&format!("ext3-{mode}-x1"), "seq1", WHOLE, 12);
    }
}

#[test]
fn journals_on_their_own_device_and_random_runs_on_every_kind_of_volume() {
    for system in ["ext3-ordered-c256-s16-x1", "ext3-full-b4096-k8192-x1", "ext3-metadata-o2-i256-b2048-x1"] {
        lawful(system, "random", 6, 24);
        assert_eq!(system.parse::<Ext2System>().unwrap().to_string().len(), system.len(), "{system}");
    }
    for (system, family) in
        [("ext3-ordered-x1", "writers"), ("ext3-full-x1", "db"), ("ext3-metadata-x1", "mail")]
    {
        lawful(system, family, 3, 24);
    }
    assert!("ext2-soft-x1".parse::<Ext2System>().is_err(), "there is no journal");
}

/// In a file of another volume the orderings are kept, whatever that volume promises about contents; the last one has
/// figure 6 of the paper: volume and journal in files, on soft updates.
#[test]
fn loopback_volumes_and_every_single_operation() {
    for system in ["ext2-soft@ext3-metadata+sparse", "ext3-ordered-x1@ext2-soft+sparse"] {
        lawful(system, "seq1", WHOLE, 12);
    }
    for outer in [
        "ext2-soft+sparse",
        "ext2-async",
        "ext2-sync",
        "ext3-ordered+sparse",
        "ext3-full+sparse",
        "ext3-full",
    ] {
        lawful(&format!("ext2-soft@{outer}"), "seq1", half(200), 12);
    }
    // Transactions that take everything make operations whole, without any order of the inner volume's own.
    lawful("ext2-async@ext3-full", "seq1", half(200), 12);
}

#[test]
fn loopback_volumes_and_random_runs() {
    for system in [
        "ext2-soft-o0@ext2-soft+sparse",
        "ext2-soft-i256-b2048@ext3-metadata-b2048+sparse",
        "ext2-soft@ext3-ordered-x1-c256+sparse",
        "ext2-soft-s16@ext3-full+sparse",
        "ext3-ordered-x1@ext2-soft+sparse",
        "ext3-full@ext3-ordered+sparse",
        "ext3-metadata@ext2-async",
    ] {
        lawful(system, "random", 6, 24);
    }
    lawful("ext2-soft@ext3-metadata+sparse", "writers", 3, 24);
    lawful("ext3-ordered@ext2-soft+sparse", "db", 1, 24);
}

/// As far as both keep checksums, each keeps its own: in memory, in the log of either and on the medium.
#[test]
fn loopback_volumes_that_keep_checksums() {
    for (system, count) in [
        ("ext4-ordered@ext4-ordered", 60),
        ("ext4-soft@ext4-soft+sparse", 60),
        ("ext4-async@ext4-full", 60),
        ("ext4-soft@ext2-soft+sparse", 30),
        ("ext2-soft@ext4-metadata+sparse", 30),
        ("ext4-full@ext4-ordered+sparse", 30),
        ("ext4-ordered-nosum@ext4-soft", 120),
    ] {
        lawful(system, "seq1", half(count), 12);
        lawful(system, "random", 3, 24);
    }
    lawful("ext4-ordered@ext4-ordered-c256+sparse", "writers", 3, 24);
}

/// The same volume on a device that writes the file and passes no flush on, as the comparison.
#[test]
fn loopback_volumes_without_patches_are_found_corrupt_at_once() {
    for outer in ["ext2-async", "ext2-soft", "ext3-metadata", "ext3-ordered"] {
        let options = LabOptions { choices_per_cut: 64, ..LabOptions::default() };
        let outcome = run(&format!("ext2-soft@{outer}+unordered"), "seq1", 20, options);
        assert!(!outcome.found.is_empty(), "{outer}: {:?}", outcome.counts);
    }
    for impossible in
        ["ext2-soft@", "ext2-soft@ext2-soft+dense", "ext3-ordered@ext3-full", "ext2-soft@ext2-soft-b2048"]
    {
        assert!(fstitch_systems::system(impossible).is_err(), "{impossible}");
    }
}

#[test]
fn milder_media_are_survived_too() {
    for level in [Level::M0, Level::M1] {
        let options = LabOptions { level, choices_per_cut: 64, ..LabOptions::default() };
        assert_eq!(run("ext2-soft", "random", 4, options).found, []);
    }
}

#[test]
fn a_run_without_ordering_is_found_corrupt_at_once() {
    let options = LabOptions { choices_per_cut: 256, ..LabOptions::default() };
    let outcome = run("ext2-async", "seq1", 20, options);
    assert!(!outcome.found.is_empty(), "{:?}", outcome.counts);
}

#[test]
fn failures_replay_shrink_and_are_shown() {
    let options = LabOptions { choices_per_cut: 256, ..LabOptions::default() };
    let found = run("ext2-async", "random", 1, options).found.remove(0);
    let id: StateId = found.id.to_string().parse().unwrap();
    let replay = Replay::new(id, options, fstitch_systems::system).unwrap();
    assert_eq!(replay.verdict, Err(found.violation.clone()));
    let smallest = minimise(&replay, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(smallest.violation.code, found.violation.code);
    let smallest =
        Replay::new(smallest.id.to_string().parse().unwrap(), options, fstitch_systems::system).unwrap();
    assert_eq!(smallest.verdict.as_ref().unwrap_err().code, found.violation.code);
    assert!(smallest.workload.ops.len() <= 3, "{}", smallest.workload.text());
    assert!(smallest.lost().count() <= 2, "{}", smallest.id);
    let text = timeline(&smallest);
    assert!(text.contains("LOST") && text.contains("the power fails"), "{text}");
    let drawing = svg(&smallest);
    assert!(drawing.starts_with("<svg") && drawing.contains("LOST"), "{drawing}");
}

/// Prevents a drawing that shows everything but why: which write needed which, by the names of files.
#[test]
fn a_story_tells_what_needed_what() {
    let lab = Lab::new(system("ext2-async").unwrap(), LabOptions::default()).unwrap();
    let workload = Workload::parse("mkdir /d|create /d/new;write /d/new 0 3000;sync").unwrap();
    let recording = lab.record(&workload).unwrap();
    let mut cut = None;
    fstitch_crashlab::medium::for_each_cut(lab.history(&recording), &recording.log, &mut |found| {
        if found.atoms.iter().any(|atom| atom.block == bitmap(&found.base)) {
            cut = Some(found.clone());
        }
    });
    let cut = cut.unwrap();
    // Everything arrived but the bitmap of inodes.
    let newest = |atom: &Atom| u8::try_from(atom.candidates.len() - 1).unwrap();
    let choice = cut.atoms.iter().map(|atom| if atom.block == bitmap(&cut.base) { 0 } else { newest(atom) });
    let id = StateId {
        system: "ext2-async".into(),
        workload: format!("ops/{}", workload.text()),
        level: Level::M2,
        cut: cut.at,
        choice: choice.collect(),
    };
    let replay = Replay::new(id, LabOptions::default(), fstitch_systems::system).unwrap();
    let told = story(&replay);
    assert_eq!(told.violation.as_ref().unwrap().0, "inode-marked-free", "{told:?}");
    let blocks: Vec<&str> = told.blocks.values().map(String::as_str).collect();
    for what in ["names in /d", "contents of /d/new", "bitmap of inodes", "superblock"] {
        assert!(blocks.contains(&what), "{what}: {blocks:?}");
    }
    let broken: Vec<&str> =
        told.needs.iter().filter(|need| need.broken).map(|need| need.why.as_str()).collect();
    assert!(broken.len() == 1 && broken[0].ends_with("needs its bit"), "{broken:?}");
    let kept = |why: &str| told.needs.iter().any(|need| !need.broken && need.why.starts_with(why));
    assert!(
        kept("the name \"new\" needs inode") && kept("a pointer of /d/new needs block"),
        "{:?}",
        told.needs
    );
    let drawing = svg(&replay);
    assert!(drawing.contains("url(#broken)") && drawing.contains("names in /d"), "{drawing}");
}

/// The block of the first group's bitmap of inodes, by its descriptor.
fn bitmap(base: &Base) -> u64 {
    u64::from(u32::from_le_bytes(base.block(2)[4..8].try_into().unwrap()))
}

#[test]
fn lawful_states_replay_as_lawful() {
    let lab = Lab::new(Arc::new(Ext2System::default()), LabOptions::default()).unwrap();
    let workload = Workload::parse("create /a|append /a 3000;fsync /a").unwrap();
    let recording = lab.record(&workload).unwrap();
    let mut cuts = vec![];
    fstitch_crashlab::medium::for_each_cut(lab.history(&recording), &recording.log, &mut |cut| {
        cuts.push(cut.clone())
    });
    let cut = cuts.iter().find(|cut| cut.atoms.len() > 2).unwrap();
    let choice = vec![0; cut.atoms.len()];
    let id = StateId {
        system: "ext2-soft".into(),
        workload: workload.name,
        level: Level::M2,
        cut: cut.at,
        choice,
    };
    assert_eq!(
        Replay::new(id.clone(), LabOptions::default(), fstitch_systems::system).unwrap().verdict,
        Ok(())
    );
    let gone = StateId { cut: 1_000_000, ..id };
    assert!(Replay::new(gone, LabOptions::default(), fstitch_systems::system).is_err());
}

#[test]
fn every_family_has_a_first_workload() {
    for family in families() {
        let workload = family.get(0).unwrap();
        assert!(!workload.ops.is_empty() && !family.about().is_empty(), "{}", family.name());
        let text = workload.text();
        assert_eq!(Workload::parse(&text).unwrap().text(), text);
    }
}

/// Some programs of groups: `fstitch crash groups` runs any number of them.
fn ordered_groups(system: &str, level: Level, programs: std::ops::Range<u64>) {
    let tested = fstitch_systems::system(system).unwrap();
    let mut counts = GroupCounts::default();
    for number in programs {
        match judge_group_program(&*tested, number, GroupOptions { level, ..GroupOptions::default() }) {
            Ok(more) => counts.add(&more),
            Err(violation) => panic!("{violation}"),
        }
    }
    println!("{system} at {level}: {counts:?}");
    assert!(counts.telling > counts.programs, "{counts:?}");
}

#[test]
fn groups_are_ordered_under_every_mechanism() {
    for system in [
        "ext2-soft",
        "ext2-soft-o0",
        "ext2-soft-c256",
        "ext2-sync",
        "ext3-ordered",
        "ext3-metadata",
        "ext3-full",
        "ext3-ordered-c256",
        "ext2-soft@ext3-ordered+sparse",
        "ext3-metadata@ext2-soft",
        "ext2-soft@ext3-full",
        "ext4-ordered@ext4-ordered+sparse",
    ] {
        ordered_groups(system, Level::M2, 0..half(8));
    }
    // A torn block is as good as none where a log has it, or where nothing points to it yet.
    for system in ["ext3-ordered", "ext3-metadata", "ext3-full"] {
        ordered_groups(system, Level::M3, 0..half(8));
    }
}

#[test]
fn operations_that_are_not_told_of_their_groups_are_noticed() {
    let deaf = GroupOptions { is_deaf: true, ..GroupOptions::default() };
    for system in ["ext2-soft", "ext3-metadata", "ext3-ordered"] {
        let tested = fstitch_systems::system(system).unwrap();
        let noticed = (0..200).any(|number| judge_group_program(&*tested, number, deaf).is_err());
        assert!(noticed, "{system}");
    }
}
