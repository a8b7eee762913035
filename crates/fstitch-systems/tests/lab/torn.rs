//! A medium that tears blocks between their sectors (level M3), under journals with checksums.
//!
//! What it prevents: a superblock whose sum is wrong when half of it was written, and a torn copy that recovery believes.

use fstitch_crashlab::{LabOptions, Level};

use super::run;

#[test]
fn ext4_with_a_journal_on_a_medium_that_tears_blocks() {
    let options = LabOptions { level: Level::M3, choices_per_cut: 8, ..LabOptions::default() };
    for mode in ["ordered", "metadata", "full"] {
        for (family, count) in [("seq1", 500), ("rare1", 200), ("extents", 40), ("random", 8)] {
            let outcome = run(&format!("ext4-{mode}"), family, count, options);
            assert_eq!(outcome.found, [], "{mode}, {family}");
            assert!(outcome.counts.checked > 30, "{:?}", outcome.counts);
        }
    }
}
