//! What a crash may show: between what was promised and what was asked for.

mod judge;
mod ledger;
mod seam;
mod tree;
mod unpack;

pub use judge::{Violation, Window};
pub use ledger::{Bounds, Ledger, Promise, Version, What};
pub use seam::{Judge, Oracle, TreeOracle};
pub use tree::{CHUNK, Object, ObjectId, Tree, Unreadable};
