//! The medium of `docs/medium.md`, section 5, and persistent memory: logs, what they leave open, and the images that follow.

mod choices;
mod dmlog;
mod dmlog_read;
mod history;
mod image;
mod level;
mod log;
mod memory;
mod origin;
mod recorder;

pub use choices::{Coverage, EXHAUSTIVE_ATOMS, for_each_choice};
pub use dmlog::{DmLogError, Imported, export};
pub use dmlog_read::{DmLogReader, import};
pub use history::{Atom, Choice, Cut, History, Progress, cut_at, for_each_cut};
pub use image::{Base, Bytes, Image, LINE, WORD};
pub(crate) use image::{SECTOR, check_request, hash_block, hash_sector, size};
pub use level::{Level, UnknownLevel};
pub use log::{Access, Event, Log, Mark, RequestNo};
pub use memory::PersistentMemory;
pub use origin::{Origin, export_from};
pub use recorder::Recorder;
