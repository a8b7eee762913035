//! Changing a tree: every page on the way comes into memory, and leaves its place.

use fstitch_core::Result;
#[cfg(test)]
use fstitch_core::num::to_u64;

use super::codec::{inner_room, leaf_room};
use super::{Child, Fixed, Link, Node, Pages, Place, Tree, child_of};

/// What all changes of a tree share.
struct Work<'a, P> {
    pages: &'a P,
    leaf_room: usize,
    inner_room: usize,
    changed: &'a mut usize,
    left: &'a mut Vec<Place>,
}

/// A node's right half, which needs a place beside it.
type Split<K, V> = Option<Child<K, V>>;

impl<K: Fixed + Ord, V: Fixed> Tree<K, V> {
    /// Sets the value of a key. Returns the old one.
    pub(crate) fn insert<P: Pages<K, V>>(&mut self, key: K, value: V, pages: &P) -> Result<Option<V>> {
        let mut work = Work::new(pages, &mut self.changed, &mut self.left);
        let (old, split) = work.insert(&mut self.root, key, value)?;
        self.count += u64::from(old.is_none());
        if let Some(right) = split {
            let root = std::mem::replace(&mut self.root, Link::Memory(Box::new(Node::Leaf(Vec::new()))));
            let Link::Memory(left) = root else { panic!("a node that was split is in memory") };
            let first = left.first().expect("halves are not empty");
            let left = Child { first, count: left.count(), link: Link::Memory(left) };
            self.root = Link::Memory(Box::new(Node::Inner(vec![left, right])));
            self.changed += 1;
        }
        Ok(old)
    }

    /// Changes the value of a key that should be there. Returns the old one.
    pub(crate) fn update<P: Pages<K, V>>(
        &mut self,
        key: &K,
        pages: &P,
        change: impl FnOnce(&mut V),
    ) -> Result<Option<V>> {
        let mut work = Work::new(pages, &mut self.changed, &mut self.left);
        let mut link = &mut self.root;
        loop {
            match work.take(link)? {
                Node::Inner(children) => {
                    let at = child_of(children, key);
                    link = &mut children[at].link;
                }
                Node::Leaf(entries) => {
                    let found = entries.binary_search_by(|entry| entry.0.cmp(key));
                    return Ok(found.ok().map(|at| {
                        let old = entries[at].1;
                        change(&mut entries[at].1);
                        old
                    }));
                }
            }
        }
    }

    /// Removes a key. Returns its value.
    pub(crate) fn remove<P: Pages<K, V>>(&mut self, key: &K, pages: &P) -> Result<Option<V>> {
        // Nothing comes into memory for a key that is not there.
        if self.get(key, pages)?.is_none() {
            return Ok(None);
        }
        let mut work = Work::new(pages, &mut self.changed, &mut self.left);
        let old = work.remove(&mut self.root, key)?;
        self.count -= u64::from(old.is_some());
        self.lower()?;
        Ok(old)
    }

    /// Has the page at a place, whose first key this is, in memory, so that it is written somewhere else next time. Returns whether it
    /// is one of the tree's.
    pub(crate) fn touch<P: Pages<K, V>>(&mut self, key: Option<&K>, place: Place, pages: &P) -> Result<bool> {
        if !self.has_page(key, place, pages)? {
            return Ok(false);
        }
        let mut work = Work::new(pages, &mut self.changed, &mut self.left);
        work.touch(&mut self.root, key, place)?;
        Ok(true)
    }

    /// Takes away roots with one child.
    fn lower(&mut self) -> Result<()> {
        while let Link::Memory(root) = &mut self.root
            && let Node::Inner(children) = &mut **root
        {
            match children.len() {
                0 => **root = Node::Leaf(Vec::new()),
                1 => {
                    let child = children.pop().expect("there is one");
                    self.root = child.link;
                    self.changed -= 1;
                }
                _ => break,
            }
        }
        Ok(())
    }
}

