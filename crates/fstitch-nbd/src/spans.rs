//! Who is changing which blocks.

use fstitch_core::lock::{Condvar, Mutex, MutexGuard};
use fstitch_core::order::rank;

/// Blocks that somebody changes, the last one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Some of them only in part: they are read, changed and written again, and nobody else may write them meanwhile.
    pub(crate) is_partial: bool,
}

impl Span {
    /// Whether both may be under way at once. Whole blocks written twice at once hold one or the other, as on any disk.
    const fn conflicts(self, other: Self) -> bool {
        (self.is_partial || other.is_partial) && self.first <= other.last && other.first <= self.last
    }
}

struct Busy {
    spans: Vec<Span>,
    /// Who waits. Ringing costs a system call even if nobody hears it.
    blocked: usize,
}

/// The spans that are under way: as many as there are threads at work, so that a list is enough.
pub(crate) struct Spans {
    busy: Mutex<Busy, rank::Leaf>,
    changed: Condvar,
}

impl Spans {
    pub(crate) const fn new() -> Self {
        Self { busy: Mutex::new(Busy { spans: Vec::new(), blocked: 0 }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Busy> {
        self.busy.lock()
    }

    /// Waits until the span is free of conflicts; it is under way until the answer is dropped. Whoever holds one must not ask
    /// for another.
    pub(crate) fn enter(&self, span: Span) -> Entered<'_> {
        let mut busy = self.lock();
        while busy.spans.iter().any(|&other| span.conflicts(other)) {
            busy.blocked += 1;
            busy = self.changed.wait(busy, |_| ());
            busy.blocked -= 1;
        }
        busy.spans.push(span);
        Entered { spans: self, span }
    }
}

/// A span that is under way.
pub(crate) struct Entered<'a> {
    spans: &'a Spans,
    span: Span,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut busy = self.spans.lock();
        let at = busy.spans.iter().position(|&span| span == self.span);
        busy.spans.swap_remove(at.expect("what was entered is in the list until it is left"));
        let is_awaited = busy.blocked > 0;
        drop(busy);
        if is_awaited {
            self.spans.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_blocks_exclude_all_else_there() {
        let span = |first, last, is_partial| Span { first, last, is_partial };
        assert!(!span(0, 5, false).conflicts(span(5, 9, false)));
        assert!(span(0, 5, false).conflicts(span(5, 9, true)));
        assert!(span(5, 9, true).conflicts(span(0, 5, false)));
        assert!(!span(0, 4, true).conflicts(span(5, 9, true)));
        assert!(span(2, 3, true).conflicts(span(0, 9, true)));
    }
}
