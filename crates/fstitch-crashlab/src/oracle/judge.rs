//! Compares what a crash left with what it may leave.
//!
//! Soft updates order changes and make no operation atomic, so every part of every object is judged by itself: each name,
//! each byte, each attribute must be as it was in **some** version between the one that was promised and the one that the
//! operation under way would have made. On top of that, nothing that had a name all the time may be without one.
//!
//! | part | may be as in | and also |
//! |---|---|---|
//! | a name of a directory | any version from its bound on | – |
//! | a name of a directory in the middle of a move, which `..` does not confirm | as a name | and not promised: recovery takes it away |
//! | a file's length | any version from the contents' bound on | between two versions that follow each other: long operations take steps |
//! | a byte | any version from the contents' bound on that is long enough to have it | and after which it was not cut off before the file became as long as it is: growth comes after earlier shrinking |
//! | owner, project, mode, an extended attribute | any version from the attributes' bound on | – |
//! | an object that had a name in every version since one was promised | must have a name | – |
//!
//! A journal makes operations atomic ([`Promise`]): all names, attributes and lengths are then those of one version, in full
//! mode contents as well; without ordered data, bytes are judged only where the bound is the newest version.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::FileKind;
use fstitch_core::num::{to_u64, to_usize};

use super::ledger::{Bounds, Ledger, Version};
use super::tree::{CHUNK, Object, ObjectId, Tree};
use crate::medium::Progress;
use crate::system::Promise;

/// What a crash must not leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct Violation {
    /// A stable machine-readable name.
    pub code: &'static str,
    /// What and where, for people.
    pub text: String,
}

impl Violation {
    /// A violation.
    #[must_use]
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// The states of one object, each with the version from which it was so; `None` before and after its life.
type Life = Vec<(Version, Option<Arc<Object>>)>;

/// What a cut may show: all versions from the promised ones to the one under way.
pub struct Window<'a> {
    ledger: &'a Ledger,
    bounds: Bounds,
    last: Version,
    promise: Promise,
    lives: BTreeMap<ObjectId, Life>,
    /// What must have a name.
    must: Vec<ObjectId>,
}

impl<'a> Window<'a> {
    /// What a cut after this much progress may show.
    #[must_use]
    pub fn new(ledger: &'a Ledger, progress: Progress, promise: Promise) -> Self {
        let count = |n: u32| to_usize(n);
        let bounds = Bounds::of(ledger, count(progress.promises));
        let last = count(progress.begun).min(ledger.version());
        let lives = lives(ledger, last);
        let ids = lives.keys().copied();
        let must = ids.filter(|&id| must_have_a_name(ledger, &bounds, last, id)).collect();
        Self { ledger, bounds, last, promise, lives, must }
    }

    /// Judges what a crash left.
    ///
    /// # Errors
    /// The first violation.
    pub fn judge(&self, tree: &Tree) -> Result<(), Violation> {
        if let Some(lost) = self.must.iter().find(|id| tree.get(**id).is_none()) {
            let path = self.ledger.at(self.last).path_of(*lost);
            return Err(Violation::new("lost", format!("{path} was stable and has no name any more")));
        }
        tree.objects.iter().try_for_each(|(id, object)| {
            self.object(tree, *id, object)
                .map_err(|(code, what)| Violation::new(code, format!("{}: {what}", tree.path_of(*id))))
        })?;
        match self.promise {
            Promise::Parts => Ok(()),
            _ if (0..=self.last).rev().any(|version| self.is_version(tree, version)) => Ok(()),
            _ => Err(Violation::new("not-atomic", "no moment of the workload looked like this as a whole")),
        }
    }

    /// Whether the tree is that of a version, but for contents where these are not promised, and for a file that the next
    /// operation was making longer or shorter in steps.
    fn is_version(&self, tree: &Tree, version: Version) -> bool {
        let then = self.ledger.at(version);
        let alike = |(id, a): (&ObjectId, &Arc<Object>)| {
            let Some(b) = then.get(*id) else { return false };
            if b == a {
                return true;
            }
            let next = (version < self.last).then(|| self.ledger.at(version + 1).get(*id)).flatten();
            let is_step = next.is_some_and(|next| {
                let (low, high) = (b.size.min(next.size), b.size.max(next.size));
                low < a.size && a.size < high
            });
            let exact = self.promise == Promise::Exact && !is_step;
            let bare = |object: &Object| Object {
                size: if is_step { 0 } else { object.size },
                chunks: if exact { object.chunks.clone() } else { BTreeMap::new() },
                ..object.clone()
            };
            bare(a) == bare(b)
        };
        tree.objects.len() == then.objects.len() && tree.objects.iter().all(alike)
    }

