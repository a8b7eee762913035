//! What a test asks of a new volume.

use fstitch_core::Timestamp;
use fstitch_formats::Format;
use fstitch_formats::make::{Asked, AskedJournal, WordKind};

/// When everything in these tests is made.
pub const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };

/// A volume as usual, the same in every run.
pub fn asked(format: &dyn Format, kind: &'static str, block_size: u32, label: &str) -> Asked {
    let number = |kind: &WordKind| match kind {
        WordKind::Number(_, _, default) => default.map(str::to_owned),
        WordKind::OneOf(_, default) => Some((*default).to_owned()),
        WordKind::List | WordKind::Flag => None,
    };
    let words =
        format.words().iter().map(|word| (word.name, number(&word.kind).into_iter().collect())).collect();
    Asked {
        kind,
        block_size: Some(block_size),
        label: label.as_bytes().to_vec(),
        uuid: [7; 16],
        is_repeatable: true,
        random: [9; 16],
        now: NOW,
        root_owner: (0, 0),
        journal: AskedJournal::Usual,
        extended: Vec::new(),
        words,
    }
}
