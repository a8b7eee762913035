//! What the laboratory takes apart, as far as the search for images goes: something that shows what a medium holds.

use std::fmt::Debug;
use std::sync::Arc;

use fstitch_core::{BlockDevice, FindingClass};

use crate::oracle::{Tree, Violation};
use crate::system::System;

/// Recovers a medium and reads all of it. Which block is read next must follow from what was read so far: no clock, no
/// threads, nothing kept from earlier media. Every [`System`] is one, and shows a [`Tree`].
pub trait Subject {
    /// What is shown.
    type Shown: PartialEq + Debug;

    /// Recovers what a crash has left and reads it. The device is a copy of the image.
    ///
    /// # Errors
    /// What no crash may leave, whatever was promised.
    fn show(&self, device: Arc<dyn BlockDevice>) -> Result<Self::Shown, Violation>;

    /// The same, sharing memory with what looks much `like` it, and the number of a checker's findings that a crash may leave.
    ///
    /// # Errors
    /// The same.
    fn show_like(
        &self,
        device: Arc<dyn BlockDevice>,
        like: Option<&Self::Shown>,
    ) -> Result<(Self::Shown, u64), Violation> {
        let _ = like;
        Ok((self.show(device)?, 0))
    }
}

impl Subject for dyn System + '_ {
    type Shown = Tree;

    fn show(&self, device: Arc<dyn BlockDevice>) -> Result<Tree, Violation> {
        self.show_like(device, None).map(|(tree, _)| tree)
    }

    fn show_like(&self, device: Arc<dyn BlockDevice>, like: Option<&Tree>) -> Result<(Tree, u64), Violation> {
        let recovered = self.before_mount(&device);
        recovered.map_err(|error| Violation::new("recovery-failed", error.to_string()))?;
        let report =
            self.check(&device).map_err(|error| Violation::new("check-failed", error.to_string()))?;
        if let Some(finding) = report.findings.iter().find(|finding| finding.class == FindingClass::Corrupt) {
            return Err(Violation::new(finding.code, finding.text.clone()));
        }
        let mounted = self.open(device).map_err(|error| Violation::new("mount-failed", error.to_string()))?;
        let tree = Tree::read(mounted.fs(), like);
        let tree = tree.map_err(|error| Violation::new("unreadable", error.to_string()))?;
        Ok((tree, report.total))
    }
}