    fn object(&self, tree: &Tree, id: ObjectId, object: &Object) -> Result<(), (&'static str, String)> {
        let Some(life) = self.lives.get(&id) else {
            return Err(("unknown-object", "names an inode that nobody made".into()));
        };
        let passing = object.names.values().any(|&child| tree.is_passing(id, child));
        // As in the newest version is as good as it gets.
        if !passing && life.last().and_then(|(_, object)| object.as_deref()) == Some(object) {
            return Ok(());
        }
        let attributes = between(life, self.bounds.attributes(id));
        check_attributes(object, &attributes)?;
        check_xattrs(object, &attributes)?;
        let contents = between(life, self.bounds.contents(id));
        match object.kind {
            // Without ordered data only what nobody has touched since its sync is known; a hole may have been filled with
            // zeros, which does not show.
            FileKind::Regular
                if self.promise == Promise::WholeWithoutContents && self.bounds.contents(id) < self.last =>
            {
                check_size(object, &contents)
            }
            FileKind::Regular => check_size(object, &contents).and_then(|()| check_bytes(object, &contents)),
            FileKind::Directory => self.names(tree, id, (object, life)),
            _ => Ok(()),
        }
    }

    fn names(
        &self,
        tree: &Tree,
        dir: ObjectId,
        (object, life): (&Object, &Life),
    ) -> Result<(), (&'static str, String)> {
        let known =
            life.iter().filter_map(|(_, object)| object.as_ref()).flat_map(|object| object.names.keys());
        let mut names: Vec<&Vec<u8>> = known.chain(object.names.keys()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let found = object.names.get(name).copied();
            let from = match found {
                Some(child) => self.bounds.leads_to(dir, name, child),
                None => self.bounds.name(dir, name),
            };
            let allowed = between(life, from);
            let as_in = |version: &Option<&Object>| version.and_then(|o| o.names.get(name).copied()) == found;
            // Recovery takes it away, which no version from the promised one on may forbid.
            let goes = found.is_some_and(|child| tree.is_passing(dir, child)) && allowed.iter().all(as_in);
            if allowed.iter().any(as_in) && !goes {
                continue;
            }
            let name = String::from_utf8_lossy(name);
            return Err(match found {
                None => ("name-lost", format!("the name {name} was stable and is gone")),
                Some(_) if goes => {
                    ("name-lost", format!("the name {name} was stable, and `..` lets recovery take it away"))
                }
                Some(child) => {
                    let child = self.ledger.at(self.last).path_of(child);
                    ("name-wrong", format!("the name {name} leads to {child}, which it may not"))
                }
            });
        }
        Ok(())
    }
}

fn lives(ledger: &Ledger, last: Version) -> BTreeMap<ObjectId, Life> {
    let mut lives: BTreeMap<ObjectId, Life> = BTreeMap::new();
    let mut before: Option<&Arc<Tree>> = None;
    for version in 0..=last {
        let tree = ledger.at(version);
        if before.is_some_and(|before| Arc::ptr_eq(before, tree)) {
            continue;
        }
        for (id, object) in tree.objects.iter().chain(&tree.nameless) {
            let life =
                lives.entry(*id).or_insert_with(|| if version == 0 { vec![] } else { vec![(0, None)] });
            let same = matches!(life.last(), Some((_, Some(newest))) if Arc::ptr_eq(newest, object));
            if !same {
                life.push((version, Some(Arc::clone(object))));
            }
        }
        for (id, _) in before.iter().flat_map(|before| before.objects.iter().chain(&before.nameless)) {
            if tree.get_any(*id).is_none() {
                lives.get_mut(id).expect("it was there before").push((version, None));
            }
        }
        before = Some(tree);
    }
    lives
}

/// The different states of an object from version `from` on, in order.
fn between(life: &Life, from: Version) -> Vec<Option<&Object>> {
    let first = life.iter().rposition(|(since, _)| *since <= from).unwrap_or(0);
    life[first..].iter().map(|(_, object)| object.as_deref()).collect()
}

fn must_have_a_name(ledger: &Ledger, bounds: &Bounds, last: Version, id: ObjectId) -> bool {
    if id == ledger.at(last).root {
        return true;
    }
    let named = bounds.named(ledger, id);
    named.is_some_and(|from| (from..=last).all(|version| ledger.at(version).get(id).is_some()))
}

