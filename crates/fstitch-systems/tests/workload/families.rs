//! Every family: its workloads do what their family is for, and keep their numbers.

use std::hash::Hasher as _;
use std::sync::Arc;

use fstitch_core::Errno;
use fstitch_crashlab::workload::Family;
use fstitch_crashlab::{Lab, LabOptions};
use fstitch_systems::Ext2System;
use fstitch_systems::workloads::{families, find};
use twox_hash::XxHash3_64;

use super::run_all;

/// `count` numbers below `len`, evenly spread, with every residue of small divisors among them.
fn spread(len: u64, count: u64) -> impl Iterator<Item = u64> {
    let stride = (len / count) | 1;
    (0..count).map(move |at| (at * stride + at % 7) % len)
}

#[test]
fn every_single_operation_means_something() {
    let tally = run_all("seq1", 0..find("seq1").unwrap().0.len());
    assert_eq!(tally.success(), 100);
    for verb in [
        "create",
        "mkdir",
        "mknod",
        "symlink",
        "link",
        "unlink",
        "rmdir",
        "rename",
        "rename-noreplace",
        "exchange",
        "write",
        "append",
        "truncate",
        "allocate",
        "punch",
        "zero",
        "zero-keep-size",
        "setxattr",
        "removexattr",
        "chmod",
        "chown",
        "tmpfile",
        "hold",
        "release",
        "fsync",
        "fdatasync",
        "sync",
        "write-out",
    ] {
        assert!(tally.done.contains_key(verb), "{verb} never succeeds");
    }
}

#[test]
fn rare_operations_mean_something() {
    let tally = run_all("rare1", 0..find("rare1").unwrap().0.len());
    assert_eq!(tally.success(), 100);
}

#[test]
fn steps_on_extents_mean_something() {
    for name in ["extents", "deep"] {
        let tally = run_all(name, 0..find(name).unwrap().0.len());
        assert_eq!(tally.success(), 100, "{name}");
    }
    assert!(run_all("extents-random", 0..100).success() >= 95);
}

#[test]
fn ranges_that_go_and_come_mean_something() {
    for name in ["shifts", "shifts-deep", "shifts-ends"] {
        let tally = run_all(name, 0..find(name).unwrap().0.len());
        assert_eq!(tally.success(), 100, "{name}");
    }
    assert!(run_all("shifts-random", 0..100).success() >= 50);
}

#[test]
fn steps_on_indexes_mean_something() {
    for name in ["leaves", "roots"] {
        let tally = run_all(name, 0..find(name).unwrap().0.len());
        assert_eq!(tally.success(), 100, "{name}");
    }
    assert!(run_all("leaves-random", 0..100).success() >= 50);
}

#[test]
fn pairs_and_triples_mean_something() {
    for (name, least) in [("seq2", 80), ("seq3", 80), ("rare2", 80)] {
        let len = find(name).unwrap().0.len();
        let tally = run_all(name, spread(len, 4_000));
        assert!(tally.success() >= least, "{name}: {} %", tally.success());
    }
}

#[test]
fn random_runs_mean_something() {
    for (name, least) in [("random", 50), ("writers", 50), ("full", 30), ("brim", 30), ("inodes", 30)] {
        let tally = run_all(name, 0..100);
        assert!(tally.success() >= least, "{name}: {} %", tally.success());
        assert_eq!(
            tally.errors.contains_key("ENOSPC"),
            ["full", "brim", "inodes"].contains(&name),
            "{name}: {:?}",
            tally.errors
        );
    }
}

#[test]
fn applications_succeed() {
    // A database whose journal was truncated finds it there when it makes the next one.
    for name in ["untar", "rm", "postmark", "mail", "editor", "db"] {
        let tally = run_all(name, 0..20);
        assert!(tally.success() >= 90, "{name}: {} %", tally.success());
        assert!(!tally.errors.contains_key("ENOSPC"), "{name} does not fit");
    }
}

/// On the volume that the laboratory uses unless told otherwise, trees fit and `full` runs out of room.
#[test]
fn workloads_fit_the_usual_volume() {
    for name in ["untar", "rm", "postmark", "random", "writers"] {
        assert_eq!(refused_for_room(name, 3), 0, "{name}");
    }
    for (name, least) in [("full", 1), ("brim", 20), ("inodes", 20)] {
        let refused = refused_for_room(name, 3);
        assert!(refused >= least, "{name}: {refused}");
    }
}

