//! Looking things up: by key, by position, and one behind the other.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Error, Result};

use super::{Fixed, Link, Node, Pages, Place, Tree, child_of};

/// A node on the way down.
enum Step<'a, K, V> {
    Memory(&'a Node<K, V>),
    Loaded(Arc<Node<K, V>>),
}

impl<K, V> Step<'_, K, V> {
    fn node(&self) -> &Node<K, V> {
        match self {
            Self::Memory(node) => node,
            Self::Loaded(node) => node,
        }
    }
}

/// A child of a node.
enum Next<'a, K, V> {
    Memory(&'a Node<K, V>),
    Medium(Place),
}

impl<'a, K, V> Step<'a, K, V> {
    fn child(&self, at: usize) -> Next<'a, K, V> {
        match self {
            Self::Memory(Node::Inner(children)) => match &children[at].link {
                Link::Memory(node) => Next::Memory(node),
                Link::Medium(place) => Next::Medium(*place),
            },
            // What is on the medium leads to the medium.
            Self::Loaded(node) => match &**node {
                Node::Inner(children) => match children[at].link {
                    Link::Medium(place) => Next::Medium(place),
                    Link::Memory(_) => panic!("a loaded page has been changed"),
                },
                Node::Leaf(_) => panic!("a leaf has no children"),
            },
            Self::Memory(Node::Leaf(_)) => panic!("a leaf has no children"),
        }
    }
}

/// Which children lead to which of some ascending keys.
fn split<'k, K: Ord, V>(node: &Node<K, V>, keys: &'k [K]) -> Vec<(usize, &'k [K])> {
    let (mut below, mut left) = (Vec::new(), keys);
    if let Node::Inner(children) = node {
        for at in 0..children.len() {
            let here = match children.get(at + 1) {
                Some(next) => left.partition_point(|key| *key < next.first),
                None => left.len(),
            };
            let (keys, rest) = left.split_at(here);
            left = rest;
            if !keys.is_empty() {
                below.push((at, keys));
            }
        }
    }
    below
}

fn enter<'a, K, V>(link: &'a Link<K, V>, pages: &impl Pages<K, V>) -> Result<Step<'a, K, V>> {
    Ok(match link {
        Link::Memory(node) => Step::Memory(node),
        Link::Medium(place) => Step::Loaded(pages.load(*place)?),
    })
}

/// What becomes of a descent at a node.
enum Turn<T> {
    /// It goes on below this child.
    Below(usize),
    /// It ends here.
    End(T),
}

/// Goes down from `link`, each time where `choose` says.
fn descend<K, V, T>(
    link: &Link<K, V>,
    pages: &impl Pages<K, V>,
    choose: &mut dyn FnMut(&Node<K, V>) -> Turn<T>,
) -> Result<T> {
    let mut step = enter(link, pages)?;
    loop {
        let child = match choose(step.node()) {
            Turn::End(found) => return Ok(found),
            Turn::Below(child) => child,
        };
        step = match step.child(child) {
            Next::Memory(node) => Step::Memory(node),
            Next::Medium(place) => Step::Loaded(pages.load(place)?),
        };
    }
}

impl<K: Fixed + Ord, V: Fixed> Tree<K, V> {
    /// The value of a key.
    pub(crate) fn get(&self, key: &K, pages: &impl Pages<K, V>) -> Result<Option<V>> {
        descend(&self.root, pages, &mut |node| match node {
            Node::Inner(children) => Turn::Below(child_of(children, key)),
            Node::Leaf(entries) => {
                let found = entries.binary_search_by(|entry| entry.0.cmp(key));
                Turn::End(found.ok().map(|at| entries[at].1))
            }
        })
    }

    /// How many keys are smaller.
    pub(crate) fn rank(&self, key: &K, pages: &impl Pages<K, V>) -> Result<u64> {
        let mut before = 0;
        descend(&self.root, pages, &mut |node| match node {
            Node::Inner(children) => {
                let child = child_of(children, key);
                before += children[..child].iter().map(|child| child.count).sum::<u64>();
                Turn::Below(child)
            }
            Node::Leaf(entries) => {
                Turn::End(before + to_u64(entries.partition_point(|entry| entry.0 < *key)))
            }
        })
    }

    /// The entry at a position.
    pub(crate) fn select(&self, position: u64, pages: &impl Pages<K, V>) -> Result<Option<(K, V)>> {
        if position >= self.count {
            return Ok(None);
        }
        let mut left = position;
        descend(&self.root, pages, &mut |node| match node {
            Node::Inner(children) => {
                let mut child = 0;
                while left >= children[child].count && child + 1 < children.len() {
                    left -= children[child].count;
                    child += 1;
                }
                Turn::Below(child)
            }
            Node::Leaf(entries) => Turn::End(entries.get(to_usize(left)).copied()),
        })
    }

