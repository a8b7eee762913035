//! A map of few things, which lie in a row in the order of their keys.

use smallvec::SmallVec;

/// Most changes say little of a block or an inode, so that nothing is allocated for it. Many come in the order of their keys.
#[derive(Debug)]
pub(crate) struct Few<K, V>(SmallVec<[(K, V); 4]>);

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Self(SmallVec::new())
    }
}

impl<K: Ord + Copy, V: Copy> Few<K, V> {
    fn find(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |(key, _)| *key)
    }

    pub(crate) fn get(&self, key: K) -> Option<V> {
        self.find(key).ok().map(|at| self.0[at].1)
    }

    /// Something has another value, or is there now.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match self.find(key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, V)> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_a_map_has() {
        let mut few = Few::default();
        let keys = [5, 1, 9, 5, 7, 3, 1, 8];
        let map: std::collections::BTreeMap<_, _> = keys.into_iter().zip(0..).collect();
        keys.into_iter().zip(0..).for_each(|(key, value)| few.insert(key, value));
        assert!(few.iter().eq(map.iter().map(|(key, value)| (*key, *value))));
        assert_eq!((few.len(), few.get(7), few.get(6)), (map.len(), Some(4), None));
        assert!(!few.is_empty() && Few::<u8, u8>::default().is_empty());
    }
}
