//! Who carries out `full-check` and `remount`, as the shepherd of a volume knows it.
//!
//! The shepherd is opened before there is a mount that could do either, and by commands that never could. So it is given this, which a mount takes
//! over when it serves; before, and without one, those steps are in vain.

use std::sync::{Arc, OnceLock, Weak};

use fstitch_shepherd::Remedy;

/// Passes on what is asked to whoever has the volume open, if that is a mount.
#[derive(Default)]
pub struct Attendant(OnceLock<Weak<dyn Remedy>>);

impl Attendant {
    /// From now on `mount` is asked. It is not kept alive.
    pub fn take_over(&self, mount: Weak<dyn Remedy>) {
        assert!(self.0.set(mount).is_ok(), "a volume is mounted once at a time");
    }

    fn mount(&self) -> Option<Arc<dyn Remedy>> {
        self.0.get().and_then(Weak::upgrade)
    }
}

impl Remedy for Attendant {
    fn is_willing(&self) -> bool {
        self.mount().is_some_and(|mount| mount.is_willing())
    }

    fn full_check(&self) -> bool {
        self.mount().is_some_and(|mount| mount.full_check())
    }

    fn remount(&self) -> bool {
        self.mount().is_some_and(|mount| mount.remount())
    }
}