    /// The first entry whose key is not smaller.
    pub(crate) fn at_or_after(&self, key: &K, pages: &impl Pages<K, V>) -> Result<Option<(K, V)>> {
        // Where the leaf in which the key would be has none, it is the first of the next one.
        let mut next: Option<K> = None;
        let found = descend(&self.root, pages, &mut |node| match node {
            Node::Inner(children) => {
                let child = child_of(children, key);
                if let Some(after) = children.get(child + 1) {
                    next = Some(after.first);
                }
                Turn::Below(child)
            }
            Node::Leaf(entries) => {
                Turn::End(entries.get(entries.partition_point(|entry| entry.0 < *key)).copied())
            }
        })?;
        match (found, next) {
            (None, Some(next)) => self.at_or_after(&next, pages),
            (found, _) => Ok(found),
        }
    }

    /// Whether the page at a place, whose first key this is, is one of the tree's.
    pub(crate) fn has_page(&self, key: Option<&K>, place: Place, pages: &impl Pages<K, V>) -> Result<bool> {
        let is_it = |link: &Link<K, V>| matches!(link, Link::Medium(at) if *at == place);
        let Some(key) = key.filter(|_| !is_it(&self.root)) else { return Ok(is_it(&self.root)) };
        descend(&self.root, pages, &mut |node| match node {
            Node::Inner(children) => {
                let child = child_of(children, key);
                if is_it(&children[child].link) { Turn::End(true) } else { Turn::Below(child) }
            }
            Node::Leaf(_) => Turn::End(false),
        })
    }

    /// Has the pages in memory that lead to keys, which ascend: those of each level all at once.
    pub(crate) fn read_ahead(&self, keys: &[K], pages: &impl Pages<K, V>) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut level = vec![(enter(&self.root, pages)?, keys)];
        while !level.is_empty() {
            let (mut below, mut places) = (Vec::new(), Vec::new());
            for (step, keys) in &level {
                for (at, keys) in split(step.node(), keys) {
                    match step.child(at) {
                        Next::Memory(node) => below.push((Step::Memory(node), keys)),
                        Next::Medium(place) => places.push((place, keys)),
                    }
                }
            }
            let loaded = pages.load_all(&places.iter().map(|(place, _)| *place).collect::<Vec<_>>())?;
            below.extend(loaded.into_iter().map(Step::Loaded).zip(places.into_iter().map(|(_, keys)| keys)));
            level = below;
        }
        Ok(())
    }

    /// Where its pages on the medium are.
    pub(crate) fn places(&self, pages: &impl Pages<K, V>) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        places_below(&self.root, pages, &mut places)?;
        Ok(places)
    }

    /// Reads all pages. Returns where they are on the medium, and which of them cannot be read.
    pub(crate) fn survey(&self, pages: &impl Pages<K, V>) -> (Vec<Place>, Vec<(Place, Error)>) {
        let (mut places, mut damaged) = (Vec::new(), Vec::new());
        survey_below(&self.root, pages, &mut places, &mut damaged);
        (places, damaged)
    }

    /// Calls `each` for the entries from a key on, in their order, until it returns false.
    pub(crate) fn walk(
        &self,
        from: &K,
        pages: &impl Pages<K, V>,
        each: &mut dyn FnMut(&K, &V) -> bool,
    ) -> Result<()> {
        walk_below(&self.root, from, pages, each).map(|_| ())
    }
}

/// Returns whether to go on.
fn walk_below<K: Fixed + Ord, V: Fixed>(
    link: &Link<K, V>,
    from: &K,
    pages: &impl Pages<K, V>,
    each: &mut dyn FnMut(&K, &V) -> bool,
) -> Result<bool> {
    let step = enter(link, pages)?;
    match step.node() {
        Node::Leaf(entries) => {
            let start = entries.partition_point(|entry| entry.0 < *from);
            Ok(entries[start..].iter().all(|(key, value)| each(key, value)))
        }
        Node::Inner(children) => {
            for child in &children[child_of(children, from)..] {
                if !walk_below(&child.link, from, pages, each)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }
}

fn places_below<K, V>(link: &Link<K, V>, pages: &impl Pages<K, V>, places: &mut Vec<Place>) -> Result<()> {
    if let Link::Medium(place) = link {
        places.push(*place);
    }
    let step = enter(link, pages)?;
    if let Node::Inner(children) = step.node() {
        children.iter().try_for_each(|child| places_below(&child.link, pages, places))?;
    }
    Ok(())
}

fn survey_below<K, V>(
    link: &Link<K, V>,
    pages: &impl Pages<K, V>,
    places: &mut Vec<Place>,
    damaged: &mut Vec<(Place, Error)>,
) {
    let step = match (enter(link, pages), link) {
        (Ok(step), _) => step,
        (Err(error), Link::Medium(place)) => {
            damaged.push((*place, error));
            return;
        }
        (Err(_), Link::Memory(_)) => panic!("what is in memory is there"),
    };
    if let Link::Medium(place) = link {
        places.push(*place);
    }
    if let Node::Inner(children) = step.node() {
        children.iter().for_each(|child| survey_below(&child.link, pages, places, damaged));
    }
}
