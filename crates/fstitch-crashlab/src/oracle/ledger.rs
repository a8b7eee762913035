//! What a workload saw and was promised: trees after every operation, and what each sync made stable.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tree::{ObjectId, Tree};

/// Version `n` of a volume is its tree before operation `n`; the last one is the tree after all of them.
pub type Version = usize;

/// What returned from a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Everything is stable.
    Everything,
    /// An object is stable.
    Object {
        /// Which.
        id: ObjectId,
        /// Contents and names only (`fdatasync`).
        data_only: bool,
    },
}

/// A sync that returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// What it made stable.
    pub what: What,
    /// In which version.
    pub version: Version,
}

/// The past of a volume.
#[derive(Clone, Debug)]
pub struct Ledger {
    trees: Vec<Arc<Tree>>,
    promises: Vec<Promise>,
}

impl Ledger {
    /// A volume that shows `tree`, all of it stable.
    #[must_use]
    pub fn new(tree: Tree) -> Self {
        Self { trees: vec![Arc::new(tree)], promises: Vec::new() }
    }

    /// The newest version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.trees.len() - 1
    }

    /// The newest tree.
    #[must_use]
    pub fn tree(&self) -> &Arc<Tree> {
        &self.trees[self.version()]
    }

    /// The tree of a version.
    #[must_use]
    pub fn at(&self, version: Version) -> &Arc<Tree> {
        &self.trees[version.min(self.version())]
    }

    /// An operation ended and left `tree`.
    pub fn push(&mut self, tree: Tree) {
        let same = *self.trees[self.version()] == tree;
        let tree = if same { Arc::clone(self.tree()) } else { Arc::new(tree) };
        self.trees.push(tree);
    }

    /// A sync of `what` returned; returns the promise's number.
    pub fn promise(&mut self, what: What, version: Version) -> u32 {
        self.promises.push(Promise { what, version });
        u32::try_from(self.promises.len() - 1).expect("fewer than 2^32 operations")
    }

    /// The promises, in order.
    #[must_use]
    pub fn promises(&self) -> &[Promise] {
        &self.promises
    }
}

/// What the first promises of a ledger guarantee: the oldest version that a crash may show, thing by thing.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    everything: Version,
    attributes: BTreeMap<ObjectId, Version>,
    contents: BTreeMap<ObjectId, Version>,
    /// All names in a directory.
    directories: BTreeMap<ObjectId, Version>,
    names: BTreeMap<ObjectId, BTreeMap<Vec<u8>, Version>>,
    /// Names that an object had, by directory, name and object: from this version on they are not its names.
    gone: BTreeMap<(ObjectId, Vec<u8>, ObjectId), Version>,
}

fn at_least(bound: Option<&Version>, floor: Version) -> Version {
    bound.copied().unwrap_or(0).max(floor)
}

impl Bounds {
    /// What the first `promises` promises of `ledger` guarantee.
    #[must_use]
    pub fn of(ledger: &Ledger, promises: usize) -> Self {
        let mut bounds = Self::default();
        for promise in &ledger.promises[..promises.min(ledger.promises.len())] {
            match promise.what {
                What::Everything => bounds.everything = promise.version,
                What::Object { id, data_only } => bounds.object(ledger, promise.version, id, data_only),
            }
        }
        bounds
    }

    fn object(&mut self, ledger: &Ledger, version: Version, id: ObjectId, data_only: bool) {
        self.contents.insert(id, version);
        self.directories.insert(id, version);
        if !data_only {
            self.attributes.insert(id, version);
        }
        self.way(ledger, version, id);
        if data_only {
            return;
        }
        // The names that it had before and has no more are gone for good.
        for older in self.everything..version {
            for (dir, name) in ledger.at(older).names_of(id) {
                if ledger.at(version).binding(dir, name) != Some(id) {
                    self.gone.insert((dir, name.to_vec(), id), version);
                }
            }
        }
    }

    /// All names of `id`, those of the directories that hold them, and so on up to the root.
    fn way(&mut self, ledger: &Ledger, version: Version, id: ObjectId) {
        let tree = ledger.at(version);
        let mut queue = vec![id];
        let mut seen = Vec::new();
        while let Some(id) = queue.pop() {
            if seen.contains(&id) {
                continue;
            }
            seen.push(id);
            for (dir, name) in tree.names_of(id) {
                self.names.entry(dir).or_default().insert(name.to_vec(), version);
                queue.push(dir);
            }
        }
    }

    /// The oldest version that an object's attributes may be from.
    #[must_use]
    pub fn attributes(&self, id: ObjectId) -> Version {
        at_least(self.attributes.get(&id), self.everything)
    }

    /// The oldest version that any part of an object's contents may be from.
    #[must_use]
    pub fn contents(&self, id: ObjectId) -> Version {
        at_least(self.contents.get(&id), self.everything)
    }

    /// The oldest version that a name may be from.
    #[must_use]
    pub fn name(&self, dir: ObjectId, name: &[u8]) -> Version {
        let alone = self.names.get(&dir).and_then(|names| names.get(name));
        at_least(alone, at_least(self.directories.get(&dir), self.everything))
    }

    /// The oldest version from which a name may still lead to `child`.
    #[must_use]
    pub fn leads_to(&self, dir: ObjectId, name: &[u8], child: ObjectId) -> Version {
        at_least(self.gone.get(&(dir, name.to_vec(), child)), self.name(dir, name))
    }

    /// A version in which some name of `id` became stable, if it had one then.
    #[must_use]
    pub fn named(&self, ledger: &Ledger, id: ObjectId) -> Option<Version> {
        let versions = std::iter::once(self.everything)
            .chain(self.contents.get(&id).copied())
            .chain(self.directories.values().copied())
            .chain(self.names.values().flat_map(|names| names.values().copied()));
        let tree = |version| ledger.at(version);
        let stable = |&version: &Version| {
            tree(version).names_of(id).any(|(dir, name)| self.name(dir, name) >= version)
        };
        versions.filter(stable).max()
    }
}
