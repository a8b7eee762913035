//! Images that are equal, whatever workload they come from.

use std::sync::{Arc, Mutex};

use fstitch_core::lock::Unpoisoned;
use rustc_hash::FxHashMap;

use super::facts::Facts;
use crate::oracle::Tree;

/// Facts by image hash, for all threads. When it is full it is emptied: nothing is lost but time.
pub struct Known<T = Tree> {
    facts: Mutex<FxHashMap<u128, Arc<Facts<T>>>>,
    capacity: usize,
}

impl<T> Known<T> {
    /// Room for `capacity` images, about 5 KiB each for small volumes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { facts: Mutex::default(), capacity }
    }

    /// The facts of an image.
    pub fn find(&self, hash: u128) -> Option<Arc<Facts<T>>> {
        self.facts.lock().unpoisoned().get(&hash).map(Arc::clone)
    }

    /// Remembers the facts of an image.
    pub fn insert(&self, hash: u128, facts: &Arc<Facts<T>>) {
        let mut all = self.facts.lock().unpoisoned();
        if all.len() >= self.capacity {
            all.clear();
        }
        all.insert(hash, Arc::clone(facts));
    }
}