impl<'a, P> Work<'a, P> {
    fn new<K: Fixed, V: Fixed>(pages: &'a P, changed: &'a mut usize, left: &'a mut Vec<Place>) -> Self
    where
        P: Pages<K, V>,
    {
        let size = pages.page_size();
        Self { pages, leaf_room: leaf_room::<K, V>(size), inner_room: inner_room::<K>(size), changed, left }
    }

    /// Has the node below a link in memory.
    fn take<'n, K: Fixed + Ord, V: Fixed>(&mut self, link: &'n mut Link<K, V>) -> Result<&'n mut Node<K, V>>
    where
        P: Pages<K, V>,
    {
        if let Link::Medium(place) = *link {
            let node = self.pages.take(place)?;
            self.left.push(place);
            *self.changed += 1;
            *link = Link::Memory(Box::new(node));
        }
        match link {
            Link::Memory(node) => Ok(node),
            Link::Medium(_) => panic!("it is in memory now"),
        }
    }

    fn insert<K: Fixed + Ord, V: Fixed>(
        &mut self,
        link: &mut Link<K, V>,
        key: K,
        value: V,
    ) -> Result<(Option<V>, Split<K, V>)>
    where
        P: Pages<K, V>,
    {
        match self.take(link)? {
            Node::Leaf(entries) => {
                match entries.binary_search_by(|entry| entry.0.cmp(&key)) {
                    Ok(at) => return Ok((Some(std::mem::replace(&mut entries[at].1, value)), None)),
                    Err(at) => entries.insert(at, (key, value)),
                }
                if entries.len() <= self.leaf_room {
                    return Ok((None, None));
                }
                // Keys mostly come in ascending order: then the full page stays as it is.
                let is_last = entries.last().is_some_and(|entry| entry.0 == key);
                let at = if is_last { entries.len() - 1 } else { entries.len() / 2 };
                let right = Node::Leaf(entries.split_off(at));
                Ok((None, Some(self.beside(right))))
            }
            Node::Inner(children) => {
                let at = child_of(children, &key);
                let (old, split) = self.insert(&mut children[at].link, key, value)?;
                let child = &mut children[at];
                child.first = child.first.min(key);
                child.count += u64::from(old.is_none());
                if let Some(right) = split {
                    child.count -= right.count;
                    children.insert(at + 1, right);
                }
                if children.len() <= self.inner_room {
                    return Ok((old, None));
                }
                let half = if at + 2 == children.len() { children.len() - 2 } else { children.len() / 2 };
                let right = Node::Inner(children.split_off(half));
                Ok((old, Some(self.beside(right))))
            }
        }
    }

    fn touch<K: Fixed + Ord, V: Fixed>(
        &mut self,
        link: &mut Link<K, V>,
        key: Option<&K>,
        place: Place,
    ) -> Result<()>
    where
        P: Pages<K, V>,
    {
        let is_it = matches!(link, Link::Medium(at) if *at == place);
        match (self.take(link)?, key) {
            (Node::Inner(children), Some(key)) if !is_it => {
                let at = child_of(children, key);
                self.touch(&mut children[at].link, Some(key), place)
            }
            _ => Ok(()),
        }
    }

    fn beside<K: Fixed + Ord, V: Fixed>(&mut self, node: Node<K, V>) -> Child<K, V> {
        *self.changed += 1;
        let first = node.first().expect("halves are not empty");
        Child { first, count: node.count(), link: Link::Memory(Box::new(node)) }
    }

    fn remove<K: Fixed + Ord, V: Fixed>(&mut self, link: &mut Link<K, V>, key: &K) -> Result<Option<V>>
    where
        P: Pages<K, V>,
    {
        match self.take(link)? {
            Node::Leaf(entries) => {
                let found = entries.binary_search_by(|entry| entry.0.cmp(key));
                Ok(found.ok().map(|at| entries.remove(at).1))
            }
            Node::Inner(children) => {
                let at = child_of(children, key);
                let old = self.remove(&mut children[at].link, key)?;
                children[at].count -= u64::from(old.is_some());
                if children[at].count == 0 {
                    // What leads to nothing goes, with all that is below it: a leaf, or inner pages one below the other.
                    let gone = children.remove(at);
                    *self.changed -= depth(&gone.link);
                } else {
                    self.mend(children, at)?;
                }
                Ok(old)
            }
        }
    }

