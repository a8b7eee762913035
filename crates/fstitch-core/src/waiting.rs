//! Telling who runs a thread that it is about to wait.
//!
//! A thread that answers many people's requests must not wait for room, or for the end of somebody's operation, while others
//! ask for what could be answered at once. It cannot know beforehand which request will wait. So whoever is about to wait says
//! so here, and whoever runs such threads has another one take over meanwhile. Threads that nobody watches pay nothing.

use std::cell::RefCell;
use std::sync::Arc;

/// Is told when a thread that it watches waits. Called with locks held: it must not wait itself.
pub trait Watcher: Send + Sync {
    /// The thread is about to wait.
    fn begins(&self);
    /// It goes on.
    fn ends(&self);
}

thread_local! {
    static WATCHER: RefCell<Option<Arc<dyn Watcher>>> = const { RefCell::new(None) };
}

/// Has this thread watched from now on, to its end.
pub fn watch(watcher: Arc<dyn Watcher>) {
    WATCHER.with_borrow_mut(|place| *place = Some(watcher));
}

/// This thread waits, as long as this lives; one in another says nothing new.
pub struct Waiting {
    watcher: Option<Arc<dyn Watcher>>,
    /// The watcher is this thread's.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Waiting {
    /// To be made just before waiting.
    #[must_use]
    pub fn begin() -> Self {
        let watcher = WATCHER.with_borrow_mut(Option::take);
        if let Some(watcher) = &watcher {
            watcher.begins();
        }
        Self { watcher, _not_send: std::marker::PhantomData }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.ends();
            watch(watcher);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicI32, AtomicI32);

    impl Watcher for Count {
        fn begins(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1.fetch_add(1, Ordering::Relaxed);
        }

        fn ends(&self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn waits_within_waits_are_told_once() {
        let count = Arc::new(Count::default());
        let of = |count: &Count| (count.0.load(Ordering::Relaxed), count.1.load(Ordering::Relaxed));
        drop(Waiting::begin());
        assert_eq!(of(&count), (0, 0), "nobody watches");
        watch(Arc::clone(&count) as _);
        {
            let _outer = Waiting::begin();
            let _inner = Waiting::begin();
            assert_eq!(of(&count), (1, 1));
        }
        assert_eq!(of(&count), (0, 1));
        drop(Waiting::begin());
        assert_eq!(of(&count), (0, 2));
    }
}