/// The states in which the object has a name.
fn living<'a>(states: &'a [Option<&'a Object>]) -> impl Iterator<Item = &'a Object> {
    states.iter().filter_map(|state| *state)
}

fn check_attributes(object: &Object, states: &[Option<&Object>]) -> Result<(), (&'static str, String)> {
    let any = |same: &dyn Fn(&Object) -> bool| living(states).any(same);
    // A name that is still there after its removal leads to an object as it was; so does one before its first sync.
    if living(states).next().is_none() {
        return Ok(());
    }
    if !any(&|o| (o.kind, o.rdev, &o.target) == (object.kind, object.rdev, &object.target)) {
        return Err(("kind-wrong", format!("is a {:?} that it never was", object.kind)));
    }
    if !any(&|o| o.perm == object.perm) {
        return Err(("mode-wrong", format!("has the mode {:o}, which it may not have", object.perm)));
    }
    if !any(&|o| o.uid == object.uid) || !any(&|o| o.gid == object.gid) {
        return Err(("owner-wrong", format!("belongs to {}:{}, which it may not", object.uid, object.gid)));
    }
    if !any(&|o| o.project == object.project) {
        return Err(("project-wrong", format!("is of project {}, which it may not be", object.project)));
    }
    Ok(())
}

fn check_xattrs(object: &Object, states: &[Option<&Object>]) -> Result<(), (&'static str, String)> {
    let mut names: Vec<&Vec<u8>> = living(states).flat_map(|o| o.xattrs.keys()).collect();
    names.extend(object.xattrs.keys());
    names.sort_unstable();
    names.dedup();
    for name in names {
        let found = object.xattrs.get(name);
        // Before its first name, an object has no attributes that anybody has seen.
        let allowed = states.iter().any(|state| state.and_then(|o| o.xattrs.get(name)) == found);
        if !allowed {
            let name = String::from_utf8_lossy(name);
            return Err(("xattr-wrong", format!("the attribute {name} has a value that it may not have")));
        }
    }
    Ok(())
}

/// The size in each state: 0 before the first name, and as it was after the last one.
fn sizes(states: &[Option<&Object>]) -> Vec<u64> {
    let born = states.iter().position(Option::is_some).unwrap_or(states.len());
    let unborn = states[..born].iter().map(|_| 0);
    unborn.chain(living(states).map(|object| object.size)).collect()
}

fn check_size(object: &Object, states: &[Option<&Object>]) -> Result<(), (&'static str, String)> {
    let sizes = sizes(states);
    let between = |pair: &[u64]| (pair[0].min(pair[1])..=pair[0].max(pair[1])).contains(&object.size);
    if sizes.contains(&object.size) || sizes.windows(2).any(between) {
        return Ok(());
    }
    Err((
        "size-wrong",
        format!("has {} bytes; lawful are {sizes:?} and what lies between neighbours", object.size),
    ))
}

/// The first state that can explain a length: it has it, or the step to it passes it.
fn first_so_long(sizes: &[u64], size: u64) -> usize {
    let passes = |pair: &[u64]| (pair[0].min(pair[1])..=pair[0].max(pair[1])).contains(&size);
    let step = sizes
        .windows(2)
        .position(passes)
        .map(|before| if sizes[before] == size { before } else { before + 1 });
    step.or_else(|| sizes.iter().position(|&other| other == size)).unwrap_or(0)
}

fn check_bytes(object: &Object, states: &[Option<&Object>]) -> Result<(), (&'static str, String)> {
    let chunk = to_u64(CHUNK);
    let mut numbers: Vec<u64> = living(states).flat_map(|o| o.chunks.keys().copied()).collect();
    numbers.extend(object.chunks.keys());
    numbers.sort_unstable();
    numbers.dedup();
    let sizes: Vec<u64> = living(states).map(|o| o.size).collect();
    let grown = first_so_long(&sizes, object.size);
    for number in numbers {
        let start = number * chunk;
        let within =
            |size: u64| usize::try_from(size.saturating_sub(start).min(chunk)).expect("at most a chunk");
        let visible = within(object.size);
        let found = object.chunks.get(&number);
        // How much of the chunk each version has, and its bytes.
        let versions: Vec<(usize, Option<&Arc<[u8]>>)> =
            living(states).map(|o| (within(o.size), o.chunks.get(&number))).collect();
        // Whether the bytes from `at` on of a version were cut off before the file became as long as it is.
        let cut_off =
            |version: usize, at: usize| versions.iter().take(grown).skip(version).any(|(len, _)| *len <= at);
        let whole = |no: usize| {
            let (len, version) = versions[no];
            len >= visible && version == found && (visible == 0 || !cut_off(no, visible - 1))
        };
        if (0..versions.len()).any(whole) {
            continue;
        }
        let byte = |chunk: Option<&Arc<[u8]>>, at: usize| chunk.map_or(0, |chunk| chunk[at]);
        let lawful = |at: &usize| {
            versions.iter().enumerate().any(|(no, (len, version))| {
                at < len && byte(*version, *at) == byte(found, *at) && !cut_off(no, *at)
            })
        };
        if let Some(at) = (0..visible).find(|at| !lawful(at)) {
            let offset = start + to_u64(at);
            let text = format!("byte {offset} is {:#04x}, which it never was", byte(found, at));
            return Err(("foreign-data", text));
        }
    }
    Ok(())
}
