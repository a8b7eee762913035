//! Writing what has changed: children before those that lead to them.

use fstitch_core::Result;

use super::{Fixed, Link, Node, Place, Tree};

/// Where pages are written to.
pub(crate) trait Sink<K, V> {
    /// Bytes of a page.
    fn page_size(&self) -> usize;
    /// Writes a page. Returns the block where it begins.
    ///
    /// # Errors
    /// If there is no room, or the medium fails.
    fn write(&mut self, page: &[u8]) -> Result<u64>;
    /// Keeps a page that is there now, as long as there is room.
    fn keep(&mut self, place: Place, node: Node<K, V>);
}

impl<K: Fixed + Ord, V: Fixed> Tree<K, V> {
    /// Writes all pages that have changed. Returns where the root is.
    ///
    /// # Errors
    /// Those of `sink`. What is written by then is on the medium, the rest is in memory, and the tree is as it was.
    pub(crate) fn save(&mut self, tree: u8, sink: &mut impl Sink<K, V>) -> Result<Place> {
        save_below(&mut self.root, tree, sink, &mut self.changed)
    }
}

fn save_below<K: Fixed + Ord, V: Fixed>(
    link: &mut Link<K, V>,
    tree: u8,
    sink: &mut impl Sink<K, V>,
    changed: &mut usize,
) -> Result<Place> {
    let node = match link {
        Link::Medium(place) => return Ok(*place),
        Link::Memory(node) => node,
    };
    if let Node::Inner(children) = &mut **node {
        for child in children {
            save_below(&mut child.link, tree, sink, changed)?;
        }
    }
    let mut page = vec![0; sink.page_size()];
    node.encode(tree, &mut page);
    let place = Place { block: sink.write(&page)?, sum: crc32c::crc32c(&page) };
    let Link::Memory(node) = std::mem::replace(link, Link::Medium(place)) else {
        panic!("it was in memory");
    };
    *changed -= 1;
    sink.keep(place, *node);
    Ok(place)
}
