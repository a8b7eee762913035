//! The model checks itself, so that a mistake in the reference does not pass for one in what it judges.

use std::collections::BTreeMap;

use fstitch_core::{CheckReport, FileKind, FindingClass, InodeNo};

use super::ROOT;
use super::sparse::SparseBytes;
use super::state::State;

impl State {
    pub(super) fn verify(&self) -> CheckReport {
        let mut report = CheckReport::default();
        let mut counts: BTreeMap<InodeNo, u32> = BTreeMap::from([(ROOT, 2)]);
        for (dir, node) in &self.nodes {
            let Ok(names) = node.names() else { continue };
            for (name, named) in &names.by_name {
                if !self.nodes.contains_key(&named.ino) {
                    let text = format!("directory {dir} names missing inode {}: {name:?}", named.ino);
                    report.push(FindingClass::Corrupt, "dangling-name", text);
                }
                *counts.entry(named.ino).or_default() += 1;
                if named.kind == FileKind::Directory {
                    *counts.entry(named.ino).or_default() += 1;
                    *counts.entry(*dir).or_default() += 1;
                }
            }
        }
        self.verify_counts(&counts, &mut report);
        let used = self.nodes.values().filter_map(|node| node.bytes().ok()).map(SparseBytes::allocated).sum();
        if self.blocks_used != used {
            let text = format!("{} blocks are counted as used, {used} are", self.blocks_used);
            report.push(FindingClass::Corrupt, "block-count", text);
        }
        report
    }

    fn verify_counts(&self, counts: &BTreeMap<InodeNo, u32>, report: &mut CheckReport) {
        for (ino, node) in &self.nodes {
            let names = counts.get(ino).copied().unwrap_or(0);
            if node.attr.nlink != names {
                let text = format!("inode {ino} counts {} names and has {names}", node.attr.nlink);
                report.push(FindingClass::Corrupt, "link-count", text);
            }
            if node.attr.nlink == 0 && node.refs == 0 {
                report.push(FindingClass::Corrupt, "unreferenced", format!("inode {ino} should be free"));
            }
        }
    }
}
