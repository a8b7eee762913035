//! Changes of features of a volume that is made ([`super::tuned`]), cut at writes of all steps, and finished by e2fsck, by our repair, or by the same
//! command again.
//!
//! What it prevents: a volume that half has a feature; files that a check loses, or finds without a name, because of that.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::{FileSystem, MemDevice, RepairMode, RepairOptions};
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use fstitch_fs::ext2::journal::read_superblock;
use fstitch_fs::ext2::tuning::tune;

use super::cut::{Cut, Lossy, is_thorough};
use super::resize::repaired;
use super::support::{Scratch, have};
use super::tree::{Tree, fill, spread};
use super::tuned::{features, full_directory, mechanism, said, tree, tuned};
use super::{NOW, device, e2fsck_is_content, made, mounted, recovered};

/// A change of features, with the power failing.
struct Trial {
    image: Vec<u8>,
    list: &'static str,
    expected: Tree,
}

impl Trial {
    /// Writes that it takes.
    fn writes(&self) -> usize {
        let below = device(self.image.clone());
        let counted = Cut::never(&below);
        tune(&counted, &features(self.list), NOW).unwrap();
        counted.written()
    }

    /// Cuts it after so many writes, in order or with only some of what was not flushed.
    fn cut(&self, writes: usize, in_order: bool) -> Arc<MemDevice> {
        let below = device(self.image.clone());
        let seed = u64::try_from(writes).unwrap();
        let done = if in_order {
            tune(&Cut::after(&below, writes), &features(self.list), NOW)
        } else {
            tune(&Lossy::after(&below, writes, seed), &features(self.list), NOW)
        };
        assert!(done.is_err(), "{}: {writes} writes", self.list);
        below
    }

    /// Finishes it: by the same command again, by our repair, or by e2fsck.
    fn finish(&self, scratch: &Scratch, name: &str, (cut, way): (&MemDevice, usize)) {
        let below = device(cut.image());
        let name = format!("{name}, {}", ["again", "repaired", "e2fsck"][way]);
        match way {
            0 => {}
            1 => {
                let options = RepairOptions { mode: RepairMode::Yes, now: NOW };
                let report = repair_ext2(&*below, options).unwrap();
                assert_eq!(report.left.total, 0, "{name}: {:#?}", report.left.findings);
                self.is_sound(scratch, &name, &below);
            }
            _ => {
                repaired(scratch, &name, &below);
                if read_superblock(&*below).unwrap().1.quota_inodes != [0; 3] {
                    // It counts what directories have, and makes their indexes anew behind that.
                    repaired(scratch, &name, &below);
                }
                self.is_sound(scratch, &name, &below);
            }
        }
        tuned(&name, &*below, self.list);
        self.is_whole(scratch, &name, &below);
    }

    fn is_sound(&self, scratch: &Scratch, name: &str, below: &Arc<MemDevice>) {
        e2fsck_is_content(scratch, name, &below.image());
        assert_eq!(recovered(&**below), None, "{name}");
        let report = check_ext2(&**below).unwrap();
        assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
        let found = tree(below);
        found.expect(&self.expected, name);
        let copy = device(below.image());
        let fs = mounted(&copy, mechanism(&*copy));
        if let Ok(lost) = fs.walk(b"/lost+found") {
            let mut names = 0;
            fs.readdir(lost.attr.ino, 0, &mut |_| {
                names += 1;
                true
            })
            .unwrap();
            assert_eq!(names, 2, "{name}: nothing was found without a name");
        }
    }

    fn is_whole(&self, scratch: &Scratch, name: &str, below: &Arc<MemDevice>) {
        self.is_sound(scratch, name, below);
        let said = said(scratch, &below.image());
        for word in self.list.split(',') {
            let has = said.iter().any(|has| has == word.trim_start_matches('^'));
            assert_eq!(has, !word.starts_with('^'), "{name}: {word} of {said:?}");
        }
    }
}

#[test]
fn cut_at_any_write_nothing_is_lost_and_it_is_finished() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-tuned-cut");
    let shapes: [(&str, &[&str], &'static [&'static str]); 3] = [
        (
            "none",
            &["-O", "^metadata_csum", "-b", "1024", "-g", "2048"],
            &["metadata_csum", "quota,project", "uninit_bg"],
        ),
        (
            "uninit_bg",
            &["-O", "^metadata_csum,uninit_bg,orphan_file", "-b", "1024", "-g", "2048"],
            &["metadata_csum,quota", "^uninit_bg"],
        ),
        (
            "sums",
            &["-b", "1024", "-g", "2048", "-O", "quota,project"],
            &["^metadata_csum", "^quota", "^project", "^metadata_csum,uninit_bg"],
        ),
    ];
    for (name, options, lists) in shapes {
        let below = device(made(&scratch, options));
        let fs = mounted(&below, mechanism(&*below));
        full_directory(&fs);
        fill(&fs, 1).unwrap();
        spread(&fs, 2).unwrap();
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        for &list in lists {
            let trial = Trial { image: below.image(), list, expected: expected.clone() };
            let writes = trial.writes();
            println!("{name}, {list}: {writes} writes");
            let (near, step) =
                if is_thorough() { (60, (writes / 60).max(1)) } else { (1, (writes / 3).max(1)) };
            let ends = (0..near.min(writes)).chain(writes.saturating_sub(near)..writes);
            let cuts: BTreeSet<usize> = ends.chain((0..writes).step_by(step)).collect();
            for (turn, cut) in cuts.into_iter().enumerate() {
                let left = trial.cut(cut, turn % 2 == 0);
                let ways = if is_thorough() { 0..3 } else { turn % 3..turn % 3 + 1 };
                let name = format!("{name}, {list}, {cut} of {writes} writes");
                ways.for_each(|way| trial.finish(&scratch, &name, (&left, way)));
            }
        }
    }
}
