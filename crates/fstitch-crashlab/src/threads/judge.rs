//! What several threads may see, and what a cut among them may leave.
//!
//! | what | is judged by |
//! |---|---|
//! | every image | the checker, which finds nothing that the mechanism forbids |
//! | an fsync that returned | the file is at a path that it had then or, while moves were under way, before or after them; with its bytes, where nobody changed them meanwhile |
//! | an answer | those of the same operation when all are done one after the other, in any order |
//! | the tree at the end | the same |
//! | the image after unmounting | shows that tree |

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::{FileKind, RenameMode};

use super::program::Act;
use super::run::{Deed, Ran, Synced};
use crate::medium::{Event, Log, Mark};
use crate::oracle::{CHUNK, Object, Tree, Violation};
use crate::workload::Op;

/// What a tree shows, whatever its inodes' numbers: kinds, lengths and contents by path.
pub type Shape = BTreeMap<String, (FileKind, Vec<u8>)>;

/// The shape of a tree.
pub fn shape(tree: &Tree) -> Shape {
    let mut shape = Shape::new();
    let mut queue = vec![(String::new(), tree.root)];
    while let Some((path, id)) = queue.pop() {
        let Some(object) = tree.get(id) else { continue };
        let children = object.names.iter();
        queue.extend(
            children.map(|(name, child)| (format!("{path}/{}", String::from_utf8_lossy(name)), *child)),
        );
        shape.insert(path, (object.kind, bytes(object)));
    }
    shape
}

/// The contents of a regular file.
fn bytes(object: &Object) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(object.size).unwrap_or(usize::MAX)];
    for (no, chunk) in &object.chunks {
        let at = usize::try_from(*no).unwrap_or(usize::MAX).saturating_mul(CHUNK);
        let len = chunk.len().min(bytes.len().saturating_sub(at));
        if let Some(place) = bytes.get_mut(at..at + len) {
            place.copy_from_slice(&chunk[..len]);
        }
    }
    bytes
}

/// What operations answer and leave when they are done one after the other.
#[derive(Default)]
pub struct Serial {
    answers: BTreeMap<u32, BTreeSet<String>>,
    shapes: Vec<Shape>,
}

impl Serial {
    /// One more order.
    pub fn add(&mut self, ran: &Ran) {
        for deed in &ran.deeds {
            self.answers.entry(deed.no).or_default().insert(deed.answer.clone());
        }
        let Ok(tree) = &ran.tree else { return };
        let shape = shape(tree);
        if !self.shapes.contains(&shape) {
            self.shapes.push(shape);
        }
    }

    /// Judges what threads have seen.
    ///
    /// # Errors
    /// When no order explains it.
    pub fn judge(&self, ran: &Ran) -> Result<(), Violation> {
        for deed in &ran.deeds {
            let known = self.answers.get(&deed.no);
            if known.is_some_and(|known| !known.contains(&deed.answer) && !is_walked(deed, known)) {
                let known: Vec<&str> = known.into_iter().flatten().map(String::as_str).collect();
                let text =
                    format!("{}: {}; one after the other, {}", deed.act, deed.answer, known.join(" or "));
                return Err(Violation::new("answer", text));
            }
        }
        let shape = shape(ran.tree.as_ref().map_err(Violation::clone)?);
        if self.shapes.contains(&shape) {
            return Ok(());
        }
        let paths: Vec<&str> = shape.keys().map(String::as_str).collect();
        Err(Violation::new("no-order", format!("no order of the operations leaves {}", paths.join(" "))))
    }
}

/// Whether an answer comes from the way to the names only. A move by paths is two walks and then the move, and directories that moved
/// in between may have come to lie in each other: one after the other, there is no such path.
fn is_walked(deed: &Deed, known: &BTreeSet<String>) -> bool {
    let is_move = matches!(deed.act, Act::Op(Op::Rename { .. }));
    is_move && deed.answer == "EINVAL" && known.contains("ENOENT")
}

/// When everything happened: events of the log before it.
pub struct Past<'a> {
    ran: &'a Ran,
    begun: BTreeMap<u32, usize>,
    ended: BTreeMap<u32, usize>,
}

impl<'a> Past<'a> {
    /// The past of a run.
    pub fn new(ran: &'a Ran) -> Self {
        let place = |wanted: fn(&Mark) -> Option<u32>, log: &Log| {
            let marks = log.events.iter().enumerate().filter_map(|(at, event)| match event {
                Event::Mark(mark) => wanted(mark).map(|no| (no, at)),
                _ => None,
            });
            marks.collect::<BTreeMap<u32, usize>>()
        };
        let begun = |mark: &Mark| if let Mark::Begin(no) = mark { Some(*no) } else { None };
        let ended = |mark: &Mark| if let Mark::Promise(no) | Mark::End(no) = mark { Some(*no) } else { None };
        Self { ran, begun: place(begun, &ran.log), ended: place(ended, &ran.log) }
    }