    /// Joins a child that has become small with a neighbour where both fit one page with room to spare.
    fn mend<K: Fixed + Ord, V: Fixed>(&mut self, children: &mut Vec<Child<K, V>>, at: usize) -> Result<()>
    where
        P: Pages<K, V>,
    {
        let Link::Memory(node) = &children[at].link else { panic!("it has just been changed") };
        let room = if let Node::Leaf(_) = **node { self.leaf_room } else { self.inner_room };
        if node.len() * 3 > room || children.len() < 2 {
            return Ok(());
        }
        let (left, right) = if at > 0 { (at - 1, at) } else { (at, at + 1) };
        let neighbour = if at > 0 { left } else { right };
        let len = match &children[neighbour].link {
            Link::Memory(node) => node.len(),
            Link::Medium(place) => self.pages.load(*place)?.len(),
        };
        if (len + node.len()) * 4 > room * 3 {
            return Ok(());
        }
        let mut gone = children.remove(right);
        let keeper = &mut children[left];
        keeper.count += gone.count;
        let from = std::mem::replace(self.take(&mut gone.link)?, Node::Leaf(Vec::new()));
        *self.changed -= 1;
        match (self.take(&mut keeper.link)?, from) {
            (Node::Leaf(entries), Node::Leaf(more)) => entries.extend(more),
            (Node::Inner(children), Node::Inner(more)) => children.extend(more),
            _ => panic!("neighbours are of one level"),
        }
        Ok(())
    }
}

/// The pages of a way down that leads to nothing.
fn depth<K, V>(link: &Link<K, V>) -> usize {
    match link {
        Link::Memory(node) => match &**node {
            Node::Leaf(_) => 1,
            Node::Inner(children) => 1 + children.iter().map(|child| depth(&child.link)).sum::<usize>(),
        },
        Link::Medium(_) => 0,
    }
}

impl<K: Fixed + Ord, V: Fixed> Node<K, V> {
    /// A page as it is on the medium, to be changed.
    pub(crate) fn copied(&self) -> Self {
        match self {
            Self::Leaf(entries) => Self::Leaf(entries.clone()),
            Self::Inner(children) => Self::Inner(children.iter().map(Child::copied).collect()),
        }
    }
}

impl<K: Copy, V> Child<K, V> {
    fn copied(&self) -> Self {
        let Link::Medium(place) = self.link else { panic!("what is on the medium leads to the medium") };
        Self { first: self.first, count: self.count, link: Link::Medium(place) }
    }
}

/// Checks the invariants of all that is in memory, and returns the entries and the pages.
#[cfg(test)]
pub(super) fn checked<K: Fixed + Ord + std::fmt::Debug, V: Fixed>(
    link: &Link<K, V>,
    pages: &impl Pages<K, V>,
    is_root: bool,
) -> (u64, usize) {
    let (node, memory) = match link {
        Link::Memory(node) => (node.copied_deep(), 1),
        Link::Medium(place) => (pages.load(*place).expect("it can be read").copied(), 0),
    };
    assert!(is_root || node.len() > 0, "no page but the root is empty");
    match node {
        Node::Leaf(entries) => {
            assert!(entries.is_sorted_by(|a, b| a.0 < b.0));
            (to_u64(entries.len()), memory)
        }
        Node::Inner(children) => {
            assert!(children.is_sorted_by(|a, b| a.first < b.first));
            let mut sum = (0, memory);
            for child in &children {
                assert!(memory == 1 || matches!(child.link, Link::Medium(_)));
                let (count, pages) = checked(&child.link, pages, false);
                assert_eq!(count, child.count, "counts are sums");
                sum = (sum.0 + count, sum.1 + pages);
            }
            sum
        }
    }
}

#[cfg(test)]
impl<K: Fixed + Ord, V: Fixed> Node<K, V> {
    fn copied_deep(&self) -> Self {
        match self {
            Self::Leaf(entries) => Self::Leaf(entries.clone()),
            Self::Inner(children) => Self::Inner(
                children
                    .iter()
                    .map(|child| Child {
                        first: child.first,
                        count: child.count,
                        link: match &child.link {
                            Link::Memory(node) => Link::Memory(Box::new(node.copied_deep())),
                            Link::Medium(place) => Link::Medium(*place),
                        },
                    })
                    .collect(),
            ),
        }
    }
}
