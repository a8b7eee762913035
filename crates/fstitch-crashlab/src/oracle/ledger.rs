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
    /// Objects of which some name became stable, and in which version last.
    named: BTreeMap<ObjectId, Version>,
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
        let children = ledger.at(version).get(id).into_iter().flat_map(|dir| dir.names.values());
        self.named.extend(children.map(|&child| (child, version)));
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
                self.named.insert(id, version);
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

    /// The last version in which some name of `id` became stable. That a name is stable with what it led to later says nothing of what
    /// it led to before: that may have had another name by then, which nobody synced.
    #[must_use]
    pub fn named(&self, ledger: &Ledger, id: ObjectId) -> Option<Version> {
        let everything = self.everything;
        let in_all = ledger.at(everything).names_of(id).next().map(|_| everything);
        self.named.get(&id).copied().max(in_all)
    }
}

#[cfg(test)]
mod tests {
    use fstitch_core::{FileKind, InodeNo};

    use super::super::tree::Object;
    use super::*;

    const ROOT: ObjectId = ObjectId { ino: InodeNo(2), generation: 0 };
    const FIRST: ObjectId = ObjectId { ino: InodeNo(5), generation: 0 };
    const SECOND: ObjectId = ObjectId { ino: InodeNo(6), generation: 0 };

    /// A root with these names.
    fn tree(names: &[(&str, ObjectId)]) -> Tree {
        let object = |kind, names| Object {
            kind,
            perm: 0,
            uid: 0,
            gid: 0,
            project: 0,
            rdev: 0,
            size: 0,
            chunks: BTreeMap::new(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            names,
        };
        let mut objects: BTreeMap<ObjectId, Arc<Object>> =
            names.iter().map(|&(_, id)| (id, Arc::new(object(FileKind::Regular, BTreeMap::new())))).collect();
        let names = names.iter().map(|&(name, id)| (name.as_bytes().to_vec(), id)).collect();
        objects.insert(ROOT, Arc::new(object(FileKind::Directory, names)));
        Tree { root: ROOT, objects, nameless: BTreeMap::new(), homes: BTreeMap::new() }
    }

    /// A file is renamed, another one gets its old name, and these are synced.
    fn named(syncs: &[(ObjectId, Version)]) -> [Option<Version>; 2] {
        let mut ledger = Ledger::new(tree(&[]));
        ledger.push(tree(&[("name", FIRST)]));
        ledger.push(tree(&[("other", FIRST)]));
        ledger.push(tree(&[("other", FIRST), ("name", SECOND)]));
        for &(id, version) in syncs {
            ledger.promise(What::Object { id, data_only: false }, version);
        }
        let bounds = Bounds::of(&ledger, syncs.len());
        [FIRST, SECOND].map(|id| bounds.named(&ledger, id))
    }

    #[test]
    fn a_name_that_is_stable_says_nothing_of_what_had_it_before() {
        assert_eq!(named(&[]), [None, None]);
        assert_eq!(named(&[(SECOND, 3)]), [None, Some(3)]);
        assert_eq!(named(&[(FIRST, 1), (SECOND, 3)]), [Some(1), Some(3)]);
        assert_eq!(named(&[(FIRST, 1), (FIRST, 2)]), [Some(2), None]);
        // A directory is synced with all its names.
        assert_eq!(named(&[(ROOT, 2), (SECOND, 3)]), [Some(2), Some(3)]);
        assert_eq!(named(&[(ROOT, 3)]), [Some(3), Some(3)]);
    }

    #[test]
    fn what_had_a_name_when_everything_was_stable_is_named() {
        let mut ledger = Ledger::new(tree(&[("name", FIRST)]));
        ledger.push(tree(&[("name", FIRST), ("new", SECOND)]));
        let bounds = Bounds::of(&ledger, 0);
        assert_eq!([FIRST, SECOND].map(|id| bounds.named(&ledger, id)), [Some(0), None]);
        ledger.promise(What::Everything, 1);
        let bounds = Bounds::of(&ledger, 1);
        assert_eq!([FIRST, SECOND].map(|id| bounds.named(&ledger, id)), [Some(1), Some(1)]);
    }
}