    /// Judges what a cut after `cut` events has left.
    ///
    /// # Errors
    /// When something is not there that was promised.
    pub fn judge(&self, cut: usize, tree: &Tree) -> Result<(), Violation> {
        for deed in &self.ran.deeds {
            let Some(synced) = deed.sync.as_ref().filter(|_| self.ended[&deed.no] < cut) else { continue };
            self.judge_sync(deed, synced, (cut, tree))?;
        }
        let is_end = cut == self.ran.log.events.len();
        if let Ok(live) = &self.ran.tree
            && is_end
            && shape(live) != shape(tree)
        {
            return Err(Violation::new(
                "unmounted-otherwise",
                "what is there after unmounting is not what was there before",
            ));
        }
        Ok(())
    }

    fn judge_sync(&self, deed: &Deed, synced: &Synced, (cut, tree): (usize, &Tree)) -> Result<(), Violation> {
        let Some(paths) = self.paths(deed.no, synced, cut) else { return Ok(()) };
        let found = paths.iter().find(|path| tree.find(path) == Some(synced.id));
        let known: Vec<&str> = paths.iter().map(String::as_str).collect();
        if found.is_none() {
            let text = format!(
                "{} returned, and inode {} is not at {}",
                deed.act,
                synced.id.ino,
                known.join(" or ")
            );
            return Err(Violation::new("fsync-lost-name", text));
        }
        let Some(object) = tree.get(synced.id).filter(|object| object.kind == FileKind::Regular) else {
            return Ok(());
        };
        let changes = |deed: &Deed| changed(&deed.act).is_some_and(|path| paths.contains(path));
        let is_changed = self.since(deed.no, cut).any(changes);
        if !is_changed && bytes(object) != synced.contents {
            let text = format!("{} returned, and the file holds something else", deed.act);
            return Err(Violation::new("fsync-lost-contents", text));
        }
        Ok(())
    }

    /// What was under way after an act began and before the cut, beside itself.
    fn since(&self, no: u32, cut: usize) -> impl Iterator<Item = &Deed> {
        let from = self.begun[&no];
        let others = self.ran.deeds.iter().filter(move |deed| deed.no != no && deed.answer == "ok");
        others.filter(move |deed| self.ended[&deed.no] > from && self.begun[&deed.no] < cut)
    }

    /// The paths at one of which the file must be. `None` if somebody may have taken its name away.
    fn paths(&self, no: u32, synced: &Synced, cut: usize) -> Option<BTreeSet<String>> {
        let mut paths = BTreeSet::from([synced.path.clone()]);
        // What ended before the fsync began came after the file was found by its path.
        for deed in self.since(synced.found_by, cut) {
            if self.ended[&deed.no] < self.begun[&no] {
                paths =
                    paths.iter().map(|path| moved(&deed.act, path).unwrap_or_else(|| path.clone())).collect();
            }
        }
        // What was under way may have happened or not, in any order.
        loop {
            let new = |path: &String| {
                let moves = self.since(no, cut).filter_map(|deed| moved(&deed.act, path)).collect::<Vec<_>>();
                moves.into_iter().filter(|new| !paths.contains(new)).collect::<Vec<_>>()
            };
            let new: Vec<String> = paths.iter().flat_map(new).collect();
            if new.is_empty() {
                break;
            }
            paths.extend(new);
        }
        let is_taken = self.since(synced.found_by, cut).any(|deed| match &deed.act {
            Act::Op(Op::Unlink { path } | Op::Rmdir { path }) => paths.contains(path),
            Act::Op(Op::Rename { old, new, mode: RenameMode::Replace }) => {
                paths.contains(new) && !paths.contains(old)
            }
            _ => false,
        });
        (!is_taken).then_some(paths)
    }
}

/// Whose contents an act changes.
fn changed(act: &Act) -> Option<&String> {
    match act {
        Act::Op(
            Op::Write { path, .. }
            | Op::Append { path, .. }
            | Op::Truncate { path, .. }
            | Op::Share { to: path, .. }
            | Op::Fallocate { path, .. },
        ) => Some(path),
        _ => None,
    }
}

/// Where what was at `path` is after a move.
fn moved(act: &Act, path: &str) -> Option<String> {
    let Act::Op(Op::Rename { old, new, mode }) = act else { return None };
    let below = |from: &str, to: &str| {
        let rest = path.strip_prefix(from)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
    };
    let back = || if *mode == RenameMode::Exchange { below(new, old) } else { None };
    below(old, new).or_else(back)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_take_along_what_is_below() {
        let act = |text: &str| text.parse::<Act>().unwrap();
        assert_eq!(moved(&act("rename /a /c"), "/a/x/f").as_deref(), Some("/c/x/f"));
        assert_eq!(moved(&act("rename /a /c"), "/ab"), None);
        assert_eq!(moved(&act("exchange /a/x /b/y"), "/b/y").as_deref(), Some("/a/x"));
        assert_eq!(moved(&act("rename /a/x /b/y"), "/b/y"), None);
        assert_eq!(moved(&act("unlink /a"), "/a"), None);
    }
}