/// Operations that found no room in the first `count` workloads of a family.
fn refused_for_room(name: &str, count: u64) -> usize {
    let lab = Lab::new(Arc::new(Ext2System::default()), LabOptions::default()).unwrap();
    let (family, _) = find(name).unwrap();
    let no_room = Errno::NOSPC.to_string();
    let refused = |index| {
        let recording = lab.record(&family.get(index).unwrap()).unwrap();
        recording.refused.values().filter(|text| **text == no_room).count()
    };
    (0..count).map(refused).sum()
}

/// A hash of the text of these workloads.
fn hash(family: &dyn Family, indices: impl Iterator<Item = u64>) -> u64 {
    let mut hash = XxHash3_64::with_seed(0);
    for index in indices {
        hash.write(family.get(index).unwrap().text().as_bytes());
        hash.write(b"\n");
    }
    hash.finish()
}

/// A workload is found by its family's name.
#[test]
fn no_two_families_have_a_name() {
    let all = families();
    let names: std::collections::BTreeSet<&str> = all.iter().map(|family| family.name()).collect();
    assert_eq!(names.len(), all.len());
}

/// A change here makes every published result and replay line mean something else: new workloads get new families.
#[test]
fn numbers_mean_the_same_for_ever() {
    let known = [
        ("seq1", 8_905_774_838_192_767_542),
        ("seq2", 13_335_729_398_013_037_514),
        ("seq3", 4_203_885_149_942_595_440),
        ("rare1", 1_994_447_147_476_003_547),
        ("rare2", 16_554_476_138_560_389_923),
        ("random", 14_712_870_962_709_593_097),
        ("full", 11_886_899_725_158_549_333),
        ("writers", 2_335_280_321_136_488_572),
        ("brim", 8_561_909_542_278_652_485),
        ("inodes", 11_161_726_963_412_742_187),
        ("shares", 13_221_447_449_584_632_693),
        ("untar", 12_698_170_162_207_052_992),
        ("rm", 15_363_523_970_443_487_317),
        ("postmark", 1_197_807_632_894_420_237),
        ("mail", 3_165_991_794_290_743_387),
        ("editor", 10_932_915_288_555_400_622),
        ("db", 4_269_322_904_109_282_126_u64),
        ("reuse", 17_921_183_183_733_159_634),
        ("attrs", 1_377_585_443_436_635_018),
        ("sizes", 1_309_376_204_201_648_522),
        ("groups", 1_827_136_637_509_779_233),
        ("indexed", 991_634_721_489_413_990),
        ("indexed-apart", 17_322_260_307_899_425_077),
        ("seams", 9_181_725_688_390_675_255),
        ("shared", 8_798_936_556_603_257_042),
        ("names", 15_007_867_053_552_839_317),
        ("extents", 8_168_808_250_400_388_672),
        ("deep", 6_554_606_170_345_179_984),
        ("extents-random", 949_590_147_277_924_362),
        ("inside", 55_076_409_380_818_765),
        ("inside-random", 582_593_263_160_106_205),
        ("leaves", 4_184_929_222_370_304_978),
        ("roots", 14_565_300_609_525_628_800),
        ("leaves-random", 17_986_262_776_297_808_191),
        ("ends", 15_756_926_775_314_563_176),
        ("shifts-ends", 8_721_096_282_717_401_944),
        ("shifts", 9_287_440_547_339_961_001),
        ("shifts-deep", 16_093_889_284_629_300_864),
        ("shifts-random", 2_734_276_605_757_797_796),
        ("crowded", 10_138_504_494_746_466_906),
        ("crowded-random", 6_980_989_832_405_324_489),
        ("quotas", 9_538_081_494_615_932_191),
        ("quotas-random", 12_470_618_972_080_778_179),
    ];
    let now: Vec<(String, u64)> = families()
        .iter()
        .map(|family| {
            let hash = match family.len() {
                u64::MAX => hash(&**family, 0..20),
                len if len < 5_000 => hash(&**family, 0..len),
                len => hash(&**family, spread(len, 5_000)),
            };
            (family.name().to_owned(), hash)
        })
        .collect();
    let known: Vec<(String, u64)> = known.map(|(name, hash)| (name.to_owned(), hash)).to_vec();
    assert_eq!(now, known);
}
